package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// session tries mutants.
type session struct {
	root string
	// common has all mutants that can be switched on at run time: those of together.
	common   *build
	together *switched
	broken   map[string]string
}

// begin builds what holds the mutants. Those that do not compile are left out.
func begin(ctx context.Context, root string, mutants []mutant) (*session, error) {
	s := &session{root: root, broken: map[string]string{}}

	for {
		together, err := newSwitched(root, mutants)
		if err != nil {
			return nil, err
		}

		s.common, err = newBuild(root, together.files, together.names)
		if err != nil {
			return nil, err
		}

		said, err := s.common.compiles(ctx, packages(mutants)...)
		if err == nil && said == "" {
			s.together, s.common.without.changed = together, together.changed

			return s, nil
		}

		known := len(s.broken)
		s.blame(together, said)

		if err == nil && len(s.broken) == known {
			err = fmt.Errorf("%w: %s", errBuild, oneLine(said))
		}

		if err := errors.Join(err, s.end()); err != nil {
			return nil, err
		}

		mutants = slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return s.broken[m.name] != "" })
	}
}

var errBuild = errors.New("the mutants do not compile")

// complaint is how the compiler begins a line.
var complaint = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: (.*)$`)

// anyFails runs the tests of a mutant until one fails, and that one again: what passes then failed
// by coincidence, and does not count.
func (b *build) anyFails(ctx context.Context, m mutant) (verdict, error) {
	last := verdict{outcome: survived}

	for _, tests := range m.tests {
		if !b.without.mayReach(tests, m.name) {
			continue
		}

		v, err := b.test(ctx, tests, m.name)
		if err != nil {
			return v, err
		}

		last.ran += v.ran

		if v.outcome == survived {
			continue
		}

		if name, _, _ := strings.Cut(v.test, "/"); name != "" && v.outcome != timedOut {
			repeated := command{pkg: tests.pkg, run: "^" + name + "$"}
			if v.outcome == panicked {
				repeated = tests // the goroutine that panicked may be of another test than that one
			}

			again, err := b.test(ctx, repeated, m.name)
			if err != nil {
				return again, err
			}

			if again.outcome == survived {
				continue
			}
		}

		return v, nil
	}

	return last, nil
}

// blame finds out which mutants the compiler complains of.
func (s *session) blame(together *switched, said string) {
	for _, found := range complaint.FindAllStringSubmatch(said, -1) {
		line, err := strconv.Atoi(found[2])
		if err != nil {
			continue
		}

		if name := together.at(s.common.copies[found[1]], line); name != "" && s.broken[name] == "" {
			s.broken[name] = found[3]
		}
	}
}

func (s *session) end() error { return s.common.remove() }

// alone is a build with one mutant.
func (s *session) alone(m mutant) (*build, error) {
	text, err := m.apply(s.root)
	if err != nil {
		return nil, err
	}

	b, err := newBuild(s.root, map[string][]byte{m.file: text}, map[string]bool{m.name: true})
	if err != nil {
		return nil, err
	}

	b.without, b.turns = s.common.without, s.common.turns

	return b, nil
}

// baseline checks that what should fail with a mutant passes without one, and records what it calls.
func (s *session) baseline(ctx context.Context, mutants []mutant, workers int) error {
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(workers)

	checked := map[command]bool{}

	for _, m := range mutants {
		for _, tests := range m.tests {
			if checked[tests] {
				continue
			}

			checked[tests] = true

			group.Go(func() error { return s.baselineOf(limited, tests) })
		}
	}

	return group.Wait()
}

func (s *session) baselineOf(ctx context.Context, tests command) error {
	var start time.Time

	attempt := func() (reached, verdict, error) {
		start = time.Now()

		return s.together.recordReached(func(dir string) (verdict, error) {
			return s.common.test(ctx, tests, "", reachedVariable+"="+dir)
		})
	}

	calls, v, err := attempt()
	if err == nil && v.outcome != survived {
		// A test that fails by coincidence is a defect, but no reason to measure nothing. Those behind it
		// did not run.
		fmt.Fprintf(os.Stderr, "without a mutant %s failed once: %s by %s: %s\n", tests, v.outcome, v.test, v.message)

		calls, v, err = attempt()
	}

	switch {
	case err != nil:
		return err
	case v.outcome != survived:
		// They count for no mutant: a run takes too long to be given up.
		fmt.Fprintf(os.Stderr, "without a mutant %s does not pass, and is left out: %s by %s: %s\n", tests, v.outcome, v.test, v.message)
		s.common.without.leaveOut(tests)

		return nil
	case v.ran == 0:
		return fmt.Errorf("%s runs no test", tests)
	}

	s.common.without.add(tests, time.Since(start), calls)

	return nil
}

// try runs the tests of one mutant.
func (s *session) try(ctx context.Context, m mutant) (verdict, error) {
	if said, ok := s.broken[m.name]; ok {
		return verdict{outcome: broken, message: said}, nil
	}

	if s.common.names[m.name] {
		return s.common.anyFails(ctx, m)
	}

	alone, err := s.alone(m)
	if errors.Is(err, errStale) {
		return verdict{outcome: stale, message: err.Error()}, nil
	}

	if err != nil {
		return verdict{}, err
	}

	said, err := alone.compiles(ctx, packages([]mutant{m})...)

	var v verdict

	switch {
	case err != nil:
	case said != "":
		v = verdict{outcome: broken, message: oneLine(said)}
	default:
		v, err = alone.anyFails(ctx, m)
	}

	return v, errors.Join(err, alone.remove())
}

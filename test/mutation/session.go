package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// session tries mutants.
type session struct {
	root string
	// common has all mutants that can be switched on at run time.
	common *build
	broken map[string]string
}

// begin builds what holds the mutants. Those that do not compile are left out.
func begin(ctx context.Context, root string, mutants []mutant) (*session, error) {
	s := &session{root: root, broken: map[string]string{}}

	for {
		err := s.build(mutants)
		if err != nil {
			return nil, err
		}

		pkg, said, err := s.complaints(ctx, mutants)
		if err != nil {
			return nil, errors.Join(err, s.end())
		}

		if said == "" {
			return s, nil
		}

		left, err := s.leaveOutBroken(ctx, mutants, pkg)
		if err == nil && len(left) == len(mutants) {
			err = fmt.Errorf("the mutants compile one by one, and not together: %s", said)
		}

		if err = errors.Join(err, s.common.remove()); err != nil {
			return nil, err
		}

		mutants = left
	}
}

func (s *session) end() error { return s.common.remove() }

func (s *session) build(mutants []mutant) error {
	together, err := newSwitched(s.root, mutants)
	if err != nil {
		return err
	}

	s.common, err = newBuild(s.root, together.files, together.names)

	return err
}

// complaints returns the first package that does not compile, and why.
func (s *session) complaints(ctx context.Context, mutants []mutant) (pkg, said string, err error) {
	for _, pkg := range packages(mutants) {
		said, err := s.common.compiles(ctx, pkg)
		if said != "" || err != nil {
			return pkg, oneLine(said), err
		}
	}

	return "", "", nil
}

// leaveOutBroken returns the mutants without those of the package that do not
// compile.
func (s *session) leaveOutBroken(ctx context.Context, mutants []mutant, pkg string) ([]mutant, error) {
	left := slices.Clone(mutants)

	for _, m := range mutants {
		if packages([]mutant{m})[0] != pkg {
			continue
		}

		alone, err := s.alone(m)
		if errors.Is(err, errStale) {
			continue
		}

		if err != nil {
			return nil, err
		}

		said, err := alone.compiles(ctx, pkg)
		if err = errors.Join(err, alone.remove()); err != nil {
			return nil, err
		}

		if said != "" {
			s.broken[m.name] = oneLine(said)
			left = slices.DeleteFunc(left, func(other mutant) bool { return other.name == m.name })
		}
	}

	return left, nil
}

// alone is a build with one mutant.
func (s *session) alone(m mutant) (*build, error) {
	text, err := m.apply(s.root)
	if err != nil {
		return nil, err
	}

	return newBuild(s.root, map[string][]byte{m.file: text}, map[string]bool{m.name: true})
}

// baseline checks that what should fail with a mutant passes without one.
func (s *session) baseline(ctx context.Context, mutants []mutant) error {
	checked := map[command]bool{}

	for _, m := range mutants {
		if checked[m.tests] {
			continue
		}

		checked[m.tests] = true

		v, err := s.common.test(ctx, m.tests, "")

		switch {
		case err != nil:
			return err
		case v.outcome != survived:
			return fmt.Errorf("without a mutant %s does not pass: %s by %s: %s", m.tests, v.outcome, v.test, v.message)
		case v.ran == 0:
			return fmt.Errorf("%s: %s runs no test", m.name, m.tests)
		}
	}

	return nil
}

// try runs the tests of one mutant.
func (s *session) try(ctx context.Context, m mutant) (verdict, error) {
	if said, ok := s.broken[m.name]; ok {
		return verdict{outcome: broken, message: said}, nil
	}

	if s.common.names[m.name] {
		return s.common.test(ctx, m.tests, m.name)
	}

	alone, err := s.alone(m)
	if errors.Is(err, errStale) {
		return verdict{outcome: stale, message: err.Error()}, nil
	}

	if err != nil {
		return verdict{}, err
	}

	said, err := alone.compiles(ctx, packages([]mutant{m})[0])

	var v verdict

	switch {
	case err != nil:
	case said != "":
		v = verdict{outcome: broken, message: oneLine(said)}
	default:
		v, err = alone.test(ctx, m.tests, m.name)
	}

	return v, errors.Join(err, alone.remove())
}

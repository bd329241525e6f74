package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// required are the percentages of mutants that must be caught: of regressions, of a sample of the
// operators' mutants, and of those in the packages that keep data.
const (
	requiredRegressions = 95
	requiredSample      = 85
	requiredCore        = 90
)

// core are the packages that keep data.
var core = []string{"pkg/state", "internal/pool", "pkg/controller", "pkg/node"}

// report counts what became of the mutants.
type report struct {
	mutex    sync.Mutex
	total    int
	outcomes map[outcome]int
	// areas has by area how many were caught, and of how many.
	areas  map[string][2]int
	missed []string
	done   int
}

// area is what a mutant counts for: a regression's by its name, an operator's by its package.
func (m mutant) area(isRegression bool) string {
	if isRegression {
		area, _, _ := strings.Cut(m.name, "/")

		return area
	}

	return filepath.Dir(m.file)
}

// runAll tries the mutants, some at once, and reports each as it is done.
func (s *session) runAll(ctx context.Context, mutants []mutant, o options) error {
	r := &report{total: len(mutants), outcomes: map[outcome]int{}, areas: map[string][2]int{}}
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(o.workers)

	for _, m := range mutants {
		group.Go(func() error {
			start := time.Now()

			v, err := s.try(limited, m)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}

			r.add(m, v, time.Since(start), o.regressions)

			return nil
		})
	}

	if err := group.Wait(); err != nil {
		return err
	}

	return r.summarize(o.regressions)
}

// counts reports whether an outcome means that the tests caught the mutant. A regression is caught
// by a message that says what is wrong only; for an operator's mutant each failure counts.
func (o outcome) counts(isRegression bool) bool {
	return o == caught || !isRegression && (o == unclear || o == timedOut || o == panicked)
}

func (r *report) add(m mutant, v verdict, took time.Duration, isRegression bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()

	r.done++
	line := describe(m, v)
	fmt.Fprintf(os.Stdout, "%3d/%d %5.1fs %s\n", r.done, r.total, took.Seconds(), line)

	r.outcomes[v.outcome]++

	// One of an operator that does not compile, alone in its file, is no mutant.
	if v.outcome == broken && !isRegression {
		return
	}

	count := r.areas[m.area(isRegression)]
	count[1]++

	if v.outcome.counts(isRegression) {
		count[0]++
	} else {
		r.missed = append(r.missed, line)
	}

	r.areas[m.area(isRegression)] = count
}

func describe(m mutant, v verdict) string {
	line := fmt.Sprintf("%-9s %-46s ", v.outcome, m.name)

	switch v.outcome {
	case survived:
		tests := make([]string, 0, len(m.tests))
		for _, each := range m.tests {
			tests = append(tests, each.String())
		}

		return line + m.breaks + ": " + strings.Join(tests, ", ")
	case stale, broken:
		return line + v.message
	case caught, unclear, timedOut, panicked:
		return line + v.test + ": " + v.message
	default:
		return line
	}
}

// whole is 100 percent.
const whole = 100

func (r *report) summarize(isRegression bool) error {
	fmt.Fprintln(os.Stdout)
	slices.Sort(r.missed)

	for _, line := range r.missed {
		fmt.Fprintln(os.Stdout, line)
	}

	areas := make([]string, 0, len(r.areas))
	for area := range r.areas {
		areas = append(areas, area)
	}

	slices.Sort(areas)

	caughtAll, caughtCore, allCore := 0, 0, 0

	for _, area := range areas {
		count := r.areas[area]
		caughtAll += count[0]

		fmt.Fprintf(os.Stdout, "%-34s %3d of %3d caught\n", area, count[0], count[1])

		if slices.ContainsFunc(core, func(each string) bool { return area == each || strings.HasPrefix(area, each+"/") }) {
			caughtCore += count[0]
			allCore += count[1]
		}
	}

	total := r.total
	if !isRegression {
		total -= r.outcomes[broken]
	}

	fmt.Fprintf(os.Stdout, "%d mutants:", total)

	for _, each := range []outcome{caught, survived, unclear, timedOut, panicked, stale, broken} {
		fmt.Fprintf(os.Stdout, " %d %s", r.outcomes[each], each)
	}

	fmt.Fprintln(os.Stdout)

	if isRegression {
		if bad := r.outcomes[stale] + r.outcomes[broken]; bad > 0 {
			return fmt.Errorf("%w: %d regressions are stale or do not compile: bring the list up to date", errMissed, bad)
		}

		return enough("regressions", caughtAll, total, requiredRegressions)
	}

	return errors.Join(enough("all packages", caughtAll, total, requiredSample),
		enough(strings.Join(core, ", "), caughtCore, allCore, requiredCore))
}

// enough prints a rate and compares it with what is required.
func enough(of string, caught, all, required int) error {
	if all == 0 {
		return nil
	}

	fmt.Fprintf(os.Stdout, "%s: %.1f %% caught, %d %% required\n", of, whole*float64(caught)/float64(all), required)

	if whole*caught < required*all {
		return fmt.Errorf("%w: %s: %d of %d were not caught", errMissed, of, all-caught, all)
	}

	return nil
}

package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// runAll tries the mutants one after the other and reports each as it is done.
func (s *session) runAll(ctx context.Context, mutants []mutant) error {
	outcomes := map[outcome]int{}
	areas := map[string][2]int{}

	var missed []string

	for i, m := range mutants {
		start := time.Now()

		v, err := s.try(ctx, m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}

		line := describe(m, v)
		fmt.Fprintf(os.Stdout, "%3d/%d %5.1fs %s\n", i+1, len(mutants), time.Since(start).Seconds(), line)

		outcomes[v.outcome]++
		count := areas[m.area()]
		count[1]++

		if v.outcome == caught {
			count[0]++
		} else {
			missed = append(missed, line)
		}

		areas[m.area()] = count
	}

	return summarize(mutants, outcomes, areas, missed)
}

func describe(m mutant, v verdict) string {
	line := fmt.Sprintf("%-9s %-46s ", v.outcome, m.name)

	switch v.outcome {
	case survived:
		return line + m.breaks + ": " + m.tests.String()
	case stale, broken:
		return line + v.message
	case caught, unclear, timedOut, panicked:
		return line + v.test + ": " + v.message
	default:
		return line
	}
}

func summarize(mutants []mutant, outcomes map[outcome]int, areas map[string][2]int, missed []string) error {
	fmt.Fprintln(os.Stdout)

	printed := map[string]bool{}
	for _, m := range mutants {
		if area := m.area(); !printed[area] {
			printed[area] = true

			fmt.Fprintf(os.Stdout, "%-14s %3d of %3d caught\n", area, areas[area][0], areas[area][1])
		}
	}

	for _, line := range missed {
		fmt.Fprintln(os.Stdout, line)
	}

	fmt.Fprintf(os.Stdout, "%d mutants:", len(mutants))

	for _, each := range []outcome{caught, survived, unclear, timedOut, panicked, stale, broken} {
		fmt.Fprintf(os.Stdout, " %d %s", outcomes[each], each)
	}

	const whole = 100

	fmt.Fprintf(os.Stdout, "; %.1f %% caught, %d %% required\n",
		whole*float64(outcomes[caught])/float64(len(mutants)), required)

	switch {
	case outcomes[stale]+outcomes[broken] > 0:
		return fmt.Errorf("%w: %d mutants are stale or do not compile: bring the list up to date",
			errMissed, outcomes[stale]+outcomes[broken])
	case whole*outcomes[caught] < required*len(mutants):
		return fmt.Errorf("%w: %d of %d mutants were not caught", errMissed, len(mutants)-outcomes[caught], len(mutants))
	default:
		return nil
	}
}

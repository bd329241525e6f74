package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
)

const (
	exitMissed = 1
	exitUsage  = 2

	// required is the percentage of mutants that must be caught.
	required = 95
)

var (
	errStale  = errors.New("stale")
	errMissed = errors.New("the tests miss too much")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])

	stop()

	switch {
	case errors.Is(err, errMissed):
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(exitMissed)
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(exitUsage)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	pattern := flags.String("run", "", "regular expression: only mutants with a name that it matches")
	list := flags.Bool("list", false, "list the mutants and whether their texts are still there; run nothing")
	unmutated := flags.Bool("baseline", true, "first check that each test passes without a defect")

	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read the command line: %w", err)
	}

	selected, err := choose(*pattern)
	if err != nil {
		return err
	}

	root, err := moduleRoot()
	if err != nil {
		return err
	}

	if *list {
		return listAll(root, selected)
	}

	s, err := begin(ctx, root, selected)
	if err != nil {
		return err
	}

	if *unmutated {
		err = s.baseline(ctx, selected)
	}

	if err == nil {
		err = s.runAll(ctx, selected)
	}

	return errors.Join(err, s.end())
}

// all returns the mutants of all areas.
func all() []mutant {
	return slices.Concat(stateMutants(), specMutants(), randomRowMutants(), poolMutants(), blockdevMutants(), mountMutants(), nodeMutants(),
		controllerMutants(), healthMutants(), registrationMutants(), directMutants(), driverMutants(), observerMutants(), faultsMutants())
}

func choose(pattern string) ([]mutant, error) {
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}

	selected := slices.DeleteFunc(all(), func(m mutant) bool { return !matches.MatchString(m.name) })
	if len(selected) == 0 {
		return nil, fmt.Errorf("-run: no mutant has a name that %q matches", pattern)
	}

	return selected, nil
}

// moduleRoot is where go.mod is, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}

	for ; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))

		switch {
		case err == nil:
			return dir, nil
		case dir == filepath.Dir(dir):
			return "", errors.New("find the module: no go.mod at or above the working directory")
		}
	}
}

func listAll(root string, mutants []mutant) error {
	stale := 0

	for _, m := range mutants {
		_, err := m.apply(root)
		if err != nil {
			stale++

			fmt.Fprintf(os.Stdout, "%-50s %v\n", m.name, err)

			continue
		}

		fmt.Fprintf(os.Stdout, "%-50s %s\n", m.name, m.breaks)
	}

	fmt.Fprintf(os.Stdout, "%d mutants, %d of them stale\n", len(mutants), stale)

	if stale > 0 {
		return fmt.Errorf("%w: %d mutants", errStale, stale)
	}

	return nil
}

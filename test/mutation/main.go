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

	// sampleSize is how many mutants of the operators a run draws.
	sampleSize = 300
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

// options are the command line.
type options struct {
	regressions, list, baseline, own bool
	run                              *regexp.Regexp
	count, workers                   int
	seed                             uint64
}

func parseOptions(args []string) (options, error) {
	var o options

	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	pattern := flags.String("run", "", "regular expression: only regressions whose name it matches, or mutants of packages that it matches")
	flags.BoolVar(&o.regressions, "regressions", false, "try the listed regressions instead of a sample of the operators' mutants")
	flags.BoolVar(&o.list, "list", false, "list the mutants; run nothing")
	flags.BoolVar(&o.baseline, "baseline", true, "first check that each test passes without a defect")
	flags.BoolVar(&o.own, "own", false, "run the tests of a mutant's package alone: a quick search for survivors, no measure")
	flags.IntVar(&o.count, "n", sampleSize, "how many mutants of the operators to draw")
	flags.Uint64Var(&o.seed, "seed", 1, "what the sample is drawn by")
	flags.IntVar(&o.workers, "workers", 2, "how many mutants are tried at once")

	if err := flags.Parse(args); err != nil {
		return o, fmt.Errorf("read the command line: %w", err)
	}

	matches, err := regexp.Compile(*pattern)
	if err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}

	o.run = matches

	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}

	root, err := moduleRoot()
	if err != nil {
		return err
	}

	selected, err := o.choose(ctx, root)
	if err != nil {
		return err
	}

	if o.list {
		for _, m := range selected {
			fmt.Fprintf(os.Stdout, "%s\t%s\n", m.name, m.breaks)
		}

		return nil
	}

	s, err := begin(ctx, root, selected)
	if err != nil {
		return err
	}

	if !o.regressions {
		// What does not compile is no mutant.
		selected = slices.DeleteFunc(selected, func(m mutant) bool { return s.broken[m.name] != "" })
		selected = selected[:min(o.count, len(selected))]
	}

	if o.baseline {
		err = s.baseline(ctx, selected, o.workers)
	}

	if err == nil {
		err = s.runAll(ctx, selected, o)
	}

	return errors.Join(err, s.end())
}

// choose returns the mutants to try. As some of the operators' do not compile, it draws half as many
// again.
func (o options) choose(ctx context.Context, root string) ([]mutant, error) {
	var (
		selected []mutant
		err      error
	)

	if o.regressions {
		selected, err = o.chooseRegressions(root)
	} else if selected, err = operatorMutants(ctx, root); err == nil {
		selected = draw(selected, o.count+o.count/2, o.seed, o.run.MatchString)
	}

	if o.own {
		selected = slices.DeleteFunc(selected, func(m mutant) bool { return len(m.tests) == 0 })
		for i := range selected {
			selected[i].tests = selected[i].tests[:1]
		}
	}

	if err == nil && len(selected) == 0 {
		err = fmt.Errorf("-run: %q matches nothing", o.run)
	}

	return selected, err
}

func (o options) chooseRegressions(root string) ([]mutant, error) {
	code, err := readDeclarations(root)
	if err != nil {
		return nil, err
	}

	var selected []mutant

	for _, r := range regressions() {
		if !o.run.MatchString(r.name) {
			continue
		}

		m, stale := code.locate(r)
		if stale != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.name, stale))
		}

		selected = append(selected, m)
	}

	return selected, err
}

// regressions returns those of all areas.
func regressions() []regression {
	return slices.Concat(stateMutants(), specMutants(), randomRowMutants(), poolMutants(), blockdevMutants(), mountMutants(), nodeMutants(),
		controllerMutants(), healthMutants(), registrationMutants(), directMutants(), driverMutants(), observerMutants(), faultsMutants())
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

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	exitNotWell = 1
	exitUsage   = 2
)

// errNotWell is what makes a soak fail; the list has been printed.
var errNotWell = errors.New("not all was well")

func main() {
	// The parent waits for the process in the namespace, and must not end before it.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)

	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "soak: mounting and loop devices need root")
		os.Exit(exitUsage)
	}

	namespace.Enter()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])

	stop()

	switch {
	case errors.Is(err, errNotWell):
		os.Exit(exitNotWell)
	case err != nil:
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(exitUsage)
	}
}

// options are the command line.
type options struct {
	binary, dir               string
	duration, each, timeLimit time.Duration
	checkPeriod               time.Duration
	workers                   int
	spoil                     bool
}

func parse(args []string) (options, error) {
	var o options

	flags := flag.NewFlagSet("soak", flag.ExitOnError)
	flags.StringVar(&o.binary, "binary", "bin/touchstone", "the driver")
	flags.StringVar(&o.dir, "dir", os.TempDir(), "where state and pools lie: a directory on a real disk, not a tmpfs")
	flags.DurationVar(&o.duration, "duration", time.Hour, "how long volumes come and go")
	flags.DurationVar(&o.each, "each", time.Minute, "how often to print a line")
	flags.DurationVar(&o.timeLimit, "call-limit", time.Minute, "how long a call may take before it counts as hanging")
	flags.DurationVar(&o.checkPeriod, "check-period", 5*time.Minute, "the driver's --check-period, which is also for the volumes that stay")
	flags.IntVar(&o.workers, "workers", 4, "how many volumes come and go at the same time")
	flags.BoolVar(&o.spoil, "spoil", false, "remove the image of a volume in use half way, to see that it is noticed")

	if err := flags.Parse(args); err != nil {
		return o, err
	}

	var err error
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return o, fmt.Errorf("-binary: %w", err)
	}

	return o, nil
}

func run(ctx context.Context, args []string) error {
	given, err := parse(args)
	if err != nil {
		return err
	}

	root, err := os.MkdirTemp(given.dir, "touchstone-soak-")
	if err != nil {
		return fmt.Errorf("-dir: %w", err)
	}

	if root, err = filepath.EvalSymlinks(root); err != nil {
		return fmt.Errorf("-dir: %w", err)
	}

	place, err := newSite(ctx, given, root)
	if err != nil {
		return errors.Join(err, os.RemoveAll(root))
	}

	err = soakIn(ctx, given, place)

	return errors.Join(err, place.remove())
}

// soakIn runs the driver and all that goes on around it.
func soakIn(ctx context.Context, given options, place *site) error {
	driver, err := place.start(ctx)
	if err != nil {
		return err
	}

	s := &soak{options: given, site: place, process: driver, out: os.Stdout, volumes: newVolumes(), troubles: newTroubles(os.Stdout)}

	return errors.Join(s.whole(ctx), driver.kill())
}

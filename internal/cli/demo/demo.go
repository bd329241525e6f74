package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

const (
	// stepLimit ends a step that hangs; it is far longer than any step takes.
	stepLimit = time.Minute
	// cleanUpLimit limits the time in which mounts and devices are removed.
	cleanUpLimit  = 10 * time.Second
	directoryMode = 0o750
)

var (
	errInterrupted = errors.New("interrupted")
	errUnexpected  = errors.New("unexpected result")
)

// demo is one run.
type demo struct {
	*csiclient.Client

	root   string
	keep   bool
	report *report
	driver *driver // Nil while none is expected to run.

	// created are the volumes that are created empty; copied are made from the others and
	// their snapshots.
	created, copied           []*volume
	before, after             *snapshot
	group                     *groupSnapshot
	restored, cloned, grouped *volume
	// then contains steps that the current one requires; they follow it.
	then []step
}

// section is a part of the demo with a title.
type section struct {
	title string
	steps []step
}

// step is one line of the demo: a call, or a check of its result.
type step struct {
	call string
	do   action
}

// action runs a step. It returns what is printed: the call's key arguments and the result,
// of which the lines after the first are printed below the step.
type action func(ctx context.Context) (with, got string, err error)

// check returns errUnexpected with the text, unless ok.
func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%w: %s", errUnexpected, fmt.Sprintf(format, args...))
}

// run runs all sections and always cleans up. Its error has been printed.
func (d *demo) run(ctx context.Context) (failure error) {
	runtime.LockOSThread() // See startDriver.
	defer runtime.UnlockOSThread()

	d.report.linef("Everything happens in %s", d.root)

	defer func() {
		if failure != nil {
			d.report.linef("\nCleaning up …")
		}
		failure = errors.Join(failure, d.cleanUp(context.WithoutCancel(ctx)))
		d.report.summary(failure)
	}()

	for _, dir := range []string{stateIn(d.root), poolIn(d.root), kubeletIn(d.root)} {
		if err := os.Mkdir(dir, directoryMode); err != nil {
			return fmt.Errorf("make the demo's directories: %w", err)
		}
	}

	var err error
	if d.Client, err = csiclient.Connect("unix://" + socketIn(d.root)); err != nil {
		return err
	}
	defer d.Close()

	for _, section := range d.sections() {
		d.report.section(section.title)

		for steps := section.steps; len(steps) > 0; {
			if err := d.runStep(ctx, steps[0]); err != nil {
				return err
			}
			steps, d.then = slices.Concat(d.then, steps[1:]), nil
		}
	}
	return nil
}

// runStep runs and prints a step, with its time limit. The driver's exit ends it at once.
func (d *demo) runStep(ctx context.Context, step step) error {
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case d.report.err != nil:
		return d.report.err
	}

	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()

	running := d.driver
	if running != nil {
		go func() {
			select {
			case <-running.exited:
				cancel()
			case <-limited.Done():
			}
		}()
	}

	began := time.Now()
	with, got, err := step.do(limited)
	took := time.Since(began)

	if err != nil && ctx.Err() != nil {
		return errInterrupted // The step did not fail.
	}
	if err != nil && running != nil && running == d.driver {
		if exit := running.exitError(); exit != nil {
			err = exit
		}
	}

	d.report.step(step.call, with, got, err, took)
	if err != nil {
		d.report.notes("the driver's log ends with:")
		d.report.notes(tail(logIn(d.root), logTail)...)
		return fmt.Errorf("step %d: %w", d.report.steps, err)
	}
	return nil
}

// cleanUp ends the driver, and then removes with system calls what is still mounted and
// attached: an interrupted call may have had its effect.
func (d *demo) cleanUp(ctx context.Context) error {
	if d.driver != nil {
		if err := d.driver.terminate(); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeout(ctx, cleanUpLimit)
	defer cancel()

	if err := removeRoot(ctx, d.root, d.keep); err != nil {
		return fmt.Errorf("clean up %s: %w", d.root, err)
	}
	if d.keep {
		d.report.linef("Kept: %s", d.root)
	}
	return nil
}

// tail returns the last lines of a file.
func tail(path string, lines int) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return all[max(0, len(all)-lines):]
}

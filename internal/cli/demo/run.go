package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

const (
	// stepLimit ends a step that hangs; it is far longer than any step takes.
	stepLimit = time.Minute
	// undoLimit and shutdownLimit limit the time of cleaning up.
	undoLimit     = 20 * time.Second
	shutdownLimit = 10 * time.Second
	retryGap      = 50 * time.Millisecond
)

// section is a part of the demo with a title.
type section struct {
	title string
	steps []step
}

// step is one line of the demo: a call, or a check of its result.
type step struct {
	call string
	do   func(ctx context.Context) (outcome, error)
}

// outcome is the result of a step as it is printed.
type outcome struct {
	// with contains the key arguments, got the result.
	with, got string
	// note is printed on a line below the step.
	note string
	// then contains steps that this outcome requires.
	then []step
}

// demo is one run.
type demo struct {
	*csiclient.Client

	program string
	paths   workPaths
	keep    bool
	report  *report

	driver  *driver
	volumes []*volume
	copySet *copySet
}

func newDemo(program string, paths workPaths, keep bool, report *report) *demo {
	volumes := newVolumes(paths, hasTool("mkfs.btrfs"))
	ext4, xfs := volumes[0], volumes[1]

	return &demo{program: program, paths: paths, keep: keep, report: report, volumes: volumes, copySet: newCopySet(paths, xfs, ext4)}
}

// run runs all sections and always cleans up. Its error has been printed.
func (d *demo) run(ctx context.Context) (failure error) {
	d.report.linef("Everything happens in %s", d.paths.root)

	defer func() {
		failure = errors.Join(failure, d.cleanUp(ctx, failure != nil))
		d.report.summary(failure)
	}()

	for _, dir := range []string{d.paths.state, d.paths.pool, d.paths.kubelet} {
		if err := os.Mkdir(dir, directoryMode); err != nil {
			return fmt.Errorf("make the demo's directories: %w", err)
		}
	}

	var err error
	if d.Client, err = csiclient.Connect("unix://" + d.paths.socket); err != nil {
		return err
	}

	for _, section := range d.allSections() {
		d.report.section(section.title)

		if err := d.runSteps(ctx, section.steps); err != nil {
			return err
		}
	}

	return nil
}

// runSteps runs the steps in order, each followed by the steps that its outcome requires.
func (d *demo) runSteps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if d.report.err != nil {
			return d.report.err
		}

		began := time.Now()
		done, err := d.runStep(ctx, step)

		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx) // The step was interrupted; it did not fail.
		}

		d.report.step(step.call, done, err, time.Since(began))

		if err != nil {
			d.report.note("the driver's log ends with:")

			for _, line := range tail(d.paths.log, logTail) {
				d.report.note(line)
			}

			return fmt.Errorf("step %d: %w", d.report.steps, err)
		}

		if done.note != "" {
			d.report.note(done.note)
		}

		if err := d.runSteps(ctx, done.then); err != nil {
			return err
		}
	}

	return nil
}

// runStep runs one step with its time limit. The driver's exit ends it at once.
func (d *demo) runStep(ctx context.Context, step step) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()

	if d.driver != nil {
		watched, release := d.driver.withExit(ctx)
		defer release()

		ctx = watched
	}

	done, err := step.do(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errDriverExited) {
		return done, cause
	}

	return done, err
}

// cleanUp undoes, through the driver, the calls that are in effect, ends the driver, and
// removes leftovers with system calls. It has its own time limit, since the demo's context
// may have ended.
func (d *demo) cleanUp(ctx context.Context, early bool) error {
	ctx = context.WithoutCancel(ctx)

	if early {
		d.report.linef("\nCleaning up …")
	}

	if d.driver != nil && d.driver.alive() {
		d.undo(ctx)

		if err := d.driver.terminate(ctx, shutdownLimit); err != nil {
			return err
		}
	}

	if d.Client != nil {
		_ = d.Close()
	}

	ctx, cancel := context.WithTimeout(ctx, shutdownLimit)
	defer cancel()

	if err := removeRoot(ctx, d.paths.root, d.keep); err != nil {
		return fmt.Errorf("clean up %s: %w", d.paths.root, err)
	}

	if d.keep {
		d.report.linef("Kept: %s", d.paths.root)
	}

	return nil
}

// undo reverses, through the driver, the calls that are in effect. It does not fail:
// removeRoot removes the rest without the driver.
func (d *demo) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()

	all := []*undoStack{&d.copySet.group.undoStack, &d.copySet.before.undoStack, &d.copySet.after.undoStack}
	for _, v := range slices.Backward(d.allVolumes()) {
		all = append(all, &v.undoStack)
	}

	for _, each := range all {
		if err := each.undoAll(ctx); err != nil {
			d.report.note(err.Error())
		}
	}
}

// retryWhileAborted repeats a call while the driver is still busy with the call that was
// interrupted.
func retryWhileAborted(ctx context.Context, call func(context.Context) error) error {
	for {
		err := call(ctx)
		if status.Code(err) != codes.Aborted {
			return err
		}

		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryGap):
		}
	}
}

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
	// stepLimit is far above what any step takes: a hang has to end too.
	stepLimit = time.Minute
	// undoLimit and patience bound the cleaning up.
	undoLimit = 20 * time.Second
	patience  = 10 * time.Second
	retryGap  = 50 * time.Millisecond
)

// section is a part of the demo with a title.
type section struct {
	title string
	steps []step
}

// step is one line of the demo: a call, or something done with its result.
type step struct {
	call string
	do   func(ctx context.Context) (outcome, error)
}

// outcome is what there is to say about a step.
type outcome struct {
	// with are the key arguments, got the result.
	with, got string
	// note is a line of its own below the step.
	note string
	// then are steps that this outcome made necessary.
	then []step
}

// demo is one run.
type demo struct {
	*csiclient.Client

	program string
	at      places
	keep    bool
	report  *report

	driver  *driver
	volumes []*volume
	album   *album
}

func newDemo(program string, at places, keep bool, report *report) *demo {
	volumes := cast(at, hasTool("mkfs.btrfs"))
	ext4, xfs := volumes[0], volumes[1]

	return &demo{program: program, at: at, keep: keep, report: report, volumes: volumes, album: albumOf(at, xfs, ext4)}
}

// run plays all sections and cleans up whatever comes. Its error has been
// reported in full.
func (d *demo) run(ctx context.Context) (failure error) {
	d.report.linef("Everything happens in %s", d.at.root)

	defer func() {
		failure = errors.Join(failure, d.cleanUp(ctx, failure != nil))
		d.report.summary(failure)
	}()

	for _, dir := range []string{d.at.state, d.at.pool, d.at.kubelet} {
		if err := os.Mkdir(dir, directoryMode); err != nil {
			return fmt.Errorf("make the demo's directories: %w", err)
		}
	}

	var err error
	if d.Client, err = csiclient.Connect("unix://" + d.at.socket); err != nil {
		return err
	}

	for _, section := range d.script() {
		d.report.section(section.title)

		if err := d.play(ctx, section.steps); err != nil {
			return err
		}
	}

	return nil
}

// play does the steps in order, and those that they make necessary right after
// them.
func (d *demo) play(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if d.report.err != nil {
			return d.report.err
		}

		began := time.Now()
		done, err := d.attempt(ctx, step)

		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx) // Not the step's fault.
		}

		d.report.step(step.call, done, err, time.Since(began))

		if err != nil {
			d.report.note("the driver's log ends with:")

			for _, line := range tail(d.at.log, logTail) {
				d.report.note(line)
			}

			return fmt.Errorf("step %d: %w", d.report.steps, err)
		}

		if done.note != "" {
			d.report.note(done.note)
		}

		if err := d.play(ctx, done.then); err != nil {
			return err
		}
	}

	return nil
}

// attempt is one step with its limit in time. A driver that dies meanwhile ends
// it at once.
func (d *demo) attempt(ctx context.Context, step step) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()

	if d.driver != nil {
		watched, release := d.driver.while(ctx)
		defer release()

		ctx = watched
	}

	done, err := step.do(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errDriverExited) {
		return done, cause
	}

	return done, err
}

// cleanUp undoes through the driver what is still done, ends the driver, and
// then takes away whatever is left with the kernel's own means. It has its own
// time: the demo's context may be why it is called.
func (d *demo) cleanUp(ctx context.Context, early bool) error {
	ctx = context.WithoutCancel(ctx)

	if early {
		d.report.linef("\nCleaning up …")
	}

	if d.driver != nil && d.driver.alive() {
		d.undo(ctx)

		if err := d.driver.end(ctx, patience); err != nil {
			return err
		}
	}

	if d.Client != nil {
		_ = d.Close()
	}

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	if err := sweep(ctx, d.at.root, d.keep); err != nil {
		return fmt.Errorf("clean up %s: %w", d.at.root, err)
	}

	if d.keep {
		d.report.linef("Kept: %s", d.at.root)
	}

	return nil
}

// undo reverses, through the driver, the calls that are in effect. What it does
// not reach is no failure of its own: the sweep works without the driver.
func (d *demo) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()

	all := []*undoing{&d.album.group.undoing, &d.album.before.undoing, &d.album.after.undoing}
	for _, v := range slices.Backward(d.everyVolume()) {
		all = append(all, &v.undoing)
	}

	for _, each := range all {
		if err := each.undoAll(ctx); err != nil {
			d.report.note(err.Error())
		}
	}
}

// patiently repeats an undoing call while the driver is busy with the very call
// that was interrupted.
func patiently(ctx context.Context, call func(context.Context) error) error {
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

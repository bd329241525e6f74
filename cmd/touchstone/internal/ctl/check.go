package ctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
)

var (
	errAllOrSome  = errors.New("give volumes, or --all")
	errNotClean   = errors.New("not clean")
	errNotChecked = errors.New("not checked")
)

// NewCheckCommand returns `check`, a client of Touchstone's check service. Its errors have the
// exit code as ExitCode.
func NewCheckCommand() *cobra.Command {
	given, run := &settings{}, &checking{checked: checked{[]*health.VolumeCheck{}, []passed{}}}

	check := verb{
		name: "check", arguments: []argument{anyVolumes}, healthCode: true, short: "Check the filesystems of volumes now",
		long: `Check the filesystems of volumes now, and print the verdicts. Nothing is repaired.
A volume that is not in use is checked in place. One that is in use is only checked
with --online: its filesystem is frozen while a copy is taken, in which writers wait,
and the copy is checked. --all skips volumes that can't be checked, and lists them.

Exit code 0: all checked volumes are clean, 1: a volume is damaged, or its check
failed, 2: wrong usage, or a given volume can't be checked.`,
		example: `  touchstone check --all
  touchstone check --online data`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&run.all, "all", false, "all volumes that the driver knows")
			flags.BoolVar(&run.online, "online", false, "also check volumes in use, on a copy")
			given.define(flags, 0)
		},
		run: func(ctx context.Context, s *session) error {
			run.session = s

			return run.checkAll(ctx)
		},
	}

	command := check.command(given)
	command.Use = "check VOLUME… | --all"
	command.Args = func(_ *cobra.Command, args []string) error {
		if run.all == (len(args) > 0) {
			return usage(errAllOrSome)
		}

		return nil
	}

	return reportsErrors(command)
}

// passed is a volume that was not checked.
type passed struct {
	VolumeID string `json:"volumeId"`
	Why      string `json:"why"`
}

// checked is the JSON output.
type checked struct {
	Checks []*health.VolumeCheck `json:"checks"`
	Passed []passed              `json:"passedOver"`
}

// checking is one run of the command.
type checking struct {
	*session
	checked

	all, online bool
}

func (c *checking) checkAll(ctx context.Context) error {
	client, ids, how := health.NewClient(c.Conn()), c.args, fsck.HowOffline
	if c.online {
		how = fsck.HowOnline
	}

	if c.all {
		report, err := c.ownReport(ctx)
		if err != nil {
			return err
		}

		ids = mapped(report.Volumes, func(v health.VolumeReport) string { return v.ID })
	}

	for i, id := range ids {
		began := time.Now()
		stop := showBar(c.side, work{id, "check of " + c.names.of(id), int64(i), int64(len(ids)), func(int64, int64) string {
			return fmt.Sprintf("%d of %d, %s", i+1, len(ids), time.Since(began).Round(time.Second))
		}})
		found, err := client.Check(ctx, health.CheckRequest{VolumeID: id, How: how})

		stop()

		if err != nil {
			found = &health.VolumeCheck{VolumeID: id, CheckReport: health.CheckReport{
				At: began, Took: time.Since(began), How: how, Verdict: fsck.VerdictFailed, Detail: status.Convert(err).Message(),
			}}
		}

		if err := c.add(ctx, found, err); err != nil {
			return errors.Join(c.finish(), err)
		}
	}

	return c.finish()
}

// add adds a verdict, or a volume that was passed over, and prints it at once: the next check may take long. It
// returns only errors that apply to all volumes.
func (c *checking) add(ctx context.Context, found *health.VolumeCheck, failure error) error {
	name, code := c.names.of(found.VolumeID), status.Code(failure)

	if code == codes.Unavailable { // either the volume's pool is, or the driver
		_, gone := c.Probe(ctx, &csi.ProbeRequest{})
		if status.Code(gone) == codes.Unavailable {
			return failure
		}
	}

	switch code {
	case codes.Unimplemented, codes.DeadlineExceeded, codes.Canceled:
		return failure
	case codes.FailedPrecondition, codes.NotFound, codes.InvalidArgument, codes.Aborted, codes.Unavailable:
		why := strings.TrimPrefix(found.Detail, "check volume "+found.VolumeID+": ") // the line begins with that
		c.Passed = append(c.Passed, passed{found.VolumeID, why})
		c.say(fmt.Sprintf("%s  %-8s  %s", name, dash, Printable(why)))
	default:
		line := fmt.Sprintf("%s  %-8s  %s, %s", name, found.Verdict, found.How, found.Took.Round(time.Millisecond))
		if found.Detail != "" {
			line += ": " + found.Detail
		}

		c.Checks = append(c.Checks, found)
		c.say(Printable(line))
	}

	return nil
}

// say prints a line, unless the output is for programs.
func (c *checking) say(line string) {
	if !c.structured() && c.output != outputName {
		_ = c.printLine(line)
	}
}

func (c *checking) finish() error {
	if c.structured() || c.output == outputName {
		ids := mapped(c.Checks, func(found *health.VolumeCheck) string { return found.VolumeID })
		if err := c.show(nil, c.checked, nil, ids...); err != nil {
			return err
		}
	} else if c.all {
		fmt.Fprintf(c.side, "%d checked, %d passed over\n", len(c.Checks), len(c.Passed))
	}

	bad := 0

	for _, found := range c.Checks {
		if found.Verdict == fsck.VerdictDamaged || found.Verdict == fsck.VerdictFailed {
			bad++
		}
	}

	var failures []error

	if bad > 0 {
		failures = append(failures, unhealthy(fmt.Errorf("%w: %d of %d volumes", errNotClean, bad, len(c.Checks))))
	}

	if !c.all && len(c.Passed) > 0 {
		failures = append(failures, fmt.Errorf("%w: %d of %d volumes", errNotChecked, len(c.Passed), len(c.args)))
	}

	return errors.Join(failures...)
}

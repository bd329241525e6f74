package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

var (
	errViolations  = errors.New("the CO violates the CSI spec")
	errJQWithClear = errors.New("--clear forgets all violations, and takes no --jq")
	errTooFew      = errors.New("not as many calls as wanted")
	errSince       = errors.New("must be a time (RFC 3339) or a duration, such as 5m")
)

// callFilter are the flags that select calls.
type callFilter struct {
	calls.Filter

	since string
	jq    jqFlag
}

func (f *callFilter) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Method, "method", "", "only calls of this RPC, a glob such as 'Node*Volume'")
	flags.StringVar(&f.Code, "code", "", "only calls with this status code, such as NOT_FOUND")
	flags.StringVar(&f.Object, "volume", "", "only calls about the volume, snapshot or group with this name or id")
	flags.StringVar(&f.since, "since", "", "only calls that began at this time or later, or within this duration, such as 5m")
	flags.Uint64Var(&f.SinceCall, "since-call", 0, "only calls with a greater number than this")
	f.jq.register(flags)
}

// filter returns the filter of the flags.
func (f *callFilter) filter() (calls.Filter, error) {
	f.JQ = f.jq.String()
	if f.since == "" {
		return f.Filter, nil
	}

	at, err := time.Parse(time.RFC3339, f.since)
	if err != nil {
		ago, failure := time.ParseDuration(f.since)
		if failure != nil || ago < 0 {
			return f.Filter, usage(fmt.Errorf("--since %q %w", f.since, errSince))
		}

		at = time.Now().Add(-ago)
	}

	filter := f.Filter
	filter.Since = &at

	return filter, nil
}

// newCallsCommand lists calls, and contains the other commands about them.
func newCallsCommand(given *settings) *cobra.Command {
	var (
		selected callFilter
		follow   bool
	)

	list := verb{
		name: "calls", short: "List the calls that the driver has recorded (Touchstone only)",
		long: `List the CSI calls that the driver has recorded, in the order in which they ended:
-o json has requests, responses, metadata and times. The driver records them with
--call-log only.`,
		example: `  touchstone ctl calls --method 'Node*' --volume data
  touchstone ctl calls --follow --jq .request
  touchstone ctl calls --jq 'select(.request.capacity_range.required_bytes > 1024*1024*1024) | .objects'
  touchstone ctl calls wait --method NodeUnpublishVolume --volume data --timeout 30s`,
		flags: func(flags *pflag.FlagSet) {
			selected.register(flags)
			// --watch of other commands prints a whole list again; this prints each call once.
			flags.BoolVarP(&follow, "follow", "f", false, "then print each call as it ends, until interrupted; --timeout does not count")
		},
		run: func(ctx context.Context, s *session) error {
			filter, err := selected.filter()
			if err != nil {
				return err
			}

			if follow {
				return s.followCalls(ctx, filter, selected.jq.Program)
			}

			found, err := calls.NewClient(s.Conn()).List(ctx, filter)
			if err != nil {
				return err
			}

			return s.showCalls(ctx, selected.jq.Program, found, found)
		},
	}

	cmd := list.command(given)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if follow {
			given.timeout = 0
		}

		return run(cmd, args)
	}

	for _, each := range []verb{callCountsVerb(), callWaitVerb(), callClearVerb()} {
		cmd.AddCommand(each.command(given))
	}

	return cmd
}

var countColumns = columns[calls.Count]{
	{header: "METHOD", text: func(c calls.Count) string { return c.Method }},
	{header: "CODE", text: func(c calls.Count) string { return c.Code }},
	{header: "COUNT", text: func(c calls.Count) string { return strconv.FormatUint(c.Count, 10) }},
}

func callCountsVerb() verb {
	return verb{
		name: "counts", short: "Count the calls since the driver's start, by method and code",
		run: func(ctx context.Context, s *session) error {
			counts, err := calls.NewClient(s.Conn()).Counts(ctx)
			if err != nil {
				return err
			}

			return s.show(counts, countColumns.table(s.output, counts...))
		},
	}
}

func callClearVerb() verb {
	return verb{
		name: "clear", short: "Forget the recorded calls and their counts; a file keeps its lines",
		run: func(ctx context.Context, s *session) error {
			return calls.NewClient(s.Conn()).Clear(ctx)
		},
	}
}

func callWaitVerb() verb {
	var (
		selected callFilter
		wanted   calls.WaitRequest
	)

	return verb{
		name: "wait", short: "Wait until a number of calls have ended",
		long: `Wait until the driver has recorded --count calls, and print them. Calls that were
recorded before the command count too, so that a script cannot miss one between
its action and the wait; --since-call excludes those up to a call's number, --new
excludes all of them. Exit code 0: there are as many, 1: --timeout has passed, and
the calls that there were are printed.`,
		example: `  touchstone ctl calls wait --method NodeUnpublishVolume --count 1 --timeout 30s`,
		flags: func(flags *pflag.FlagSet) {
			selected.register(flags)
			flags.IntVar(&wanted.Count, "count", 1, "how many calls")
			flags.BoolVar(&wanted.New, "new", false, "count only calls that end after the command has begun")
		},
		run: func(ctx context.Context, s *session) error {
			filter, err := selected.filter()
			if err != nil {
				return err
			}

			wanted.Filter = filter

			return s.awaitCalls(ctx, wanted, selected.jq.Program)
		},
	}
}

// awaitCalls lets the driver end the wait, so that its answer has the calls that there were.
func (s *session) awaitCalls(ctx context.Context, wanted calls.WaitRequest, program *jq.Program) error {
	const margin = 10 * time.Second

	if deadline, limited := ctx.Deadline(); limited {
		wanted.Timeout = max(time.Until(deadline).Seconds(), time.Millisecond.Seconds())

		var cancel context.CancelFunc

		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(margin))
		defer cancel()
	}

	result, err := calls.NewClient(s.Conn()).Wait(ctx, wanted)
	if err != nil {
		return err
	}

	if err := s.showCalls(ctx, program, result, result.Calls); err != nil {
		return err
	}

	if !result.Reached {
		return fmt.Errorf("%w: %d of %d within %s", errTooFew, len(result.Calls), max(wanted.Count, 1), s.timeout)
	}

	return nil
}

func (s *session) followCalls(ctx context.Context, filter calls.Filter, program *jq.Program) error {
	err := calls.NewClient(s.Conn()).Follow(ctx, calls.FollowRequest{Filter: filter}, func(each calls.Followed) error {
		if each.Missed > 0 {
			fmt.Fprintf(s.side, "%d calls are missing: they ended faster than they could be printed\n", each.Missed)
		}

		if each.Call == nil {
			return nil
		}

		if program != nil {
			_, err := printOutputs(ctx, s.printer, program, []*calls.Call{each.Call}, (*calls.Call).Input)
			if errors.Is(err, jq.ErrProgram) && !errors.Is(err, jq.ErrLimit) {
				return nil // left out, as of a list
			}

			return err
		}

		return s.printCall(each.Call)
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // interrupted, which is how it ends
	}

	return err
}

// printCall prints a call on a line: as JSON for programs.
func (p *printer) printCall(call *calls.Call) error {
	line := strings.Join(callColumns.table(outputWide, call)[1], "  ")

	if p.structured() {
		encoded, err := json.Marshal(call)
		if err != nil {
			return fmt.Errorf("encode a call: %w", err)
		}

		line = string(encoded)
	} else {
		line = Printable(line)
	}

	if _, err := fmt.Fprintln(p.out, line); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

var callColumns = columns[*calls.Call]{
	{header: "CALL", text: func(c *calls.Call) string { return strconv.FormatUint(c.Number, 10) }},
	{header: "STARTED", text: func(c *calls.Call) string { return c.Started.Format("15:04:05.000") }},
	{header: "METHOD", text: (*calls.Call).RPC},
	{header: objectColumn, text: func(c *calls.Call) string { return strings.Join(c.Objects[:min(len(c.Objects), 1)], "") }},
	{header: "CODE", text: callCode},
	{header: "TOOK", text: func(c *calls.Call) string {
		return time.Duration(c.Took * float64(time.Second)).Round(time.Microsecond).String()
	}},
	{header: "MESSAGE", text: func(c *calls.Call) string { return c.Message }, wide: true},
}

func callCode(call *calls.Call) string {
	if call.CallerGone {
		return call.Code + " (caller gone)"
	}

	return call.Code
}

func (p *printer) showCalls(ctx context.Context, program *jq.Program, answer any, found []*calls.Call) error {
	if program != nil {
		_, err := printOutputs(ctx, p, program, found, (*calls.Call).Input)

		return err
	}

	numbers := make([]string, len(found))
	for i, call := range found {
		numbers[i] = strconv.FormatUint(call.Number, 10)
	}

	return p.show(answer, callColumns.table(p.output, found...), numbers...)
}

var violationColumns = columns[strict.Violation]{
	{header: "VIOLATION", text: func(r strict.Violation) string { return r.ID }},
	{header: objectColumn, text: func(r strict.Violation) string { return r.Object }},
	{header: nameColumn, text: func(r strict.Violation) string { return r.Name }},
	{header: "COUNT", text: func(r strict.Violation) string { return strconv.FormatUint(r.Count, 10) }},
	{header: "LAST", text: func(r strict.Violation) string { return since(r.Last) }},
	{header: "METHOD", text: func(r strict.Violation) string { return r.Method[strings.LastIndexByte(r.Method, '/')+1:] }},
	{header: "SPEC", text: func(r strict.Violation) string { return strings.Join(r.Rows, " ") }},
	{header: "DETAIL", text: func(r strict.Violation) string { return r.Detail }},
	{header: "REMEDY", text: func(r strict.Violation) string { return r.Remedy }, wide: true},
}

func violationsVerb() verb {
	var (
		forget bool
		filter jqFlag
	)

	return verb{
		name: "violations", short: "List violations of the CSI spec by the CO (Touchstone only)",
		long: `List violations of the CO's part of the CSI spec, one row for each kind and object.
The driver checks for them with --strict only. docs/strict.md explains each kind.
Exit code 0: there are none, 1: there are some (with --jq: something is printed).`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&forget, "clear", false, "forget them instead")
			filter.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			if forget && filter.Program != nil {
				return usage(errJQWithClear)
			}

			if forget {
				return strict.Clear(ctx, s.Conn())
			}

			found, err := strict.List(ctx, s.Conn())
			if err != nil {
				return err
			}

			count, err := s.showViolations(ctx, filter.Program, found)
			if err == nil && count > 0 {
				err = fmt.Errorf("%w: %d", errViolations, count)
			}

			return err
		},
	}
}

// showViolations returns how many it has shown.
func (p *printer) showViolations(ctx context.Context, program *jq.Program, found []strict.Violation) (int, error) {
	if program != nil {
		return printOutputs(ctx, p, program, found, func(r strict.Violation) (any, error) { return jq.FromJSON(r) })
	}

	ids := make([]string, len(found))
	for i, each := range found {
		ids[i] = each.ID
	}

	return len(found), p.show(found, violationColumns.table(p.output, found...), ids...)
}

package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

var (
	errViolations  = errors.New("the CO violates the CSI spec")
	errJQWithClear = errors.New("--clear forgets all violations, and takes no --jq")
	errCount       = errors.New("--count must be 1 or more")
	errTooFew      = errors.New("not as many calls as wanted")
	errSince       = errors.New("must be a time (RFC 3339) or a duration, such as 5m")
)

// callFilter are the flags that select calls.
type callFilter struct {
	calls.Filter

	since   string
	program *jq.Program
}

func (f *callFilter) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Method, "method", "", "only calls of this RPC, a glob such as 'Node*Volume'")
	flags.StringVar(&f.Code, "code", "", "only calls with this status code, such as NOT_FOUND")
	flags.StringVar(&f.Object, "volume", "", "only calls about the volume, snapshot or group with this name or id")
	flags.StringVar(&f.since, "since", "", "only calls that began at this time or later, or within this duration, such as 5m")
	flags.Uint64Var(&f.SinceCall, "since-call", 0, "only calls with a greater number than this")
	defineJQ(flags, &f.program)
}

// filter returns the filter of the flags.
func (f *callFilter) filter() (calls.Filter, error) {
	if f.program != nil {
		f.JQ = f.program.String()
	}

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

	f.Since = &at

	return f.Filter, nil
}

// callsVerb lists calls, and contains the other commands about them.
func callsVerb(given *settings) verb {
	var selected callFilter

	return verb{
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
			// --watch of lists prints a whole list again; this prints each call once.
			flags.BoolVarP(&given.watch, "follow", "f", false, "then print each call as it ends, until interrupted; --timeout does not count")
		},
		run: func(ctx context.Context, s *session) error {
			filter, err := selected.filter()
			if err != nil {
				return err
			}

			if s.watch {
				return s.followCalls(ctx, filter, selected.program)
			}

			found, err := calls.NewClient(s.Conn()).List(ctx, filter)

			return s.showCalls(ctx, err, selected.program, found, found)
		},
		verbs: []verb{callWaitVerb(), {
			name: "counts", nameless: true, short: "Count the calls since the driver's start, by method and code",
			run: func(ctx context.Context, s *session) error {
				counts, err := calls.NewClient(s.Conn()).Counts(ctx)

				return countColumns.show(s.printer, err, counts, counts...)
			},
		}, {
			name: "clear", short: "Forget the recorded calls and their counts; a file keeps its lines",
			run: func(ctx context.Context, s *session) error { return calls.NewClient(s.Conn()).Clear(ctx) },
		}},
	}
}

var countColumns = columns[calls.Count]{
	{header: "METHOD", text: func(c calls.Count) string { return c.Method }},
	{header: "CODE", text: func(c calls.Count) string { return c.Code }},
	{header: "COUNT", text: func(c calls.Count) string { return strconv.FormatUint(c.Count, 10) }},
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

			if wanted.Count < 1 {
				return usage(errCount)
			}

			wanted.Filter = filter

			return s.awaitCalls(ctx, wanted, selected.program)
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

	if err = s.showCalls(ctx, nil, program, result, result.Calls); err == nil && !result.Reached {
		err = fmt.Errorf("%w: %d of %d within %s", errTooFew, len(result.Calls), wanted.Count, s.timeout)
	}

	return err
}

func (s *session) followCalls(ctx context.Context, filter calls.Filter, program *jq.Program) error {
	err := calls.NewClient(s.Conn()).Follow(ctx, calls.FollowRequest{Filter: filter}, func(each calls.Followed) error {
		if each.Missed > 0 {
			fmt.Fprintf(s.side, "%d calls are missing: they ended faster than they could be printed\n", each.Missed)
		}

		if each.Call == nil {
			return nil
		}

		if program == nil {
			return s.printCall(each.Call)
		}

		_, err := printOutputs(ctx, s.printer, program, []*calls.Call{each.Call}, (*calls.Call).Input)
		if errors.Is(err, jq.ErrProgram) && !errors.Is(err, jq.ErrLimit) {
			return nil // left out, as of a list
		}

		return err
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // interrupted, which is how it ends
	}

	return err
}

// printCall prints a call on a line: as JSON for programs.
func (p *printer) printCall(call *calls.Call) error {
	line := Printable(strings.Join(callColumns.table(outputWide, call)[1], "  "))

	if p.structured() {
		encoded, err := json.Marshal(call)
		if err != nil {
			return fmt.Errorf("encode a call: %w", err)
		}

		line = string(encoded)
	}

	return p.printLine(line)
}

var callColumns = columns[*calls.Call]{
	{header: "CALL", text: func(c *calls.Call) string { return strconv.FormatUint(c.Number, 10) }, id: true},
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

// showCalls shows calls, or what a program makes of them.
func (p *printer) showCalls(ctx context.Context, failure error, program *jq.Program, answer any, found []*calls.Call) error {
	if failure != nil || program == nil {
		return callColumns.show(p, failure, answer, found...)
	}

	_, err := printOutputs(ctx, p, program, found, (*calls.Call).Input)

	return err
}

var violationColumns = columns[strict.Violation]{
	{header: "VIOLATION", text: func(r strict.Violation) string { return r.ID }, id: true},
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
		forget  bool
		program *jq.Program
	)

	return verb{
		name: "violations", short: "List violations of the CSI spec by the CO (Touchstone only)",
		long: `List violations of the CO's part of the CSI spec, one row for each kind and object.
The driver checks for them with --strict only. docs/strict.md explains each kind.
Exit code 0: there are none, 1: there are some (with --jq: something is printed).`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&forget, "clear", false, "forget them instead")
			defineJQ(flags, &program)
		},
		run: func(ctx context.Context, s *session) error {
			switch {
			case forget && program != nil:
				return usage(errJQWithClear)
			case forget:
				return strict.Clear(ctx, s.Conn())
			}

			found, err := strict.List(ctx, s.Conn())
			count := len(found)

			if err != nil || program == nil {
				err = violationColumns.show(s.printer, err, found, found...)
			} else {
				count, err = printOutputs(ctx, s.printer, program, found, func(r strict.Violation) (any, error) { return jq.FromJSON(r) })
			}

			if err != nil || count == 0 {
				return err
			}

			return fmt.Errorf("%w: %d", errViolations, count)
		},
	}
}

// defineJQ defines the flag --jq. The program is nil if it is not given.
func defineJQ(flags *pflag.FlagSet, to **jq.Program) {
	flags.Var(&value{kind: "string", set: func(text string) (err error) {
		*to, err = jq.Parse(text)

		return err //nolint:wrapcheck // pflag adds the flag and its value
	}}, "jq", "print what this jq filter makes of each, instead, and leave out those of which it makes nothing, false or null")
}

// printOutputs prints what a jq program makes of each, a line for each output, and returns how many there are.
// One for which it fails is left out, unless it fails for each.
func printOutputs[T any](ctx context.Context, p *printer, program *jq.Program, of []T, input func(T) (any, error)) (count int, err error) {
	var failures []error

	for _, each := range of {
		given, err := input(each)
		if err != nil {
			return count, err
		}

		lines, err := program.Lines(ctx, given)

		switch {
		case errors.Is(err, jq.ErrLimit):
			return count, err
		case err != nil:
			failures = append(failures, err)
		}

		for _, line := range lines {
			if err := p.printLine(line); err != nil {
				return count, err
			}
		}

		count += len(lines)
	}

	if len(failures) > 0 && len(failures) == len(of) {
		return count, failures[0]
	}

	return count, ctx.Err()
}

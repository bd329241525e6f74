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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/calls"
	"github.com/touchstone-csi/touchstone/pkg/strict"
)

var (
	errNoCallLog = errors.New("the driver records no calls: start it with --call-log=ring, or with a file")
	errNoStrict  = errors.New("the driver does not check the CO: start it with --strict")
	errTooFew    = errors.New("not as many calls as wanted")
	errSince     = errors.New("must be a time (RFC 3339) or a duration, such as 5m")
)

// objectColumn has names and ids.
const objectColumn = "OBJECT"

// callFilter are the flags that select calls.
type callFilter struct {
	calls.Filter

	since string
}

func (f *callFilter) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Method, "method", "", "only calls of this RPC, a glob such as 'Node*Volume'")
	flags.StringVar(&f.Code, "code", "", "only calls with this status code, such as NOT_FOUND")
	flags.StringVar(&f.Object, "volume", "", "only calls about the volume, snapshot or group with this name or id")
	flags.StringVar(&f.since, "since", "", "only calls that began at this time or later, or within this duration, such as 5m")
	flags.Uint64Var(&f.SinceCall, "since-call", 0, "only calls with a greater number than this")
}

// filter returns the filter of the flags.
func (f *callFilter) filter() (calls.Filter, error) {
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

func newCallsCommand(given *settings) *cobra.Command {
	var (
		selected callFilter
		follow   bool
	)

	cmd := given.verb("calls", "List the calls that the driver has recorded (Touchstone only)", exactly(0),
		func(ctx context.Context, s *session) error {
			filter, err := selected.filter()
			if err != nil {
				return err
			}

			if follow {
				return s.followCalls(ctx, filter)
			}

			found, err := calls.NewClient(s.Conn()).List(ctx, filter)
			if err != nil {
				return explainUnserved(err, errNoCallLog)
			}

			return s.showCalls(found, found)
		})
	cmd.Long = `List the CSI calls that the driver has recorded, in the order in which they ended:
-o json has requests, responses, metadata and times. The driver records them with
--call-log only.`
	cmd.Example = `  touchstone ctl calls --method 'Node*' --volume data
  touchstone ctl calls --follow -o json | jq .request
  touchstone ctl calls wait --method NodeUnpublishVolume --volume data --timeout 30s`
	selected.register(cmd)
	// --watch of other commands prints a whole list again; this prints each call once.
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "then print each call as it ends, until interrupted; --timeout does not count")

	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		given.watch = follow

		return run(cmd, args)
	}

	cmd.AddCommand(newCallCountsCommand(given), newCallWaitCommand(given), newCallClearCommand(given))

	return cmd
}

func newCallCountsCommand(given *settings) *cobra.Command {
	return given.verb("counts", "Count the calls since the driver's start, by method and code", exactly(0),
		func(ctx context.Context, s *session) error {
			counts, err := calls.NewClient(s.Conn()).Counts(ctx)
			if err != nil {
				return explainUnserved(err, errNoCallLog)
			}

			table := &listing{header: []string{"METHOD", "CODE", "COUNT"}}
			for _, each := range counts {
				table.add(each.Method, []string{each.Method, each.Code, strconv.FormatUint(each.Count, 10)})
			}

			return s.list(counts, table)
		})
}

func newCallClearCommand(given *settings) *cobra.Command {
	return given.verb("clear", "Forget the recorded calls and their counts; a file keeps its lines", exactly(0),
		func(ctx context.Context, s *session) error {
			return explainUnserved(calls.NewClient(s.Conn()).Clear(ctx), errNoCallLog)
		})
}

func newCallWaitCommand(given *settings) *cobra.Command {
	var (
		selected callFilter
		wanted   calls.WaitRequest
	)

	cmd := given.verb("wait", "Wait until a number of calls have ended", exactly(0), func(ctx context.Context, s *session) error {
		filter, err := selected.filter()
		if err != nil {
			return err
		}

		wanted.Filter = filter

		// The driver ends the wait, so that its answer has the calls that there were.
		if deadline, limited := ctx.Deadline(); limited {
			wanted.Timeout = max(time.Until(deadline).Seconds(), time.Millisecond.Seconds())

			var cancel context.CancelFunc

			const margin = 10 * time.Second

			ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(margin))
			defer cancel()
		}

		result, err := calls.NewClient(s.Conn()).Wait(ctx, wanted)
		if err != nil {
			return explainUnserved(err, errNoCallLog)
		}

		if err := s.showCalls(result, result.Calls); err != nil {
			return err
		}

		if !result.Reached {
			return fmt.Errorf("%w: %d of %d within %s", errTooFew, len(result.Calls), max(wanted.Count, 1), given.timeout)
		}

		return nil
	})
	cmd.Long = `Wait until the driver has recorded --count calls, and print them. Calls that were
recorded before the command count too, so that a script cannot miss one between
its action and the wait; --since-call excludes those up to a call's number, --new
excludes all of them. Exit code 0: there are as many, 1: --timeout has passed, and
the calls that there were are printed.`
	cmd.Example = `  touchstone ctl calls wait --method NodeUnpublishVolume --count 1 --timeout 30s`
	selected.register(cmd)
	cmd.Flags().IntVar(&wanted.Count, "count", 1, "how many calls")
	cmd.Flags().BoolVar(&wanted.New, "new", false, "count only calls that end after the command has begun")

	return cmd
}

// explainUnserved replaces UNIMPLEMENTED by what is missing.
func explainUnserved(err, missing error) error {
	if status.Code(err) == codes.Unimplemented {
		return missing
	}

	return err
}

func (s *session) followCalls(ctx context.Context, filter calls.Filter) error {
	err := calls.NewClient(s.Conn()).Follow(ctx, calls.FollowRequest{Filter: filter}, func(each calls.Followed) error {
		if each.Missed > 0 {
			fmt.Fprintf(s.side, "%d calls are missing: they ended faster than they could be printed\n", each.Missed)
		}

		if each.Call == nil {
			return nil
		}

		return s.printCall(each.Call)
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // interrupted, which is how it ends
	}

	return explainUnserved(err, errNoCallLog)
}

// printCall prints a call on a line: as JSON for programs.
func (s *session) printCall(call *calls.Call) error {
	line := strings.Join(callRow(call), "  ")

	if s.structured() {
		encoded, err := json.Marshal(call)
		if err != nil {
			return fmt.Errorf("encode a call: %w", err)
		}

		line = string(encoded)
	} else {
		line = Printable(line)
	}

	if _, err := fmt.Fprintln(s.out, line); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

func (s *session) showCalls(answer any, found []*calls.Call) error {
	table := &listing{header: []string{"CALL", "STARTED", "METHOD", objectColumn, "CODE", "TOOK", "MESSAGE"}, wide: 1}
	for _, call := range found {
		table.add(strconv.FormatUint(call.Number, 10), callRow(call))
	}

	return s.list(answer, table)
}

func callRow(call *calls.Call) []string {
	object := ""
	if len(call.Objects) > 0 {
		object = call.Objects[0]
	}

	code := call.Code
	if call.CallerGone {
		code += " (caller gone)"
	}

	took := time.Duration(call.Took * float64(time.Second)).Round(time.Microsecond)

	return []string{
		strconv.FormatUint(call.Number, 10), call.Started.Format("15:04:05.000"), call.RPC(), orDash(object), code, took.String(),
		orDash(call.Message),
	}
}

func newViolationsCommand(given *settings) *cobra.Command {
	var forget bool

	cmd := given.verb("violations", "List violations of the CSI spec by the CO (Touchstone only)", exactly(0),
		func(ctx context.Context, s *session) error {
			if forget {
				return explainUnserved(strict.Clear(ctx, s.Conn()), errNoStrict)
			}

			found, err := strict.List(ctx, s.Conn())
			if err != nil {
				return explainUnserved(err, errNoStrict)
			}

			table := &listing{header: []string{"VIOLATION", objectColumn, "COUNT", "LAST", "METHOD", "SPEC", "DETAIL", "REMEDY"}, wide: 1}
			for _, each := range found {
				table.add(each.ID, []string{
					each.ID, each.Object, strconv.FormatUint(each.Count, 10), since(each.Last),
					each.Method[strings.LastIndexByte(each.Method, '/')+1:], strings.Join(each.Rows, " "), each.Detail, each.Remedy,
				})
			}

			return s.list(found, table)
		})
	cmd.Long = `List violations of the CO's part of the CSI spec, one row for each kind and object.
The driver checks for them with --strict only. docs/strict.md explains each kind.`
	cmd.Flags().BoolVar(&forget, "clear", false, "forget them instead")

	return cmd
}

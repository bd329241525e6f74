package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/internal/lab/faults"
)

func newFaultCommand(given *settings) *cobra.Command {
	return given.group("fault", "Fault rules, by which calls fail on purpose (--faults, --enable-faults)",
		faultAddVerb(), faultListVerb(), faultClearVerb(), faultLogVerb(), faultReleaseVerb())
}

// faults is the driver's service of fault rules.
func (d driver) faults() faults.Client { return faults.Client{Connection: d.Conn()} }

func faultAddVerb() verb {
	return verb{
		name: "add", arguments: []argument{{text: "FILE|-|RULE", isPath: true}},
		short: "Add the rules of a file, of standard input, or a rule as YAML",
		long: `Add fault rules, which act behind those that are active: the rules of a file, of
standard input (-), or one rule as YAML, such as

  touchstone ctl fault add '{match: {method: CreateVolume, calls: 1-3}, act: {lose: reset}}'

A mistake is refused with its line, and no rule is added then.`,
		run: func(ctx context.Context, s *session) error {
			document, err := readRules(os.Stdin, s.args[0])
			if err != nil {
				return usage(err)
			}

			names, err := s.faults().Add(ctx, document)
			if err != nil {
				return err
			}

			return s.showNames(names)
		},
	}
}

// readRules returns the document that the argument names or is.
func readRules(input io.Reader, argument string) (string, error) {
	if argument == "-" {
		text, err := io.ReadAll(input)
		if err != nil {
			return "", fmt.Errorf("read standard input: %w", err)
		}

		return string(text), nil
	}

	text, err := os.ReadFile(argument)

	switch {
	case err == nil:
		return string(text), nil
	case strings.Contains(argument, ":") && !errors.Is(err, fs.ErrPermission):
		return argument, nil
	default:
		return "", fmt.Errorf("read the rules: %w; a rule itself is YAML, such as {match: {method: Probe}, act: {unimplemented: true}}", err)
	}
}

// showNames prints names, a line each.
func (p *printer) showNames(names []string) error {
	rows := make([][]string, 0, len(names))
	for _, name := range names {
		rows = append(rows, []string{name})
	}

	return p.show(names, rows, names...)
}

var faultColumns = columns[faults.Status]{
	{header: nameColumn, text: func(r faults.Status) string { return r.Name }},
	{header: "AT", text: func(r faults.Status) string { return r.Method }},
	{header: "ACT", text: func(r faults.Status) string { return r.Act }},
	{header: "CALLS", text: func(r faults.Status) string { return strconv.Itoa(r.Calls) }},
	{header: "HITS", text: func(r faults.Status) string { return strconv.Itoa(r.Hits) }},
	{header: "HOLDING", text: func(r faults.Status) string { return strconv.Itoa(r.Holding) }},
	{header: "STATE", text: faultState},
	{header: "SOURCE", text: func(r faults.Status) string { return r.Source }, wide: true},
}

func faultState(rule faults.Status) string {
	switch {
	case rule.Ended:
		return "ended"
	case rule.Problem != "":
		return Printable(rule.Problem)
	default:
		return "active"
	}
}

func faultListVerb() verb {
	return verb{
		name: listName, aliases: []string{"ls"}, short: "List the active rules with their hits",
		run: func(ctx context.Context, s *session) error {
			listed, err := s.faults().List(ctx)
			if err != nil {
				return err
			}

			if listed.FileError != "" {
				fmt.Fprintln(s.side, "the file of rules is not applied:", Printable(listed.FileError))
			}

			rules := make([]string, len(listed.Rules))
			for i, each := range listed.Rules {
				rules[i] = each.Name
			}

			return s.show(listed, faultColumns.table(s.output, listed.Rules...), rules...)
		},
	}
}

func faultClearVerb() verb {
	return verb{
		name: "clear", arguments: []argument{{text: "[NAME]", optional: true}}, short: "Clear a rule, or all rules",
		run: func(ctx context.Context, s *session) error {
			names, err := s.faults().Clear(ctx, strings.Join(s.args, ""))
			if err != nil {
				return err
			}

			return s.showNames(names)
		},
	}
}

var hitColumns = columns[faults.Hit]{
	{header: "TIME", text: func(h faults.Hit) string { return h.At.Format(time.RFC3339) }},
	{header: "RULE", text: func(h faults.Hit) string { return h.Rule }},
	{header: "HIT", text: func(h faults.Hit) string { return strconv.Itoa(h.Number) }},
	{header: "AT", text: func(h faults.Hit) string { return h.Method }},
	{header: objectColumn, text: func(h faults.Hit) string { return h.Object }},
	{header: "ACT", text: func(h faults.Hit) string { return h.Act }},
}

func faultLogVerb() verb {
	return verb{
		name: "log", short: "Show the newest hits, the oldest first",
		run: func(ctx context.Context, s *session) error {
			hits, err := s.faults().Log(ctx)
			if err != nil {
				return err
			}

			return s.show(hits, hitColumns.table(s.output, hits...))
		},
	}
}

func faultReleaseVerb() verb {
	return verb{
		name: "release", arguments: []argument{{text: "HOLD"}}, short: "Release the calls that a rule's hold keeps",
		run: func(ctx context.Context, s *session) error {
			count, err := s.faults().Release(ctx, s.args[0])
			if err != nil {
				return err
			}

			return s.show(faults.Released{Calls: count}, [][]string{{strconv.Itoa(count) + " calls released"}})
		},
	}
}

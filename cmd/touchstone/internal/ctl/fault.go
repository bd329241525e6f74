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

	"github.com/touchstone-csi/touchstone/internal/lab/faults"
)

// faults is the driver's service of fault rules.
func (s *session) faults() faults.Client { return faults.Client{Connection: s.Conn()} }

// faultVerbs are those of `ctl fault`.
var faultVerbs = []verb{
	{
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

			return s.showNames(err, names)
		},
	},
	{
		name: listName, aliases: []string{"ls"}, short: "List the active rules with their hits",
		run: func(ctx context.Context, s *session) error {
			listed, err := s.faults().List(ctx)
			if listed.FileError != "" {
				fmt.Fprintln(s.side, "the file of rules is not applied:", Printable(listed.FileError))
			}

			return faultColumns.show(s.printer, err, listed, listed.Rules...)
		},
	},
	{
		name: "clear", arguments: []argument{{text: "[NAME]", optional: true}}, short: "Clear a rule, or all rules",
		run: func(ctx context.Context, s *session) error {
			names, err := s.faults().Clear(ctx, strings.Join(s.args, ""))

			return s.showNames(err, names)
		},
	},
	{
		name: "log", nameless: true, short: "Show the newest hits, the oldest first",
		run: func(ctx context.Context, s *session) error {
			hits, err := s.faults().Log(ctx)

			return hitColumns.show(s.printer, err, hits, hits...)
		},
	},
	{
		name: "release", arguments: []argument{{text: "HOLD"}}, nameless: true, short: "Release the calls that a rule's hold keeps",
		run: func(ctx context.Context, s *session) error {
			count, err := s.faults().Release(ctx, s.args[0])
			if err != nil {
				return err
			}

			return s.show(nil, faults.Released{Calls: count}, [][]string{{strconv.Itoa(count) + " calls released"}})
		},
	},
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
func (p *printer) showNames(failure error, names []string) error {
	if failure != nil {
		return failure
	}

	return p.show(nil, names, mapped(names, func(name string) []string { return []string{name} }), names...)
}

var faultColumns = columns[faults.Status]{
	{header: nameColumn, text: func(r faults.Status) string { return r.Name }, id: true},
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

var hitColumns = columns[faults.Hit]{
	{header: "TIME", text: func(h faults.Hit) string { return h.At.Format(time.RFC3339) }},
	{header: "RULE", text: func(h faults.Hit) string { return h.Rule }},
	{header: "HIT", text: func(h faults.Hit) string { return strconv.Itoa(h.Number) }},
	{header: "AT", text: func(h faults.Hit) string { return h.Method }},
	{header: objectColumn, text: func(h faults.Hit) string { return h.Object }},
	{header: "ACT", text: func(h faults.Hit) string { return h.Act }},
}

package ctl

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/operation/progress"
)

const (
	// terminalInterval is the time between two updates of a terminal's progress line.
	terminalInterval = 250 * time.Millisecond
	lineInterval     = "3s"
	clearLine        = "\r\x1b[K"
	percent          = 100
)

func (s *settings) defineProgress(flags *pflag.FlagSet) {
	flags.DurationVar(&s.progress, "progress", 0,
		"print a long copy's progress on stderr, a line each time (on a terminal it is always shown)")
	flags.Lookup("progress").NoOptDefVal = lineInterval
}

// The kinds of copies in the driver's answers to pkg/operation/progress.
const (
	kindSnapshot = "snapshot"
	kindGroup    = "group snapshot"
	kindRestore  = "restore"
	kindClone    = "clone"
)

// follow prints the progress of copies of one kind until it is stopped. Which copy is the
// command's own is unknown before its answer, since it may have joined an earlier one, so it
// prints all, each with its id. It stops at the driver's first error.
func (s *session) follow(ctx context.Context, kind string) (stop func()) {
	show := &display{out: s.side, terminal: isTerminal(s.side), every: s.progress, kind: kind}

	switch {
	case show.every > 0:
		show.terminal = false
	case show.terminal:
		show.every = terminalInterval
	default:
		return func() {}
	}

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		show.run(ctx, progress.NewClient(s.Conn()))
	}()

	return func() {
		cancel()
		<-ended
	}
}

// display prints progress: on one line that is overwritten, or on many lines.
type display struct {
	out      io.Writer
	terminal bool
	every    time.Duration
	kind     string
}

func (d *display) run(ctx context.Context, client *progress.Client) {
	ticks := time.NewTicker(d.every)
	defer ticks.Stop()

	defer func() {
		if d.terminal {
			fmt.Fprint(d.out, clearLine)
		}
	}()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}

		entries, err := client.List(ctx)
		if err != nil {
			return // Optional output: the command's own call reports errors.
		}

		d.print(entries)
	}
}

func (d *display) print(entries []progress.Entry) {
	var lines []string

	for _, entry := range entries {
		if entry.Kind == d.kind {
			lines = append(lines, Printable(progressLine(entry)))
		}
	}

	switch {
	case d.terminal:
		fmt.Fprint(d.out, clearLine+strings.Join(lines, ", "))
	case len(lines) > 0:
		fmt.Fprintln(d.out, strings.Join(lines, "\n"))
	}
}

func progressLine(entry progress.Entry) string {
	took := max(time.Since(entry.Started), time.Millisecond)
	pace := formatBytes(int64(float64(entry.Done)/took.Seconds())) + "/s"

	if entry.Total > 0 && entry.Done >= entry.Total {
		pace = "syncing to disk"
	}

	return fmt.Sprintf("%s of %s: %s, %s", entry.Kind, entry.Object, formatProgress(entry), pace)
}

func formatProgress(entry progress.Entry) string {
	if entry.Total <= 0 {
		return formatBytes(entry.Done)
	}

	return fmt.Sprintf("%s of %s (%d %%)", formatBytes(entry.Done), formatBytes(entry.Total),
		int64(percent*float64(entry.Done)/float64(entry.Total)))
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}

	_, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)

	return err == nil
}

var operationColumns = columns[progress.Entry]{
	{header: "KIND", text: func(e progress.Entry) string { return e.Kind }},
	{header: "OBJECT", text: func(e progress.Entry) string { return e.Object }},
	{header: "DONE", text: formatProgress},
	{header: "FOR", text: func(e progress.Entry) string { return time.Since(e.Started).Round(time.Second).String() }},
}

func operationsVerb() verb {
	return verb{
		name: "operations", short: "List running copies and their progress (Touchstone only)",
		run: func(ctx context.Context, s *session) error {
			entries, err := progress.NewClient(s.Conn()).List(ctx)
			if err != nil {
				return err
			}

			return s.show(answers{"operations": entries}, operationColumns.table(s.format, entries...))
		},
	}
}

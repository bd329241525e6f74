package ctl

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/touchstone-csi/touchstone/internal/operation/progress"
)

const (
	// terminalInterval is the time between two updates of a terminal's progress bars.
	terminalInterval = 250 * time.Millisecond
	lineInterval     = "3s"
	percent          = 100
)

func (s *settings) defineProgress(flags *pflag.FlagSet) {
	flags.DurationVar(&s.progress, "progress", 0,
		"print a long copy's progress on stderr, a line each time (on a terminal it is always shown)")
	flags.Lookup("progress").NoOptDefVal = lineInterval
}

// The kinds of copies in the driver's answers to internal/operation/progress.
const (
	kindSnapshot = "snapshot"
	kindGroup    = "group snapshot"
	kindRestore  = "restore"
	kindClone    = "clone"
)

// follow shows the progress of copies of one kind until it is stopped: as bars on a terminal, or
// as lines. Which copy is the command's own is unknown before its answer, since it may have joined
// an earlier one, so it shows all, each with its id. It stops at the driver's first error.
func (s *session) follow(ctx context.Context, kind string) (stop func()) {
	show, end, every := s.printProgress, func() {}, s.progress

	if every == 0 {
		if !isTerminal(s.side) {
			return end
		}

		bars := newBars(s.side)
		show, end, every = bars.show, bars.end, terminalInterval
	}

	ctx, cancel := context.WithCancel(ctx)

	var running sync.WaitGroup

	running.Go(func() {
		ticks := time.NewTicker(every)
		defer ticks.Stop()

		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}

			entries, err := progress.NewClient(s.Conn()).List(ctx)
			if err != nil {
				return // Optional output: the command's own call reports errors.
			}

			var copies []work

			for _, entry := range entries {
				if entry.Kind == kind {
					copies = append(copies, copyOf(entry))
				}
			}

			show(copies...)
		}
	})

	return func() {
		cancel()
		running.Wait()
		end()
	}
}

// showBar shows one work on a terminal until it is stopped.
func (s *session) showBar(one work) (stop func()) {
	if !isTerminal(s.side) {
		return func() {}
	}

	bars := newBars(s.side)
	bars.show(one)

	return bars.end
}

func (s *session) printProgress(all ...work) {
	for _, each := range all {
		fmt.Fprintln(s.side, Printable(each.title+": "+each.text()))
	}
}

func copyOf(entry progress.Entry) work {
	return work{entry.Kind + " of " + entry.Object, entry.Done, entry.Total, func() string { return formatPace(entry) }}
}

// work is what a progress bar shows.
type work struct {
	title       string
	done, total int64
	// text stands beside the bar. It is called for each update.
	text func() string
}

// bars are progress bars on a terminal.
type bars struct {
	container *mpb.Progress
	// shown are the bars by their title.
	shown map[string]*bar
}

type bar struct {
	*mpb.Bar

	now atomic.Pointer[work]
}

func newBars(terminal io.Writer) *bars {
	return &bars{
		container: mpb.New(mpb.WithOutput(terminal), mpb.WithRefreshRate(terminalInterval)),
		shown:     map[string]*bar{},
	}
}

// show shows a bar for each work, and removes the others.
func (b *bars) show(all ...work) {
	ended := maps.Clone(b.shown)

	for _, each := range all {
		delete(ended, each.title)

		shown, known := b.shown[each.title]
		if !known {
			shown = &bar{}
			shown.now.Store(&each)
			// Without a total, a bar does not end before it is removed.
			shown.Bar = b.container.AddBar(-1,
				mpb.PrependDecorators(decor.Name(Printable(each.title))),
				mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return Printable(shown.now.Load().text()) })))
			b.shown[each.title] = shown
		}

		shown.now.Store(&each)
		shown.SetTotal(max(each.total, 0), false)
		shown.SetCurrent(each.done)
	}

	for title, each := range ended {
		each.Abort(true)
		delete(b.shown, title)
	}
}

// end removes all bars from the terminal.
func (b *bars) end() {
	b.show()
	b.container.Wait()
}

// formatPace says how far a copy is, and how fast.
func formatPace(entry progress.Entry) string {
	if entry.Total > 0 && entry.Done >= entry.Total {
		return formatProgress(entry) + ", syncing to disk"
	}

	took := max(time.Since(entry.Started), time.Millisecond)

	return formatProgress(entry) + ", " + formatBytes(int64(float64(entry.Done)/took.Seconds())) + "/s"
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

	return ok && term.IsTerminal(int(file.Fd()))
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

			return s.show(answers{"operations": entries}, operationColumns.table(s.output, entries...))
		},
	}
}

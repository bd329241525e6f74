package ctl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// copying makes a call in which the driver may copy for long, and shows the copies of its kind meanwhile.
// If it ends before the copy does, its error has the commands for the copy.
func copying[A any](ctx context.Context, s *session, kind, name string, call func(context.Context) (A, error)) (A, error) {
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer release()

	stop := s.follow(ctx, func(ctx context.Context) ([]progress.Entry, error) {
		entries, err := s.copies(ctx, nil)

		return slices.DeleteFunc(entries, func(entry progress.Entry) bool { return entry.Kind != kind }), err
	})
	answer, err := call(ctx)

	stop()

	// The driver may notice the deadline before this process does.
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled || err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w%s", err, s.continuing(ctx, name))
	}

	return answer, err
}

// continuing returns the commands for a copy that the driver continues without its caller, or nothing if it
// copies nothing of this name.
func (d driver) continuing(ctx context.Context, name string) string {
	const limit = 2 * time.Second

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()

	entries, err := progress.NewClient(d.Conn()).List(ctx)
	if err != nil || !slices.ContainsFunc(entries, func(entry progress.Entry) bool { return entry.Name == name }) {
		return ""
	}

	return fmt.Sprintf("; the driver continues to copy: touchstone ctl operation list shows how far it is, "+
		"operation wait %[1]s waits for it, operation cancel %[1]s ends it", name)
}

// follow shows the progress of the listed copies until it is stopped: as bars on a terminal, or as lines. A
// call may have joined an earlier copy. It stops at the first error.
func (s *session) follow(ctx context.Context, list func(context.Context) ([]progress.Entry, error)) (stop func()) {
	end, every := func() {}, s.progress
	show := func(all ...work) {
		for _, each := range all {
			fmt.Fprintln(s.side, Printable(each.title+": "+each.text()))
		}
	}

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

			entries, err := list(ctx)
			if err != nil {
				return // Optional output: the command's own call reports errors.
			}

			copies := make([]work, len(entries))
			for i, entry := range entries {
				copies[i] = copyOf(entry)
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
func showBar(terminal io.Writer, one work) (stop func()) {
	if !isTerminal(terminal) {
		return func() {}
	}

	bars := newBars(terminal)
	bars.show(one)

	return bars.end
}

func copyOf(entry progress.Entry) work {
	return work{
		id: entry.Object, title: entry.Kind + " of " + copyName(entry), done: entry.Done, total: entry.Total,
		text: func() string { return formatPace(entry) },
	}
}

// copyName returns the name of what a copy becomes.
func copyName(entry progress.Entry) string { return cmp.Or(entry.Name, entry.Object) }

// work is what a progress bar shows.
type work struct {
	id, title   string
	done, total int64
	// text stands beside the bar. It is called for each update.
	text func() string
}

// bars are progress bars on a terminal.
type bars struct {
	container *mpb.Progress
	// shown are the bars by the id of their work.
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
		delete(ended, each.id)

		shown, known := b.shown[each.id]
		if !known {
			shown = &bar{}
			shown.now.Store(&each)
			// Without a total, a bar does not end before it is removed.
			shown.Bar = b.container.AddBar(-1,
				mpb.PrependDecorators(decor.Name(shorten(Printable(each.title)))),
				mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return Printable(shown.now.Load().text()) })))
			b.shown[each.id] = shown
		}

		shown.now.Store(&each)
		shown.SetTotal(max(each.total, 0), false)
		shown.SetCurrent(each.done)
	}

	for id, each := range ended {
		each.Abort(true)
		delete(b.shown, id)
	}
}

// shorten truncates a title so that a bar fits beside it.
func shorten(title string) string {
	const most = 32

	if runes := []rune(title); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}

	return title
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

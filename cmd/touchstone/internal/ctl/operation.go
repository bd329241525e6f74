package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

const (
	// terminalInterval is the time between two updates of a terminal's progress bars.
	terminalInterval = 250 * time.Millisecond
	lineInterval     = "3s"
	percent          = 100

	// The kinds of copies in the driver's answers to internal/operation/progress.
	kindSnapshot = "snapshot"
	kindGroup    = "group snapshot"
	kindRestore  = "restore"
	kindClone    = "clone"
)

var (
	errNoCopy     = errors.New("no such copy is running")
	errCopyFailed = errors.New("the copy has failed, or was cancelled; the driver's log says why")
)

var operationColumns = columns[progress.Entry]{
	{header: "KIND", text: func(e progress.Entry) string { return e.Kind }},
	{header: nameColumn, text: copyName},
	{header: "DONE", text: formatProgress},
	{header: "FOR", text: func(e progress.Entry) string { return time.Since(e.Started).Round(time.Second).String() }},
	{header: "ID", text: func(e progress.Entry) string { return e.Object }, wide: true, id: true},
}

// operationVerbs are those of `ctl operation`.
var operationVerbs = []verb{
	{
		name: listName, aliases: []string{"ls"}, short: "List running copies and their progress",
		run: func(ctx context.Context, s *session) error {
			entries, err := copies(ctx, s.Client, nil)
			s.copyIDs(entries)

			return operationColumns.show(s.printer, err, answers{"operations": entries}, entries...)
		},
	},
	{
		name: "wait", arguments: []argument{{text: "[NAME…]", repeated: true, optional: true}}, progress: true,
		short: "Wait until copies have ended: those of these names or ids, or all",
		long: `Wait until copies have ended: those of these names or ids, or all that are running.
Exit code 0: each of them is complete, 1: one has failed, or was cancelled, or --timeout
has passed.`,
		example: `  touchstone ctl operation wait restored --timeout 0`,
		run: func(ctx context.Context, s *session) error {
			waited, err := copies(ctx, s.Client, s.args)
			if err != nil {
				return err
			}

			ids := s.copyIDs(waited)

			list := func(ctx context.Context) ([]progress.Entry, error) { return copies(ctx, s.Client, ids) }
			if err := s.following(ctx, list, func(ctx context.Context) error { return awaitEnd(ctx, s.Client, waited, ids) }); err != nil {
				return err
			}

			return s.showEnded(ctx, waited)
		},
	},
	{
		name: "cancel", arguments: []argument{{text: "NAME…", repeated: true}},
		short: "End running copies, by the name or id of what they make, and leave nothing of them",
		long: `End running copies, by the name or id of the volume, snapshot or group that they make,
and leave nothing of them. The call that waits for one ends with ABORTED; an orchestrator
may repeat it, and so begin the copy again.`,
		run: func(ctx context.Context, s *session) error {
			cancelled, rows := []progress.Entry{}, [][]string{}
			refused := forEach(s.args, func(given string) error {
				ended, err := cancelCopies(ctx, s.Client, given)
				if err != nil {
					return err
				}

				cancelled, rows = append(cancelled, ended...), append(rows, []string{"cancelled the " + ended[0].Kind + " of " + given})

				return nil
			})

			return s.show(refused, answers{"cancelled": cancelled}, rows, s.copyIDs(cancelled)...)
		},
	},
}

// copies returns the copies that are running: those of which the name or id is given, or all.
func copies(ctx context.Context, co *csiclient.Client, given []string) ([]progress.Entry, error) {
	entries, err := progress.NewClient(co.Conn()).List(ctx)
	if err != nil {
		return nil, err
	}

	return slices.DeleteFunc(append([]progress.Entry{}, entries...), func(entry progress.Entry) bool {
		return len(given) > 0 && !slices.Contains(given, entry.Name) && !slices.Contains(given, entry.Object)
	}), nil
}

// copyIDs returns the ids of what copies become, whose names the printer knows from then on.
func (p *printer) copyIDs(entries []progress.Entry) []string {
	return mapped(entries, func(each progress.Entry) string {
		p.names.add(each.Object, each.Name)

		return each.Object
	})
}

// awaitEnd returns when none of the copies is running.
func awaitEnd(ctx context.Context, co *csiclient.Client, running []progress.Entry, ids []string) error {
	for len(running) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of %s: %w%s", running[0].Kind, copyName(running[0]), ctx.Err(), continuing(ctx, co, running[0].Name))
		case <-time.After(terminalInterval):
		}

		now, err := copies(ctx, co, ids)

		switch {
		case err == nil:
			running = now
		case status.Code(err) != codes.DeadlineExceeded && status.Code(err) != codes.Canceled: // that is said above
			return err
		}
	}

	return nil
}

// showEnded shows what copies have become. A name of the arguments may be that of an earlier one.
func (s *session) showEnded(ctx context.Context, ended []progress.Entry) error {
	if err := s.learn(ctx, names.Volume, names.Snapshot, names.Group); err != nil {
		return err
	}

	ids := s.copyIDs(ended)

	for _, given := range s.args {
		if id := s.names.id(given); id == "" {
			return fmt.Errorf("%s: %w", given, errNoCopy)
		} else if !slices.Contains(ids, id) && !slices.ContainsFunc(ended, func(e progress.Entry) bool { return e.Name == given }) {
			ids = append(ids, id)
		}
	}

	complete, rows := []string{}, [][]string{}
	failures := mapped(ids, func(id string) error {
		if err := s.checkComplete(ctx, id); err != nil {
			return fmt.Errorf("%s: %w", s.names.of(id), err)
		}

		complete, rows = append(complete, id), append(rows, []string{s.names.of(id) + " is complete"})

		return nil
	})

	return s.show(errors.Join(failures...), answers{"complete": complete}, rows, complete...)
}

// checkComplete returns an error unless a volume, a group, or a snapshot that is ready, has the id.
func (s *session) checkComplete(ctx context.Context, id string) error {
	// Only those that are complete are listed.
	volumes, known, failure := s.objects(ctx, names.Volume)
	groups, _, err := s.objects(ctx, names.Group)
	isListed := slices.ContainsFunc(slices.Concat(volumes, groups), func(o names.Object) bool { return o.ID == id })

	if err := cmp.Or(failure, err); err != nil || isListed {
		return err
	}

	snapshot, err := findSnapshot(ctx, s.Client, id)

	switch {
	case known && status.Code(err) == codes.NotFound, err == nil && !snapshot.GetReadyToUse():
		return errCopyFailed
	default:
		return err
	}
}

// cancelCopies cancels the copies of a name or id. A snapshot that a CO knows already is deleted, too.
func cancelCopies(ctx context.Context, co *csiclient.Client, given string) ([]progress.Entry, error) {
	ended, err := progress.NewClient(co.Conn()).Cancel(ctx, given)
	if err != nil {
		return nil, err
	}

	if len(ended) == 0 {
		return nil, errNoCopy
	}

	for _, each := range ended {
		if each.Kind != kindSnapshot {
			continue
		}

		if _, err := co.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: each.Object}); err != nil {
			return nil, err
		}
	}

	return ended, nil
}

// copying makes a call in which the driver may copy for long, and shows the copies of its kind meanwhile.
// If it ends before the copy does, its error has the commands for the copy.
func copying[A any](ctx context.Context, s *session, kind, name string, call func(context.Context) (A, error)) (answer A, err error) {
	list := func(ctx context.Context) ([]progress.Entry, error) {
		entries, err := copies(ctx, s.Client, nil)

		return slices.DeleteFunc(entries, func(entry progress.Entry) bool { return entry.Kind != kind }), err
	}

	err = s.following(ctx, list, func(ctx context.Context) (err error) {
		answer, err = call(ctx)

		// The driver may notice the deadline before this process does.
		if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled || err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w%s", err, continuing(ctx, s.Client, name))
		}

		return err
	})

	return answer, err
}

// continuing returns the commands for a copy that the driver continues without its caller, or nothing if it
// copies nothing of this name.
func continuing(ctx context.Context, co *csiclient.Client, name string) string {
	const limit = 2 * time.Second

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()

	entries, err := progress.NewClient(co.Conn()).List(ctx)
	if err != nil || !slices.ContainsFunc(entries, func(entry progress.Entry) bool { return entry.Name == name }) {
		return ""
	}

	return fmt.Sprintf("; the driver continues to copy: touchstone ctl operation list shows how far it is, "+
		"operation wait %[1]s waits for it, operation cancel %[1]s ends it", name)
}

// following makes a call, which Ctrl-C cancels, and meanwhile shows the progress of the listed copies: as bars on a
// terminal, or as lines. The call may have joined an earlier copy. The progress stops at the first error.
func (s *session) following(
	ctx context.Context, list func(context.Context) ([]progress.Entry, error), call func(context.Context) error,
) error {
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer release()

	every := s.progress
	show := func(all ...work) {
		for _, each := range all {
			fmt.Fprintln(s.side, Printable(each.title+": "+each.text(each.done, each.total)))
		}
	}

	if every == 0 {
		if !isTerminal(s.side) {
			return call(ctx)
		}

		bars := newBars(s.side)
		defer bars.end()

		show, every = bars.show, terminalInterval
	}

	polling, cancel := context.WithCancel(ctx)

	var running sync.WaitGroup

	running.Go(func() {
		// Optional output: the call reports errors.
		_ = wait.PollUntilContextCancel(polling, every, false, func(ctx context.Context) (bool, error) {
			entries, err := list(ctx)
			if err != nil {
				return false, err
			}

			show(mapped(entries, copyOf)...)

			return false, nil
		})
	})

	defer running.Wait()
	defer cancel()

	return call(ctx)
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
	return work{entry.Object, entry.Kind + " of " + copyName(entry), entry.Done, entry.Total, func(done, total int64) string {
		entry.Done, entry.Total = done, total

		return formatPace(entry)
	}}
}

// copyName returns the name of what a copy becomes.
func copyName(entry progress.Entry) string { return cmp.Or(entry.Name, entry.Object) }

// work is what a progress bar shows.
type work struct {
	id, title   string
	done, total int64
	// text stands beside the bar. It is called for each update.
	text func(done, total int64) string
}

// bars are progress bars on a terminal.
type bars struct {
	*mpb.Progress

	// shown are the bars by the id of their work.
	shown map[string]*mpb.Bar
}

func newBars(terminal io.Writer) *bars {
	return &bars{mpb.New(mpb.WithOutput(terminal), mpb.WithRefreshRate(terminalInterval)), map[string]*mpb.Bar{}}
}

// show shows a bar for each work, and removes the others.
func (b *bars) show(all ...work) {
	ended := maps.Clone(b.shown)

	for _, each := range all {
		delete(ended, each.id)

		shown := b.shown[each.id]
		if shown == nil {
			// Without a total, a bar does not end before it is removed.
			shown = b.AddBar(-1,
				mpb.PrependDecorators(decor.Name(shorten(Printable(each.title)))),
				mpb.AppendDecorators(decor.Any(func(now decor.Statistics) string { return Printable(each.text(now.Current, now.Total)) })))
			b.shown[each.id] = shown
		}

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
	b.Wait()
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

package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
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
	{header: "ID", text: func(e progress.Entry) string { return e.Object }, wide: true},
}

func operationListVerb() verb {
	return verb{
		name: listName, aliases: []string{"ls"}, short: "List running copies and their progress",
		run: func(ctx context.Context, s *session) error {
			entries, err := s.copies(ctx, nil)
			if err != nil {
				return err
			}

			return s.show(answers{"operations": entries}, operationColumns.table(s.output, entries...), s.copyIDs(entries)...)
		},
	}
}

// copies returns the copies that are running: those of which the name or id is given, or all.
func (d driver) copies(ctx context.Context, given []string) ([]progress.Entry, error) {
	entries, err := progress.NewClient(d.Conn()).List(ctx)
	if err != nil {
		return nil, err
	}

	return slices.DeleteFunc(append([]progress.Entry{}, entries...), func(entry progress.Entry) bool {
		return len(given) > 0 && !slices.Contains(given, entry.Name) && !slices.Contains(given, entry.Object)
	}), nil
}

// copyIDs returns the ids of what copies become, whose names the printer knows from then on.
func (p *printer) copyIDs(entries []progress.Entry) []string {
	ids := make([]string, len(entries))
	for i, each := range entries {
		ids[i] = each.Object
		p.names.add(each.Object, each.Name)
	}

	return ids
}

func operationWaitVerb() verb {
	return verb{
		name: "wait", arguments: []argument{{text: "[NAME…]", repeated: true, optional: true}}, progress: true,
		short: "Wait until copies have ended: those of these names or ids, or all",
		long: `Wait until copies have ended: those of these names or ids, or all that are running.
Exit code 0: each of them is complete, 1: one has failed, or was cancelled, or --timeout
has passed.`,
		example: `  touchstone ctl operation wait restored --timeout 0`,
		run: func(ctx context.Context, s *session) error {
			waited, err := s.copies(ctx, s.args)
			if err != nil {
				return err
			}

			ids := s.copyIDs(waited)

			stop := s.follow(ctx, func(ctx context.Context) ([]progress.Entry, error) { return s.copies(ctx, ids) })
			err = s.awaitEnd(ctx, waited, ids)

			stop()

			if err != nil {
				return err
			}

			return s.showEnded(ctx, waited)
		},
	}
}

// awaitEnd returns when none of the copies is running.
func (d driver) awaitEnd(ctx context.Context, running []progress.Entry, ids []string) error {
	for len(running) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of %s: %w%s", running[0].Kind, copyName(running[0]), ctx.Err(), d.continuing(ctx, running[0].Name))
		case <-time.After(terminalInterval):
		}

		now, err := d.copies(ctx, ids)

		switch {
		case err == nil:
			running = now
		case status.Code(err) != codes.DeadlineExceeded: // that is said above
			return err
		}
	}

	return nil
}

// showEnded shows what copies have become. A name of the arguments may be that of an earlier one.
func (s *session) showEnded(ctx context.Context, ended []progress.Entry) error {
	if err := s.learn(ctx, names.Volume, names.Snapshot); err != nil {
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

	var failures []error

	complete, rows := []string{}, [][]string{}

	for _, id := range ids {
		if err := s.checkComplete(ctx, id); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.names.of(id), err))

			continue
		}

		complete = append(complete, id)
		rows = append(rows, []string{s.names.of(id) + " is complete"})
	}

	return errors.Join(append(failures, s.show(answers{"complete": complete}, rows, complete...))...)
}

// checkComplete returns an error unless a volume, or a snapshot that is ready, has the id.
func (s *session) checkComplete(ctx context.Context, id string) error {
	volumes, known, err := s.objects(ctx, names.Volume)
	if err != nil || slices.ContainsFunc(volumes, func(o names.Object) bool { return o.ID == id }) {
		return err
	}

	snapshot, err := s.snapshot(ctx, id)

	switch {
	case known && status.Code(err) == codes.NotFound, err == nil && !snapshot.GetReadyToUse():
		return errCopyFailed
	default:
		return err
	}
}

func operationCancelVerb() verb {
	return verb{
		name: "cancel", arguments: []argument{{text: "NAME…", repeated: true}},
		short: "End running copies, by the name or id of what they make, and leave nothing of them",
		long: `End running copies, by the name or id of the volume, snapshot or group that they make,
and leave nothing of them. The call that waits for one ends with ABORTED; an orchestrator
may repeat it, and so begin the copy again.`,
		run: func(ctx context.Context, s *session) error {
			var (
				cancelled = []progress.Entry{}
				rows      [][]string
				refused   []error
			)

			for _, given := range s.args {
				ended, err := s.cancelCopies(ctx, given)
				if err != nil {
					refused = append(refused, fmt.Errorf("%s: %w", given, err))

					continue
				}

				cancelled = append(cancelled, ended...)
				rows = append(rows, []string{"cancelled the " + ended[0].Kind + " of " + given})
			}

			return errors.Join(append(refused, s.show(answers{"cancelled": cancelled}, rows, s.copyIDs(cancelled)...))...)
		},
	}
}

// cancelCopies cancels the copies of a name or id. A snapshot that a CO knows already is deleted, too.
func (d driver) cancelCopies(ctx context.Context, given string) ([]progress.Entry, error) {
	ended, err := progress.NewClient(d.Conn()).Cancel(ctx, given)
	if err == nil && len(ended) == 0 {
		err = errNoCopy
	}

	for _, each := range ended {
		if each.Kind == kindSnapshot && err == nil {
			_, err = d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: each.Object})
		}
	}

	return ended, err
}

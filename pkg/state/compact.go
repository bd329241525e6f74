package state

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// setThreshold decides when the journal is folded into the snapshot. Half the
// snapshot's size keeps the cost per change constant, whatever the number of
// records. The caller holds the token.
func (s *Store) setThreshold() {
	s.compactAt = max(s.options.CompactAbove, s.snapshotBytes/2)

	if s.previous {
		// An interrupted compaction is completed first.
		s.compactAt = 0
	}
}

// compactIfLarge starts a compaction in the background when it is due. The
// caller holds the token.
func (s *Store) compactIfLarge() {
	if s.options.CompactAbove < 0 || s.journal.end < s.compactAt || s.Err() != nil || s.stopped.Err() != nil {
		return
	}

	select {
	case s.compacting <- struct{}{}:
	default:
		return
	}

	s.background.Go(func() {
		defer func() { <-s.compacting }()

		err := s.compact(s.stopped)
		if err != nil && s.stopped.Err() == nil {
			s.options.Log.Warn("state was not compacted; nothing is lost and it is tried again later", "dir", s.dir, "error", err)
		}
	})
}

// Compact folds the journal into a new snapshot, as happens by itself when the
// journal has grown large. Updates wait for a moment that does not depend on
// the number of records; reads don't wait. Its failure loses nothing.
func (s *Store) Compact(ctx context.Context) error {
	select {
	case s.compacting <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("compact state: %w", ctx.Err())
	}

	defer func() { <-s.compacting }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)() //nolint:contextcheck // Close ends it as well

	return s.compact(ctx)
}

// compact writes a snapshot. The caller holds compacting.
//
// The order of steps is what makes a crash between any two of them harmless:
// the journal is set aside under another name, a new one replaces it, and
// only when a snapshot with all that the old one holds is durable under its own
// name is the old one removed. Transactions that are in a journal and in the
// snapshot as well are skipped by their sequence number.
func (s *Store) compact(ctx context.Context) error {
	sequence, all, err := s.rotate()
	if err != nil {
		return err
	}

	size, renamed, err := writeSnapshot(ctx, s.options.FS, s.dir, sequence, all)

	s.token <- struct{}{}
	defer func() { <-s.token }()

	if err != nil {
		// Trying again at once would fail again: when the journal has doubled.
		s.compactAt = 2*s.journal.end + journalChunk

		if renamed {
			s.fail(err)
		}

		return err
	}

	s.snapshotBytes = size

	err = removeIfThere(s.options.FS, filepath.Join(s.dir, previousName))
	if err != nil {
		s.compactAt = 2*s.journal.end + journalChunk

		return err
	}

	s.previous = false
	s.setThreshold()

	return nil
}

// rotate sets the journal aside and returns all records as they are at its end.
// If one is set aside already, that and a part of the present one go into the
// snapshot.
func (s *Store) rotate() (uint64, []namedFrozen, error) {
	s.token <- struct{}{}
	defer func() { <-s.token }()

	err := s.Err()
	if err == nil && s.journal == nil {
		err = ErrNotOpen
	}

	if err != nil {
		return 0, nil, err
	}

	if !s.previous {
		err = s.switchJournal()
		if err != nil {
			s.compactAt = 2*s.journal.end + journalChunk

			return 0, nil, err
		}
	}

	return s.durable, s.frozen(), nil
}

// switchJournal replaces the journal by an empty one. The caller holds the token.
func (s *Store) switchJournal() error {
	files := s.options.FS
	current := filepath.Join(s.dir, journalName)
	draft := filepath.Join(s.dir, journalDraft)

	next, err := draftJournal(files, draft, s.durable)
	if err != nil {
		return errors.Join(err, removeIfThere(files, draft))
	}

	err = files.Rename(current, filepath.Join(s.dir, previousName))
	if errors.Is(err, unix.ENOSPC) {
		return errors.Join(fmt.Errorf("switch journals: %w", err), next.file.Close(), removeIfThere(files, draft))
	}

	if err == nil {
		err = files.Rename(draft, current)
	}

	if err == nil {
		err = files.SyncDir(s.dir)
	}

	if err != nil {
		// Which names are on disk is unknown now, and so is where an
		// acknowledged line would be found.
		s.fail(err)

		return errors.Join(fmt.Errorf("switch journals: %w", err), next.file.Close())
	}

	old := s.journal.file
	s.journal = next
	s.previous = true

	err = old.Close()
	if err != nil {
		s.options.Log.Warn("closing the journal that was set aside", "dir", s.dir, "error", err)
	}

	return nil
}

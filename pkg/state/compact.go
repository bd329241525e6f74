package state

import (
	"context"
	"errors"
	"fmt"
)

// setThreshold decides at which size the journal is compacted. Half the base's size keeps the cost
// per change constant, whatever the number of records. The caller holds the token.
func (s *Store) setThreshold() {
	s.compactAt = s.journal.base + max(s.options.CompactAbove, s.journal.base/2)
}

// compactIfLarge starts a compaction in the background when it is due. The caller holds the token.
func (s *Store) compactIfLarge() {
	if s.options.CompactAbove < 0 || s.journal.end < s.compactAt || s.stopped.Err() != nil {
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

// Compact replaces the journal by one whose base has all records as they are now, as happens by
// itself when the journal has grown large. Updates wait for a moment that does not depend on the
// number of records; reads don't wait. Its failure loses nothing.
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

// compact writes a new journal beside the present one, to which changes are appended meanwhile, and
// copies these. Only for the last of them, a sync and the rename do Updates wait. Until the rename
// a crash leaves the present journal, and the new one contains the same from then on. The caller
// holds compacting.
func (s *Store) compact(ctx context.Context) error {
	sequence, all, from, err := s.freeze()
	if err != nil {
		return err
	}
	next, err := draftJournal(ctx, s.options.FS, s.dir, sequence, all)
	if err == nil {
		err = s.catchUp(next, &from)
	}
	s.token <- struct{}{}
	defer func() { <-s.token }()
	if err == nil {
		err = s.switchTo(next, from)
	}
	if err != nil {
		// Another attempt at once would fail as well.
		s.compactAt = 2*s.journal.end - s.journal.base + journalChunk
		return fmt.Errorf("compact state: %w", err)
	}
	s.setThreshold()
	return nil
}

// freeze returns all durable records, the last change that they contain, and where in the journal
// that ends.
func (s *Store) freeze() (sequence uint64, all []version, end int64, err error) {
	s.token <- struct{}{}
	defer func() { <-s.token }()
	if s.journal == nil {
		return 0, nil, 0, ErrNotOpen
	}
	return s.durable, s.versions(), s.journal.end, nil
}

// catchUp copies what was appended to the journal while the base of next was written, so that
// little is left for switchTo.
func (s *Store) catchUp(next *journal, from *int64) error {
	s.token <- struct{}{}
	// Up to its end a journal does not change, and only compactions replace it.
	present := *s.journal
	<-s.token
	err := next.copyFrom(&present, *from, present.end)
	if err == nil {
		err = next.file.Sync()
	}
	if err != nil {
		return errors.Join(err, next.discard(s.options.FS, s.dir))
	}
	*from = present.end
	return nil
}

// switchTo completes next and replaces the journal by it. The caller holds the token.
func (s *Store) switchTo(next *journal, from int64) error {
	err := s.Err()
	if err == nil {
		err = next.copyFrom(s.journal, from, s.journal.end)
	}
	if err == nil {
		next.closed = next.end == next.base
		err = next.install(s.options.FS, s.dir)
	}
	switch {
	case errors.Is(err, errUnknownName):
		s.fail(err)
		return errors.Join(err, next.file.Close())
	case err != nil:
		return errors.Join(err, next.discard(s.options.FS, s.dir))
	}
	previous := s.journal
	s.journal = next
	err = previous.file.Close()
	if err != nil {
		s.options.Log.Warn("cannot close the journal that was replaced", "dir", s.dir, "error", err)
	}
	return nil
}

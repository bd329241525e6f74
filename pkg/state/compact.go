package state

import (
	"context"
	"errors"
	"fmt"
)

// setThreshold decides at which size the journal is compacted. Half the base's size keeps the cost
// per change constant, whatever the number of records. The caller holds the token.
func (c *committer) setThreshold() {
	c.compactAt = c.journal.base + max(c.options.CompactAbove, c.journal.base/2)
}

// compactIfLarge starts a compaction in the background when it is due. The caller holds the token.
func (c *committer) compactIfLarge() {
	if c.options.CompactAbove < 0 || c.journal.end < c.compactAt || c.stopped.Err() != nil {
		return
	}
	select {
	case c.compacting <- struct{}{}:
	default:
		return
	}
	c.background.Go(func() {
		defer func() { <-c.compacting }()
		if err := c.compact(c.stopped); err != nil && c.stopped.Err() == nil {
			c.options.Log.Warn("state was not compacted; nothing is lost and it is tried again later", "dir", c.dir, "error", err)
		}
	})
}

// Compact replaces the journal by one whose base has all records as they are now, as happens by
// itself when the journal has grown large. Updates wait for a moment that does not depend on the
// number of records; reads don't wait. Its failure loses nothing.
func (s *Store) Compact(ctx context.Context) error {
	c := s.committer
	select {
	case c.compacting <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("compact state: %w", ctx.Err())
	}
	defer func() { <-c.compacting }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.stopped, cancel)() //nolint:contextcheck // Close ends it as well
	return c.compact(ctx)
}

// compact writes a new journal beside the present one, to which changes are appended meanwhile, and
// copies these. Only for the last of them, a sync and the rename do Updates wait. Until the rename
// a crash leaves the present journal, and the new one contains the same from then on. The caller
// holds compacting.
func (c *committer) compact(ctx context.Context) error {
	sequence, all, from, err := c.freeze()
	if err != nil {
		return err
	}
	next, err := draftJournal(ctx, c.options.FS, c.dir, sequence, all)
	if err == nil {
		err = c.catchUp(next, &from)
	}
	c.token <- struct{}{}
	defer func() { <-c.token }()
	if err == nil {
		err = c.switchTo(next, from)
	}
	if err != nil {
		// Another attempt at once would fail as well.
		c.compactAt = 2*c.journal.end - c.journal.base
		return fmt.Errorf("compact state: %w", err)
	}
	c.setThreshold()
	return nil
}

// freeze returns all written records, the last change that they contain, and where in the journal
// that ends.
func (c *committer) freeze() (sequence uint64, all []version, end int64, err error) {
	c.token <- struct{}{}
	defer func() { <-c.token }()
	if c.journal == nil {
		return 0, nil, 0, ErrNotOpen
	}
	return c.written, c.writer.versions(), c.journal.end, nil
}

// catchUp copies what was appended to the journal while the base of next was written, so that
// little is left for switchTo.
func (c *committer) catchUp(next *journal, from *int64) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, next.discard(c.options.FS, c.dir))
		}
	}()
	c.token <- struct{}{}
	// Up to its end a journal does not change, and only compactions replace it.
	present := *c.journal
	<-c.token
	if err := next.copyFrom(&present, *from, present.end); err != nil {
		return err
	}
	*from = present.end
	return next.file.Sync()
}

// complete copies the rest of the journal to next, and gives it the journal's name.
func (c *committer) complete(next *journal, from int64) error {
	if err := c.writer.err(); err != nil {
		return err
	}
	if err := next.copyFrom(c.journal, from, c.journal.end); err != nil {
		return err
	}
	next.closed = next.end == next.base
	return next.install(c.options.FS, c.dir)
}

// switchTo completes next and replaces the journal by it. The caller holds the token.
func (c *committer) switchTo(next *journal, from int64) error {
	err := c.complete(next, from)
	switch {
	case errors.Is(err, errUnknownName):
		c.fail(err)
		return errors.Join(err, next.file.Close())
	case err != nil:
		return errors.Join(err, next.discard(c.options.FS, c.dir))
	}
	previous := c.journal
	c.journal = next
	if err := previous.file.Close(); err != nil {
		c.options.Log.Warn("cannot close the journal that was replaced", "dir", c.dir, "error", err)
	}
	return nil
}

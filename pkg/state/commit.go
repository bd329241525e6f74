package state

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// batch is a group of transactions that are written together.
type batch struct {
	lines []byte
	// first is the first change that is not durable when the batch is written, 0 if there is none.
	first uint64
	last  uint64
	// sync means that a transaction waits for fdatasync.
	sync    bool
	changes []mutation
	// lazy has the changes of each lazy transaction, in their order.
	lazy [][]mutation

	// done is closed after err is set and, if that is nil, readers see the changes.
	done chan struct{}
	err  error
}

func newBatch(first uint64) *batch { return &batch{first: first, done: make(chan struct{})} }

// add appends the changes of a transaction, one line each, and returns the number of the last one.
func (b *batch) add(sequence uint64, changes []mutation) uint64 {
	if b.first == 0 && len(changes) > 0 {
		b.first = sequence + 1
	}
	for i, each := range changes {
		sequence++
		b.lines = each.appendTo(b.lines, sequence, b.first, i < len(changes)-1)
	}
	b.last = sequence
	b.changes = append(b.changes, changes...)
	return sequence
}

// committer writes the writer's batches, and compacts the journal.
type committer struct {
	dir     string
	options Options
	writer  *writer

	// token is a mutex, locked by sending to it, for writing to the journal. It guards journal and written,
	// the last change in it.
	token   chan struct{}
	journal *journal
	written uint64
	mark    mark
	// compactAt is the journal's size in bytes that starts a compaction.
	compactAt int64

	// lazy is the timer of flushLater. writer.mu guards it.
	lazy *time.Timer

	// compacting is held during a compaction, and taken before token.
	compacting chan struct{}
	background sync.WaitGroup
	stop       context.CancelFunc
	stopped    context.Context //nolint:containedctx // ends the store's own background work
}

// close writes the newest batch, marks a clean end and closes the files.
func (c *committer) close(newest *batch) error {
	c.writer.mu.Lock()

	if c.lazy != nil && c.lazy.Stop() {
		c.background.Done()
	}

	c.writer.mu.Unlock()
	c.stop()

	var err error
	if newest != nil && c.writer.err() == nil {
		err = c.await(newest)
	}

	// No compaction runs, and none starts, while these two are held.
	c.compacting <- struct{}{}
	c.token <- struct{}{}

	defer func() {
		<-c.token
		<-c.compacting
	}()

	healthy := c.writer.err() == nil
	err = errors.Join(err, c.journal.close(c.written, healthy))
	c.journal = nil

	if healthy && err == nil {
		c.mark.write(c.written)
		err = errors.Join(c.mark.file.Sync(), c.options.FS.SyncDir(c.dir))
	}

	return errors.Join(err, c.mark.file.Close())
}

// await returns when b is written, and durable if it is to be, or has failed. One of the waiting
// goroutines gets the token and writes for all, so a lone Update needs no switch of goroutines.
func (c *committer) await(b *batch) error {
	select {
	case <-b.done:
	case c.token <- struct{}{}:
		c.flush()
		<-c.token
		// Either flush wrote b or who had the token before did.
		<-b.done
	}

	return b.err
}

// flush writes what is pending. The caller holds the token.
func (c *committer) flush() {
	b, publish := c.writer.take()
	if b == nil {
		return
	}

	if err := c.journal.append(b.lines, b.sync); err != nil {
		c.fail(err)

		return
	}

	c.written = max(c.written, b.last)
	if b.sync {
		c.mark.write(c.written)
	}

	for _, each := range publish {
		each()
	}

	c.writer.written()
	close(b.done)
	c.compactIfLarge()
}

// fail makes the store read-only, reverts what is not written and fails the waiting Updates. After a
// write that failed for lack of space, the lazy changes are kept and a retry runs in the background.
// After any other failure, of a sync above all, the store stays read-only: the content of the disk
// is unknown. The caller holds the token.
func (c *committer) fail(cause error) {
	full := errors.Is(cause, errNoSpace)

	err := fmt.Errorf("%w since a write to %s failed: %w; what was acknowledged is safe: look after the disk, then restart",
		ErrReadOnly, c.dir, cause)
	if full {
		err = fmt.Errorf("%w as long as %s has no space: %w; free some, then changes are accepted again", ErrReadOnly, c.dir, cause)
	}

	failed := c.writer.takeBack(err, c.written, full)

	c.options.Log.Error("state is read-only from now on", "dir", c.dir, "error", cause, "untilSpace", full)

	// A change whose Update failed should not reappear after a restart. That is not guaranteed, so
	// an error is ignored.
	_ = c.journal.wipe()

	if full {
		c.background.Go(c.awaitSpace)
	}

	for _, b := range failed {
		b.err = err
		close(b.done)
	}
}

// flushLater writes what is pending after Options.LazyFlush, unless it is written before.
func (c *committer) flushLater() {
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()

	if c.writer.phase != phaseOpen || c.lazy != nil || c.writer.err() != nil {
		return
	}

	c.background.Add(1)
	c.lazy = time.AfterFunc(c.options.LazyFlush, func() {
		defer c.background.Done()

		c.writer.mu.Lock()
		c.lazy = nil
		b := c.writer.newestBatch(false)
		writable := c.writer.err() == nil
		c.writer.mu.Unlock()

		if writable && b != nil {
			// The failure is kept, and Store.Err returns it.
			_ = c.await(b)
		}
	})
}

// awaitSpace makes the store writable again when the journal can grow again.
func (c *committer) awaitSpace() {
	for done := false; !done; done = c.regainSpace() {
		select {
		case <-time.After(c.options.RetrySpace):
		case <-c.stopped.Done():
			return
		}
	}
}

// regainSpace reports whether there is nothing more to wait for.
func (c *committer) regainSpace() bool {
	c.token <- struct{}{}
	defer func() { <-c.token }()

	if c.journal == nil {
		return true
	}

	err := c.journal.regainSpace()

	switch {
	case errors.Is(err, errNoSpace):
		return false
	case err != nil:
		c.fail(err)
	default:
		c.writer.failure.Store(nil)
		c.options.Log.Info("state has space again and accepts changes", "dir", c.dir)
		c.flush()
	}

	return true
}

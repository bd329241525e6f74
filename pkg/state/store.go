package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Options of a store. All may be left out.
type Options struct {
	// Owner is named in the error of a process that finds the directory locked, with the process
	// id: for example the socket that is served.
	Owner string
	Log   *slog.Logger
	// FS is the filesystem, for tests.
	FS FS
	// CompactAbove is how many bytes are appended to the journal before it is compacted, if they are
	// also half of its base. 0 means 16 MiB, a negative value never.
	CompactAbove int64
	// LazyFlush is how long UpdateLazily waits for another commit. 0 means 100 ms.
	LazyFlush time.Duration
	// RetrySpace is how often a store that has run out of space checks for free space. 0 means 1 s.
	RetrySpace time.Duration
}

const (
	defaultCompactAbove = 16 << 20
	defaultLazyFlush    = 100 * time.Millisecond
	defaultRetrySpace   = time.Second
)

// Store is a directory of typed collections.
type Store struct {
	dir       string
	options   Options
	writer    *writer
	committer *committer
	lock      *os.File
}

// New returns a store for a directory. Nothing is touched before Open.
func New(dir string, opts Options) *Store {
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	opts.FS = cmp.Or(opts.FS, FS(osFS{}))
	opts.CompactAbove = cmp.Or(opts.CompactAbove, defaultCompactAbove)
	opts.LazyFlush = cmp.Or(max(opts.LazyFlush, 0), defaultLazyFlush)
	opts.RetrySpace = cmp.Or(max(opts.RetrySpace, 0), defaultRetrySpace)

	w := &writer{dir: dir, log: opts.Log, collections: map[string]collection{}, pending: newBatch(0)}

	c := &committer{dir: dir, options: opts, writer: w, token: make(chan struct{}, 1), compacting: make(chan struct{}, 1)}
	c.stopped, c.stop = context.WithCancel(context.Background())

	return &Store{dir: dir, options: opts, writer: w, committer: c}
}

// AddCheck has check called when all records are read, before the store is open: it reports the
// records that contradict records of other collections. These are damage, and what check reports
// once they are left out is damage as well.
func (s *Store) AddCheck(check func(tx *Tx, report func(collection, key string, reason error))) {
	s.writer.checks = append(s.writer.checks, check)
}

// Open locks the directory, creating it if it is missing, and reads the state. It fails with
// *LockedError if another store has it open and with *DamageError if the files are not what was
// written; it then changes nothing. A store that failed to open cannot be used.
func (s *Store) Open(ctx context.Context) error {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()

	if s.writer.phase != phaseNew {
		return fmt.Errorf("%w: %s was open before", ErrNotOpen, s.dir)
	}

	s.writer.phase = phaseClosed

	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return fmt.Errorf("open state: %w", err)
	}

	lock, err := lockForWriting(s.dir, s.options.Owner)
	if err != nil {
		return err
	}

	if err := s.committer.load(ctx); err != nil {
		return errors.Join(fmt.Errorf("open state: %w", err), lock.Close())
	}

	s.lock = lock
	s.writer.phase = phaseOpen

	for _, publish := range s.writer.seal() {
		publish()
	}

	s.committer.setThreshold()
	s.committer.compactIfLarge()

	return nil
}

// Err returns why the store is read-only, wrapping ErrReadOnly; nil if it is not. It is cheap.
func (s *Store) Err() error { return s.writer.err() }

// Close makes pending changes durable and unlocks the directory. Reads continue to work.
func (s *Store) Close() error {
	newest, wasOpen := s.writer.close()
	if !wasOpen {
		return nil
	}

	err := errors.Join(s.committer.close(newest), s.lock.Truncate(0), unlock(s.lock))
	s.committer.background.Wait()

	if err != nil {
		return fmt.Errorf("close state: %w", err)
	}

	return nil
}

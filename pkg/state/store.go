package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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

type phase int

const (
	phaseNew phase = iota
	phaseOpen
	phaseClosed
)

// collection is a Collection of any type.
type collection interface {
	seal() func()
	version(name string) version
	decode(key string, encoded []byte) (any, error)
	recover(key string, decoded any) error
	recoverDeleted(key string)
	Len() int
}

// Store is a directory of typed collections.
type Store struct {
	dir     string
	options Options

	// mu is the writer's lock: it guards the latest state and what is not
	// written yet. It is never held during I/O.
	mu          sync.Mutex
	phase       phase
	collections map[string]collection
	checks      []func(tx *Tx, report func(collection, key string, reason error))
	sequence    uint64
	pending     *batch
	flushing    *batch
	lazy        *time.Timer

	failure atomic.Pointer[error]

	// token is a mutex, locked by sending to it, for writing to the journal. It guards the fields
	// below.
	token   chan struct{}
	journal *journal
	durable uint64
	// mark is the file that records durable, markLine its line's buffer.
	mark     File
	markLine []byte
	// compactAt is the journal's size in bytes that starts a compaction.
	compactAt int64

	// compacting is held during a compaction, and taken before token.
	compacting chan struct{}
	background sync.WaitGroup
	stop       context.CancelFunc
	stopped    context.Context //nolint:containedctx // ends the store's own background work
	lock       *os.File
}

// New returns a store for a directory. Nothing is touched before Open.
func New(dir string, opts Options) *Store {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}

	if opts.FS == nil {
		opts.FS = osFS{}
	}

	if opts.CompactAbove == 0 {
		opts.CompactAbove = defaultCompactAbove
	}

	if opts.LazyFlush <= 0 {
		opts.LazyFlush = defaultLazyFlush
	}

	if opts.RetrySpace <= 0 {
		opts.RetrySpace = defaultRetrySpace
	}

	stopped, stop := context.WithCancel(context.Background())

	return &Store{
		dir: dir, options: opts,
		collections: map[string]collection{},
		pending:     newBatch(),
		token:       make(chan struct{}, 1),
		compacting:  make(chan struct{}, 1),
		stop:        stop, stopped: stopped,
	}
}

// AddCheck has check called when all records are read, before the store is open: it reports the
// records that contradict records of other collections. These are damage, and what check reports
// once they are left out is damage as well.
func (s *Store) AddCheck(check func(tx *Tx, report func(collection, key string, reason error))) {
	s.checks = append(s.checks, check)
}

// checkRecords calls the checks with the latest state.
func (s *Store) checkRecords(report func(collection, key string, reason error)) {
	for _, check := range s.checks {
		check(&Tx{store: s, over: true}, report)
	}
}

// Open locks the directory, creating it if it is missing, and reads the state. It fails with
// *LockedError if another store has it open and with *DamageError if the files are not what was
// written; it then changes nothing. A store that failed to open cannot be used.
func (s *Store) Open(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.phase != phaseNew {
		return fmt.Errorf("%w: %s was open before", ErrNotOpen, s.dir)
	}

	s.phase = phaseClosed

	err := os.MkdirAll(s.dir, dirMode)
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}

	lock, err := lockForWriting(s.dir, s.options.Owner)
	if err != nil {
		return err
	}

	err = s.load(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("open state: %w", err), lock.Close())
	}

	s.lock = lock
	s.phase = phaseOpen

	for _, publish := range s.seal() {
		publish()
	}

	s.setThreshold()
	s.compactIfLarge()

	return nil
}

// Err returns why the store is read-only, wrapping ErrReadOnly; nil if it is not. It is cheap.
func (s *Store) Err() error {
	if failure := s.failure.Load(); failure != nil {
		return *failure
	}

	return nil
}

// Close makes pending changes durable and unlocks the directory. Reads continue to work.
func (s *Store) Close() error {
	s.mu.Lock()

	if s.phase != phaseOpen {
		s.mu.Unlock()

		return nil
	}

	s.phase = phaseClosed
	b := s.newestBatch()

	if s.lazy != nil && s.lazy.Stop() {
		s.background.Done()
	}

	s.mu.Unlock()
	s.stop()

	var err error
	if b != nil && s.Err() == nil {
		err = s.await(b)
	}

	// No compaction runs, and none starts, while these two are held.
	s.compacting <- struct{}{}
	s.token <- struct{}{}

	defer func() {
		<-s.token
		<-s.compacting
		s.background.Wait()
	}()

	healthy := s.Err() == nil
	err = errors.Join(err, s.journal.close(s.durable, healthy))
	err = errors.Join(err, s.closeMark(healthy && err == nil), s.lock.Truncate(0), unlock(s.lock))
	s.journal = nil

	if err != nil {
		return fmt.Errorf("close state: %w", err)
	}

	return nil
}

// versions returns the durable version of each collection, in the order of their names.
func (s *Store) versions() []version {
	all := make([]version, 0, len(s.collections))
	for _, name := range slices.Sorted(maps.Keys(s.collections)) {
		all = append(all, s.collections[name].version(name))
	}
	return all
}

package inflight

import (
	"errors"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

var (
	// ErrRead is returned by TryLock while the snapshot has readers.
	ErrRead = errors.New("it is being read; retry when that is done")
	// ErrDeleting is returned while the snapshot is being deleted.
	ErrDeleting = errors.New("it is being deleted")
)

// Locks are read/write locks of snapshots: many readers or one deleter. They never
// block, because a restore may read for hours: a refused caller gets ABORTED and
// retries.
type Locks struct {
	mu sync.Mutex
	// readers has no entry for 0.
	readers  map[string]int
	deleting map[string]struct{}
}

// NewLocks returns locks that are all free.
func NewLocks() *Locks {
	return &Locks{readers: map[string]int{}, deleting: map[string]struct{}{}}
}

// TryRLock prevents the deletion of the snapshot until unlock is called; further calls
// of unlock do nothing. Error: ABORTED (ErrDeleting).
func (l *Locks) TryRLock(id string) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if _, deleting := l.deleting[id]; deleting {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, ErrDeleting)
	}

	l.readers[id]++

	return sync.OnceFunc(func() { l.runlock(id) }), nil
}

func (l *Locks) runlock(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.readers[id]--
	if l.readers[id] == 0 {
		delete(l.readers, id)
	}
}

// TryLock excludes readers while the snapshot is deleted, until unlock is called;
// further calls of unlock do nothing. Errors: ABORTED (ErrRead, ErrDeleting).
func (l *Locks) TryLock(id string) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.readers[id] > 0 {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, ErrRead)
	}

	if _, deleting := l.deleting[id]; deleting {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, ErrDeleting)
	}

	l.deleting[id] = struct{}{}

	return sync.OnceFunc(func() { l.unlock(id) }), nil
}

func (l *Locks) unlock(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.deleting, id)
}

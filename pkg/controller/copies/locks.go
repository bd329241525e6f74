package copies

import (
	"errors"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
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
	// held has the number of readers of a snapshot, deleter for its deleter, and no entry for 0.
	held map[string]int
}

const deleter = -1

// NewLocks returns locks that are all free.
func NewLocks() *Locks { return &Locks{held: map[string]int{}} }

// TryRLock prevents the deletion of the snapshot until unlock is called; further calls
// of unlock do nothing. Error: ABORTED (ErrDeleting).
func (l *Locks) TryRLock(id string) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.held[id] == deleter {
		return nil, errdefs.Errorf(errdefs.ErrAborted, "snapshot %s: %w", id, ErrDeleting)
	}

	return l.take(id, 1), nil
}

// TryLock excludes readers while the snapshot is deleted, until unlock is called;
// further calls of unlock do nothing. Errors: ABORTED (ErrRead, ErrDeleting).
func (l *Locks) TryLock(id string) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch {
	case l.held[id] == deleter:
		return nil, errdefs.Errorf(errdefs.ErrAborted, "snapshot %s: %w", id, ErrDeleting)
	case l.held[id] > 0:
		return nil, errdefs.Errorf(errdefs.ErrAborted, "snapshot %s: %w", id, ErrRead)
	default:
		return l.take(id, deleter), nil
	}
}

// take adds a holder, and returns what removes it. The mutex is held.
func (l *Locks) take(id string, holder int) (unlock func()) {
	l.held[id] += holder

	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.held[id] -= holder
		if l.held[id] == 0 {
			delete(l.held, id)
		}
	})
}

package controller

import (
	"errors"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

var (
	ErrRead     = errors.New("it is being read; retry when that is done")
	ErrDeleting = errors.New("it is being deleted")
)

// holds says of each snapshot whether it has readers or a deleter: many of the
// former or one of the latter, never both. Nobody waits here: a restore may read
// for hours, and a CO that is told ABORTED comes back by itself.
//
// It lives in memory only: after a crash nobody reads any more.
type Locks struct {
	mu sync.Mutex
	// readers has no entry for 0.
	readers  map[string]int
	deleting map[string]struct{}
}

func NewLocks() *Locks {
	return &Locks{readers: map[string]int{}, deleting: map[string]struct{}{}}
}

// hold keeps the snapshot from being deleted until release is called, which may
// be called more than once. Errors: ABORTED (ErrDeleting).
func (h *Locks) TryRLock(id string) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if _, doomed := h.deleting[id]; doomed {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, ErrDeleting)
	}

	h.readers[id]++

	return sync.OnceFunc(func() { h.runlock(id) }), nil
}

func (h *Locks) runlock(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.readers[id]--
	if h.readers[id] == 0 {
		delete(h.readers, id)
	}
}

// doom keeps readers away from the snapshot, for its deletion, until undoom is
// called, whether it was deleted or not; undoom may be called more than once.
// Errors: ABORTED (ErrRead, ErrDeleting).
func (h *Locks) TryLock(id string) (undoom func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.readers[id] > 0 {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, ErrRead)
	}

	if _, doomed := h.deleting[id]; doomed {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, ErrDeleting)
	}

	h.deleting[id] = struct{}{}

	return sync.OnceFunc(func() { h.unlock(id) }), nil
}

func (h *Locks) unlock(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	delete(h.deleting, id)
}

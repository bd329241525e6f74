package controller

import (
	"errors"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

var (
	errHeld   = errors.New("it is being read; retry when that is done")
	errDoomed = errors.New("it is being deleted")
)

// holds says of each snapshot whether it has readers or a deleter: many of the
// former or one of the latter, never both. Nobody waits here: a restore may read
// for hours, and a CO that is told ABORTED comes back by itself.
//
// It lives in memory only: after a crash nobody reads any more.
type holds struct {
	mu sync.Mutex
	// readers has no entry for 0.
	readers map[string]int
	doomed  map[string]struct{}
}

func newHolds() *holds {
	return &holds{readers: map[string]int{}, doomed: map[string]struct{}{}}
}

// hold keeps the snapshot from being deleted until release is called, which may
// be called more than once. Errors: ABORTED (errDoomed).
func (h *holds) hold(id string) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if _, doomed := h.doomed[id]; doomed {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, errDoomed)
	}

	h.readers[id]++

	return sync.OnceFunc(func() { h.release(id) }), nil
}

func (h *holds) release(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.readers[id]--
	if h.readers[id] == 0 {
		delete(h.readers, id)
	}
}

// doom keeps readers away from the snapshot, for its deletion, until undoom is
// called, whether it was deleted or not; undoom may be called more than once.
// Errors: ABORTED (errHeld, errDoomed).
func (h *holds) doom(id string) (undoom func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.readers[id] > 0 {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, errHeld)
	}

	if _, doomed := h.doomed[id]; doomed {
		return nil, rpc.Errorf(codes.Aborted, "snapshot %s: %w", id, errDoomed)
	}

	h.doomed[id] = struct{}{}

	return sync.OnceFunc(func() { h.undoom(id) }), nil
}

func (h *holds) undoom(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	delete(h.doomed, id)
}

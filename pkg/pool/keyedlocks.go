package pool

import (
	"context"
	"sync"
)

// turns has one caller at a time for each id.
type keyedLocks struct {
	mu   sync.Mutex
	held map[string]*keyedLock
}

type keyedLock struct {
	taken chan struct{}
	users int
}

// acquire waits for the turn of an id. Errors: ctx's.
func (t *keyedLocks) acquire(ctx context.Context, id string) (release func(), err error) {
	t.mu.Lock()

	mine := t.held[id]
	if mine == nil {
		mine = &keyedLock{taken: make(chan struct{}, 1)}
		t.held[id] = mine
	}

	mine.users++
	t.mu.Unlock()

	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()

		mine.users--
		if mine.users == 0 {
			delete(t.held, id)
		}
	}

	select {
	case mine.taken <- struct{}{}:
		return func() {
			<-mine.taken
			leave()
		}, nil
	case <-ctx.Done():
		leave()

		return nil, context.Cause(ctx) //nolint:wrapcheck // the callers name the object
	}
}

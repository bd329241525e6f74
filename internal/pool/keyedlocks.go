package pool

import (
	"context"
	"sync"
)

// keyedLocks are mutexes by id, which can be awaited with a context.
type keyedLocks struct {
	mu   sync.Mutex
	held map[string]*keyedLock
}

type keyedLock struct {
	taken chan struct{}
	users int
}

// acquire locks the mutex of an id. Errors: ctx's.
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

		return nil, context.Cause(ctx)
	}
}

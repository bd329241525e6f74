package pool

import (
	"context"
	"sync"
)

// keyedSemaphores are counting semaphores by id, which can be awaited with a context.
type keyedSemaphores struct {
	// limit is how many callers may hold the semaphore of one id; with 1 it is a mutex.
	limit int

	mu   sync.Mutex
	used map[string]*keyedSemaphore
}

type keyedSemaphore struct {
	slots chan struct{}
	users int
}

func newKeyedSemaphores(limit int) *keyedSemaphores {
	return &keyedSemaphores{limit: limit, used: map[string]*keyedSemaphore{}}
}

// acquire takes a slot of the semaphore of an id. Errors: ctx's.
func (k *keyedSemaphores) acquire(ctx context.Context, id string) (release func(), err error) {
	k.mu.Lock()

	mine := k.used[id]
	if mine == nil {
		mine = &keyedSemaphore{slots: make(chan struct{}, k.limit)}
		k.used[id] = mine
	}

	mine.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()

		mine.users--
		if mine.users == 0 {
			delete(k.used, id)
		}
	}

	select {
	case mine.slots <- struct{}{}:
		return func() {
			<-mine.slots
			leave()
		}, nil
	case <-ctx.Done():
		leave()

		return nil, context.Cause(ctx)
	}
}

package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrUnreachable means that a call into a pool was not made because it would hang there.
var ErrUnreachable = errors.New("the pool does not answer; see the health of the node's storage")

// MaxInPool bounds the concurrent calls into one pool of each Limiter: if the pool's filesystem hangs, at most
// this many of its threads hang with it. Probes, statistics and the controller have one each.
const MaxInPool = 16

// Limiter is a counting semaphore for each pool, by its name.
type Limiter struct{ pools *keyedSemaphores }

// NewLimiter returns a limiter that nothing has acquired.
func NewLimiter() *Limiter { return &Limiter{newKeyedSemaphores(MaxInPool)} }

// Acquire waits until fewer than MaxInPool calls are in the pool. Error:
// ErrUnreachable with ctx's.
func (l *Limiter) Acquire(ctx context.Context, poolName string) (release func(), err error) {
	if release, err = l.pools.acquire(ctx, poolName); err != nil {
		return nil, fmt.Errorf("pool %q: %w: %w", poolName, ErrUnreachable, err)
	}

	return release, nil
}

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

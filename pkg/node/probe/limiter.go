package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrPoolUnreachable means that a probe was not made because it would hang in the
// volume's pool.
var ErrPoolUnreachable = errors.New("the pool does not answer; see the health of the node's storage")

// maxInPool bounds the concurrent calls into one pool: if its filesystem hangs, at most
// this many threads hang with it.
const maxInPool = 16

// PoolLimiter is a counting semaphore for each pool.
type PoolLimiter struct {
	mu     sync.Mutex
	byPool map[string]chan struct{}
}

// NewPoolLimiter returns a limiter that nothing has acquired.
func NewPoolLimiter() *PoolLimiter { return &PoolLimiter{byPool: map[string]chan struct{}{}} }

// Acquire waits until fewer than maxInPool calls are in the pool. Error:
// ErrPoolUnreachable with ctx's.
func (l *PoolLimiter) Acquire(ctx context.Context, poolName string) (release func(), err error) {
	l.mu.Lock()

	slots, ok := l.byPool[poolName]
	if !ok {
		slots = make(chan struct{}, maxInPool)
		l.byPool[poolName] = slots
	}

	l.mu.Unlock()

	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("pool %q: %w: %w", poolName, ErrPoolUnreachable, context.Cause(ctx))
	}
}

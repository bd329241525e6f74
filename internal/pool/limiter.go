package pool

import (
	"context"
	"errors"
	"fmt"
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

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

// errUnreachable says that a look was not taken, since it would hang.
var errUnreachable = errors.New("the pool does not answer; see the health of the node's storage")

// reachable returns errUnreachable for a pool that is known not to answer.
func (s *Service) reachable(poolName string) error {
	if s.config.Storage == nil {
		return nil
	}

	if record, ok := s.config.Storage.Get(health.PoolSubject(poolName)); ok && record.Has(health.PoolUnreachable) {
		return fmt.Errorf("pool %q: %w", poolName, errUnreachable)
	}

	return nil
}

// SuspectPool has all volumes of a pool looked at, because it went or came back:
// while it does not answer, looks at them are not taken, and none is known to be
// gone.
func (s *Service) SuspectPool(poolName string) {
	s.checker.ChangedPool(poolName)

	for _, id := range s.subjects() {
		if found, ok := s.subject(id); ok && found.poolName() == poolName {
			s.monitor.Suspect(id)
		}
	}
}

// poolName is "" where nothing tells it.
func (f *subject) poolName() string {
	switch {
	case f.use != nil:
		return f.use.Parameters.Pool
	case f.check != nil:
		return f.check.Pool
	default:
		return ""
	}
}

// maxInPool is how many may be in a pool at a time: should it hang, no more of
// them do.
const maxInPool = 16

// gates let few at a time into each pool.
type gates struct {
	mu     sync.Mutex
	byPool map[string]chan struct{}
}

func newGates() *gates { return &gates{byPool: map[string]chan struct{}{}} }

// enter returns what lets the next one in, or ctx's error.
func (g *gates) enter(ctx context.Context, poolName string) (leave func(), err error) {
	g.mu.Lock()

	gate, ok := g.byPool[poolName]
	if !ok {
		gate = make(chan struct{}, maxInPool)
		g.byPool[poolName] = gate
	}

	g.mu.Unlock()

	select {
	case gate <- struct{}{}:
		return func() { <-gate }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("pool %q: %w: %w", poolName, errUnreachable, context.Cause(ctx))
	}
}

package coalesce

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// Group holds the changes that are waiting for their window to close, or are
// being made. A key without a request costs nothing, not even a goroutine.
// It is safe for concurrent use; see New.
type Group[K comparable, In, Merged, Out any] struct {
	window  time.Duration
	merge   func(Merged, In) (Merged, error)
	execute func(context.Context, K, Merged) (Out, error)

	life    *operation.Lifetime
	mu      sync.Mutex
	pending map[K]*batch[Merged, Out]
	// draining ends when all windows are to close.
	draining context.Context //nolint:containedctx // it is the group's
	drain    context.CancelFunc
}

// batch is the merged change of the requests of one window.
type batch[Merged, Out any] struct {
	merged Merged
	// values carries the first caller's request-scoped values, such as its
	// logger, without its deadline.
	values context.Context //nolint:containedctx // a change lives longer than its callers
	done   chan struct{}
	result Out
	err    error
}

// New returns a group in which a window is open for the given time; 0 makes
// each request a change of its own.
//
// merge adds a request to what is merged so far, at first the zero value. Its
// error is the answer to that request alone, so it must leave its first
// argument as it is. It is called with a lock held and must not block.
//
// execute makes the change. Changes of one key may overlap when a window closes
// while an earlier change is still being made. The context that it gets ends
// only when Drain gives up.
func New[K comparable, In, Merged, Out any](
	window time.Duration,
	merge func(Merged, In) (Merged, error),
	execute func(context.Context, K, Merged) (Out, error),
) *Group[K, In, Merged, Out] {
	draining, drain := context.WithCancel(context.Background()) //nolint:gosec // Drain calls it

	return &Group[K, In, Merged, Out]{
		window: window, merge: merge, execute: execute, life: operation.NewLifetime(), pending: map[K]*batch[Merged, Out]{},
		draining: draining, drain: drain,
	}
}

// Do has the request carried out, with others of its key, and returns the
// result of that; or ctx's error once ctx ends: the change is then made all the
// same.
//
// Errors of its own: operation.ErrDraining, *operation.PanicError; those of merge and execute come
// as they are.
func (g *Group[K, In, Merged, Out]) Do(ctx context.Context, key K, in In) (Out, error) {
	var none Out

	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("not begun: %w", context.Cause(ctx))
	}

	joined, err := g.join(ctx, key, in)
	if err != nil {
		return none, err
	}

	select {
	case <-joined.done:
		return joined.result, joined.err
	case <-ctx.Done():
		return none, fmt.Errorf("the change goes on without its caller: %w", context.Cause(ctx))
	}
}

// Drain takes no further requests, closes all windows at once and waits for the
// changes. When ctx ends first they are cancelled, and Drain returns ctx's
// error without waiting for them any longer.
func (g *Group[K, In, Merged, Out]) Drain(ctx context.Context) error {
	g.mu.Lock()
	g.drain()
	g.mu.Unlock()

	if err := g.life.Drain(ctx); err != nil {
		return fmt.Errorf("changes are still being made: %w", err)
	}

	return nil
}

// join merges the request into the change whose window is open, or begins one.
func (g *Group[K, In, Merged, Out]) join(ctx context.Context, key K, in In) (*batch[Merged, Out], error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.draining.Err() != nil {
		return nil, operation.ErrDraining
	}

	waiting, isOpen := g.pending[key]
	if !isOpen {
		waiting = &batch[Merged, Out]{values: context.WithoutCancel(ctx), done: make(chan struct{})}
	}

	merged, err := g.merge(waiting.merged, in)
	if err != nil {
		return nil, err
	}

	waiting.merged = merged

	if !isOpen {
		if g.window > 0 {
			g.pending[key] = waiting
		}

		g.life.Running.Go(func() { g.run(key, waiting) })
	}

	return waiting, nil
}

// run executes the change once its window, if it has one, has closed.
func (g *Group[K, In, Merged, Out]) run(key K, waiting *batch[Merged, Out]) {
	defer close(waiting.done)

	if g.window > 0 {
		select {
		case <-time.After(g.window):
		case <-g.draining.Done():
		}

		g.mu.Lock()
		delete(g.pending, key)
		g.mu.Unlock()
	}

	waiting.result, waiting.err = operation.Run(waiting.values, g.life, func(ctx context.Context) (Out, error) {
		return g.execute(ctx, key, waiting.merged)
	})
}

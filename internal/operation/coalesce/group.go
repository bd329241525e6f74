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

	life     *operation.Lifetime
	mu       sync.Mutex
	pending  map[K]*batch[Merged, Out]
	draining bool
}

// batch is the merged change of the requests of one window.
type batch[Merged, Out any] struct {
	merged Merged
	// values carries the first caller's request-scoped values, such as its
	// logger, without its deadline.
	values context.Context //nolint:containedctx // a change lives longer than its callers
	timer  *time.Timer
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
	return &Group[K, In, Merged, Out]{
		window: window, merge: merge, execute: execute, life: operation.NewLifetime(), pending: map[K]*batch[Merged, Out]{},
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
	g.draining = true

	for key, waiting := range g.pending {
		waiting.timer.Stop()

		go g.closeWindow(key, waiting)
	}
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

	if g.draining {
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

	if isOpen {
		return waiting, nil
	}

	g.life.Running.Add(1)

	if g.window <= 0 {
		go g.run(key, waiting)

		return waiting, nil
	}

	g.pending[key] = waiting
	waiting.timer = time.AfterFunc(g.window, func() { g.closeWindow(key, waiting) })

	return waiting, nil
}

// closeWindow executes the change unless its window is closed already.
func (g *Group[K, In, Merged, Out]) closeWindow(key K, waiting *batch[Merged, Out]) {
	g.mu.Lock()
	mine := g.pending[key] == waiting

	if mine {
		delete(g.pending, key)
	}
	g.mu.Unlock()

	if mine {
		g.run(key, waiting)
	}
}

func (g *Group[K, In, Merged, Out]) run(key K, closed *batch[Merged, Out]) {
	defer g.life.Running.Done()
	defer close(closed.done)

	closed.result, closed.err = operation.Run(closed.values, g.life, func(ctx context.Context) (Out, error) {
		return g.execute(ctx, key, closed.merged)
	})
}

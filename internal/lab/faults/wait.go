package faults

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Release releases the calls that are held at a name, and returns how many. Error: ErrUnknown where no
// active rule has such a hold.
func (i *Injector) Release(name string) (int, error) {
	// Until the calls are released, so that those of another rule with the hold are not.
	i.mu.Lock()
	defer i.mu.Unlock()

	rules := slices.DeleteFunc(slices.Clone(i.rules.active), func(a *active) bool { return a.Act.Hold != name })
	if len(rules) == 0 {
		return 0, fmt.Errorf("%w: no fault rule holds calls at %q", ErrUnknown, name)
	}

	return i.effects.release(name, rules), nil
}

// effects are what rules do to calls and operations that they hit. It is safe for concurrent use.
type effects struct {
	// vanishSocket is Config.Vanish, crash is Config.Crash.
	vanishSocket func() (restore func(), err error)
	crash        func()
	log          *slog.Logger
	closed       chan struct{}

	mu sync.Mutex
	// released has a channel for each hold that calls wait at, which its release closes.
	released map[string]chan struct{}
}

// release releases the calls that the rules hold at a name, and returns how many.
func (e *effects) release(name string, rules []*active) (count int) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for _, each := range rules {
		count += int(each.holding.Load())
	}

	if waiting := e.released[name]; waiting != nil {
		close(waiting)
		delete(e.released, name)
	}

	return count
}

// wait waits for a time, or until the call, the rule or the driver ends. Error: ctx's.
func (e *effects) wait(ctx context.Context, of hit, long time.Duration) error {
	if long <= 0 {
		return nil
	}

	timer := time.NewTimer(long)
	defer timer.Stop()

	return await(ctx, e, of, timer.C)
}

// await waits for over, or until the call, the rule or the driver ends. Error: ctx's.
func await[T any](ctx context.Context, e *effects, of hit, over <-chan T) error {
	select {
	case <-over:
	case <-of.cleared:
	case <-e.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	return nil
}

// hold waits until the hold is released, or the call, the rule or the driver ends. Error: ctx's.
func (e *effects) hold(ctx context.Context, of hit) error {
	name := of.Act.Hold

	e.mu.Lock()
	if e.released[name] == nil {
		e.released[name] = make(chan struct{})
	}

	released := e.released[name]
	of.holding.Add(1)
	e.mu.Unlock()

	defer of.holding.Add(-1)

	return await(ctx, e, of, released)
}

// end ends the process. It returns only in tests.
func (e *effects) end(of hit) {
	e.log.Error("a fault rule ends the process", "rule", of.Name)
	e.crash()
}

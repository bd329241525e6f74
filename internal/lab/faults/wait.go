package faults

import (
	"context"
	"fmt"
	"time"
)

// Release releases the calls that are held at a name, and returns how many. Error: ErrUnknown where no
// active rule has such a hold.
func (i *Injector) Release(name string) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	known, count := false, 0

	for _, each := range i.rules {
		if each.Act.Hold == name {
			known = true
			count += each.holding
		}
	}

	if !known {
		return 0, fmt.Errorf("%w: no fault rule holds calls at %q", ErrUnknown, name)
	}

	if waiting := i.released[name]; waiting != nil {
		close(waiting)
		delete(i.released, name)
	}

	return count, nil
}

// wait waits for a time, or until the call, the rule or the driver ends. Error: ctx's.
func (i *Injector) wait(ctx context.Context, of hit, long time.Duration) error {
	if long <= 0 {
		return nil
	}

	timer := time.NewTimer(long)
	defer timer.Stop()

	return i.await(ctx, of, timer.C)
}

func (i *Injector) await(ctx context.Context, of hit, over <-chan time.Time) error {
	select {
	case <-over:
	case <-of.cleared:
	case <-i.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	return nil
}

// hold waits until the hold is released, or the call, the rule or the driver ends. Error: ctx's.
func (i *Injector) hold(ctx context.Context, of hit) error {
	name := of.Act.Hold

	i.mu.Lock()
	if i.released[name] == nil {
		i.released[name] = make(chan struct{})
	}

	released := i.released[name]
	of.holding++
	i.mu.Unlock()

	defer func() {
		i.mu.Lock()
		of.holding--
		i.mu.Unlock()
	}()

	select {
	case <-released:
	case <-of.cleared:
	case <-i.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	return nil
}

// crash ends the process. It returns only in tests.
func (i *Injector) crash(of hit) {
	i.config.Log.Error("a fault rule ends the process", "rule", of.Name)
	i.config.Crash()
}

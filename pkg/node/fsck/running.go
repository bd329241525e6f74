package fsck

import (
	"context"
	"sync"
)

// runningChecks serializes the checks of each volume, and can cancel the one that runs.
type runningChecks struct {
	mu       sync.Mutex
	byVolume map[string]*runningCheck
}

type runningCheck struct {
	done   chan struct{}
	cancel context.CancelCauseFunc
}

func newRunningChecks() *runningChecks { return &runningChecks{byVolume: map[string]*runningCheck{}} }

// start waits until no check of the volume runs, or returns ctx's error. The caller
// stops when checkCtx ends, and calls end.
func (r *runningChecks) start(ctx context.Context, id string) (checkCtx context.Context, end func(), err error) {
	checkCtx, cancel := context.WithCancelCause(ctx)
	started := &runningCheck{done: make(chan struct{}), cancel: cancel}

	for {
		current := r.getOrAdd(id, started)
		if current == started {
			return checkCtx, func() { r.end(id, started) }, nil
		}

		select {
		case <-current.done:
		case <-ctx.Done():
			cancel(nil)

			return nil, nil, context.Cause(ctx)
		}
	}
}

// getOrAdd returns the volume's check that runs. If there is none, it adds started and returns it.
func (r *runningChecks) getOrAdd(id string, started *runningCheck) *runningCheck {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.byVolume[id] == nil {
		r.byVolume[id] = started
	}

	return r.byVolume[id]
}

// get returns the volume's check that runs, nil where none does.
func (r *runningChecks) get(id string) *runningCheck {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.byVolume[id]
}

// cancel cancels the check that runs with that cause, and returns when it has stopped, or
// ctx's error.
func (r *runningChecks) cancel(ctx context.Context, id string, cause error) error {
	current := r.get(id)
	if current == nil {
		return nil
	}

	current.cancel(cause)

	select {
	case <-current.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *runningChecks) end(id string, ended *runningCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.byVolume, id)
	ended.cancel(nil)
	close(ended.done)
}

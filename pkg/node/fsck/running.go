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
		earlier := r.tryStart(id, started)
		if earlier == nil {
			return checkCtx, func() { r.end(id) }, nil
		}

		select {
		case <-earlier.done:
		case <-ctx.Done():
			cancel(nil)

			return nil, nil, context.Cause(ctx)
		}
	}
}

// tryStart returns the check that runs, nil after it has registered started.
func (r *runningChecks) tryStart(id string, started *runningCheck) (earlier *runningCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if earlier, ok := r.byVolume[id]; ok {
		return earlier
	}

	r.byVolume[id] = started

	return nil
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

func (r *runningChecks) end(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	ended := r.byVolume[id]
	delete(r.byVolume, id)
	ended.cancel(nil)
	close(ended.done)
}

package driver

import (
	"context"
	"time"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

const (
	// confinePeriod is the time between two searches for files that evade size limits: the kernel has no
	// event for them.
	confinePeriod = time.Second
	// sweepPause is the least time between two walks of all files for them, which are made where nothing
	// less finds them, and sweepRatio how much longer than the walk it is.
	sweepPause = time.Minute
	sweepRatio = 20
	// stalePeriod is the time between two removals of quotas that are not in use any more.
	stalePeriod = 10 * time.Second
)

// upkeep does in one pool, until ctx ends, what neither a call nor an event of the kernel begins.
func (r *components) upkeep(ctx context.Context, name string) {
	var released, sweepAt time.Time

	tick := time.NewTicker(confinePeriod)
	defer tick.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}

		p, err := r.pools.Get(name)
		if err != nil {
			continue // Its condition is reported, and it is opened again.
		}

		r.confine(ctx, p, p.ConfineGrown)

		if begin := time.Now(); begin.After(sweepAt) {
			r.confine(ctx, p, func() ([]string, error) { return p.Sweep(ctx) })

			sweepAt = time.Now().Add(max(sweepPause, sweepRatio*time.Since(begin)))
		}

		if time.Since(released) < stalePeriod {
			continue
		}

		released = time.Now()

		_, err = operation.Await(ctx, func() (struct{}, error) { return struct{}{}, p.Directories.RemoveStaleQuotas(ctx) })
		if err != nil && ctx.Err() == nil {
			r.config.Log.Warn("cannot remove the quotas of removed directories; it is tried again", "pool", name, "error", err)
		}
	}
}

// confine has size limits count what has evaded them, and the affected volumes probed.
func (r *components) confine(ctx context.Context, p *pool.Pool, find func() ([]string, error)) {
	evaded, err := operation.Await(ctx, find)
	if err != nil && ctx.Err() == nil {
		r.config.Log.Warn("cannot search for files that evade size limits; it is tried again", "pool", p.Name(), "error", err)
	}

	for _, each := range r.views {
		each.monitor.Suspect(evaded...)
	}
}

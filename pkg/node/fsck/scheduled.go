package fsck

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// maxWait is how long the checks of other volumes wait for one that has not returned: a
// filesystem may hang in a way that cancels nothing.
const maxWait = 10 * time.Minute

// Run makes the scheduled checks until ctx ends: one at a time, followed by a pause as long
// as the check took. Checks that are overdue follow at once, one after the other.
func (c *Checker) Run(ctx context.Context) {
	for ctx.Err() == nil {
		for _, id := range c.schedule.takeChanged() {
			c.plan(id, time.Time{})
		}

		id, due := c.schedule.first()

		switch left := time.Until(due); {
		case id == "":
			wait(ctx, c.schedule.wake, maxPeriod)
		case left > 0:
			wait(ctx, c.schedule.wake, left)
		default:
			wait(ctx, nil, c.checkIfDue(ctx, id))
		}
	}
}

// wait returns after that time, or when wake receives or ctx ends.
func wait(ctx context.Context, wake <-chan struct{}, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// plan decides when the volume's next check is due. The last one was tried at that time,
// which may be zero. It removes the record of a volume that is gone.
func (c *Checker) plan(id string, tried time.Time) {
	record, known := c.records.Get(id)
	if known && c.isGone(record) {
		if err := c.Forget(id); err != nil {
			c.log.Error("cannot remove the record of a deleted volume's checks", "volume", id, "error", err)
		}

		known = false
	}

	var period time.Duration
	if known {
		period = c.PeriodOf(record)
	}

	if period <= 0 || period > maxPeriod {
		delete(c.schedule.planned, id)

		return
	}

	c.correctCleanAt(id, time.Now(), period)

	tried = c.schedule.lastTried(id, tried)
	c.schedule.planned[id] = plannedCheck{nextCheck(id, checkedSince(tried, record.Since, time.Now(), period), period), tried}
}

// checkIfDue checks a volume, unless its check is not due any more, and returns how long
// that took.
func (c *Checker) checkIfDue(ctx context.Context, id string) time.Duration {
	began := time.Now()

	// Its period may have been changed on another machine.
	c.plan(id, time.Time{})

	if check, planned := c.schedule.planned[id]; !planned || check.due.After(began) {
		return 0
	}

	if c.running.get(id) != nil {
		// A check that hangs, or one by request.
		c.plan(id, began)

		return 0
	}

	// Also after ctx's end: the check thaws the filesystem and removes its copy.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxWait)
	defer cancel()

	_ = operation.AwaitEnd(bounded, func() { c.checkLogged(ctx, id) })

	c.plan(id, began)

	return time.Since(began)
}

func (c *Checker) checkLogged(ctx context.Context, id string) {
	defer func() {
		if value := recover(); value != nil {
			c.log.Error("a check panicked", "volume", id, "panic", value, "stack", string(debug.Stack()))
		}
	}()

	if _, err := c.Check(ctx, id, HowOnline); err != nil && ctx.Err() == nil {
		c.log.Info("a scheduled check was skipped, as the filesystem cannot be checked now", "volume", id, "reason", err)
	}
}

// isGone reports whether the volume does not exist any more: it is not in use here, its pool does
// not have it, and no controller says that the pool should. A pool that is not served, or not configured
// any more, may have it.
func (c *Checker) isGone(record *Result) bool {
	if c.config.Known.Registered(record.VolumeID) {
		return false
	}

	if _, inUse := c.config.Volumes.Staged(record.VolumeID); inUse || c.config.Known.CheckReachable(record.Pool) != nil {
		return false
	}

	found, err := c.config.Pools.Get(record.Pool)
	if err == nil {
		_, err = found.Size(imageOf(record.VolumeID))
	}

	return errors.Is(err, pool.ErrMissing)
}

// PeriodOf returns the time between two checks of the volume, 0 for never. It is the
// driver's where the pool does not respond.
func (c *Checker) PeriodOf(record *Result) time.Duration {
	found, err := c.config.Pools.Get(record.Pool)
	if err != nil || c.config.Known.CheckReachable(record.Pool) != nil {
		return c.config.Period
	}

	wanted, err := found.Mutable(record.VolumeID)
	if text, named := wanted[volume.KeyCheckPeriod]; err == nil && named {
		period, _ := time.ParseDuration(text) // Mutable has only valid ones

		return period
	}

	return c.config.Period
}

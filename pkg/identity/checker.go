package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// freshFor is the time for which a result is cached.
	freshFor = time.Second
	// hungAfter is when a check that has not returned counts as failed. It is less
	// than the usual timeout of a liveness probe, a second; a check normally takes
	// microseconds.
	hungAfter = 800 * time.Millisecond
)

// ErrHung is the result while a check does not return.
var ErrHung = errors.New("the check of the state does not return")

// checker runs one check at a time for any number of callers, and caches its result
// for a second. Without callers it runs none.
type checker struct {
	check func(context.Context) error
	log   *slog.Logger

	mu       sync.Mutex
	running  *attempt
	finished *attempt
	said     string // the last reason that went to the log
}

// attempt is one run of the check. done is closed after err and ended are set.
type attempt struct {
	started time.Time
	done    chan struct{}
	ended   time.Time
	err     error
}

func newChecker(check func(context.Context) error, log *slog.Logger) *checker {
	return &checker{check: check, log: log}
}

// result returns why the plugin is unhealthy, or nil, from a check that is at most
// freshFor old.
func (c *checker) result(ctx context.Context) error {
	current := c.current(ctx)

	select {
	case <-current.done:
		return current.err
	default:
	}

	// Measured from the start of the check, not of the call: a second caller does not
	// wait for a hung check as long again.
	hung := time.NewTimer(time.Until(current.started.Add(hungAfter)))
	defer hung.Stop()

	select {
	case <-current.done:
		return current.err
	case <-hung.C:
		err := fmt.Errorf("%w since %s", ErrHung, current.started.Format(time.RFC3339))
		c.report(ctx, err)

		return err
	case <-ctx.Done():
		return fmt.Errorf("check of the state: %w", context.Cause(ctx))
	}
}

// current returns the attempt to wait for: the last one when it is fresh, the
// running one, or a new one.
func (c *checker) current(ctx context.Context) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.running != nil {
		return c.running
	}

	if c.finished != nil && time.Since(c.finished.ended) < freshFor {
		return c.finished
	}

	c.running = &attempt{started: time.Now(), done: make(chan struct{})}

	// Other callers join the check: it must not end with the call that started it.
	go c.run(context.WithoutCancel(ctx), c.running)

	return c.running
}

func (c *checker) run(ctx context.Context, current *attempt) {
	err := c.check(ctx)

	c.mu.Lock()
	current.err, current.ended = err, time.Now()
	c.running, c.finished = nil, current
	close(current.done)
	c.mu.Unlock()

	c.report(ctx, err)
}

// report logs a change of mind, not every probe.
func (c *checker) report(ctx context.Context, err error) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}

	c.mu.Lock()
	changed := reason != c.said
	c.said = reason
	c.mu.Unlock()

	switch {
	case !changed:
	case err != nil:
		c.log.ErrorContext(ctx, "the plugin is unhealthy, Probe fails", "error", err)
	default:
		c.log.InfoContext(ctx, "the plugin is healthy again")
	}
}

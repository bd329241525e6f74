package health

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	// The delay between reconnections doubles up to longestBackoff and then stays at
	// steadyBackoff.
	longestBackoff = 64 * time.Second
	steadyBackoff  = 60 * time.Second
)

var errSourceEnded = errors.New("the source has ended without an error")

// SourceStatus is the status of a source.
type SourceStatus struct {
	Name      string `json:"name"`
	Connected bool   `json:"connected"`
	// Problem says why it is not connected.
	Problem string `json:"problem,omitempty"`
}

// monitoredSource is a source with its status. Monitor.mu guards the status.
type monitoredSource struct {
	Source

	connected bool
	since     time.Time
	problem   string
}

// Sources returns the status of the sources, in the order of Config.
func (m *Monitor) Sources() []SourceStatus {
	m.mu.Lock()
	defer m.unlockAndLog()

	all := make([]SourceStatus, 0, len(m.sources))
	for _, each := range m.sources {
		all = append(all, SourceStatus{Name: each.Name(), Connected: each.connected, Problem: each.problem})
	}

	return all
}

// allConnected reports whether there are sources and all are connected.
func (m *Monitor) allConnected() bool {
	for _, each := range m.sources {
		if !each.connected {
			return false
		}
	}

	return len(m.sources) > 0
}

// supported reports whether the kernel and the process support a source.
func (m *Monitor) supported(source *monitoredSource) bool {
	err := source.Supported()
	if err == nil {
		return true
	}

	m.config.Log.Info("event source is not supported; relists replace it",
		"source", source.Name(), "period", m.config.RelistPeriod, "error", err)

	m.mu.Lock()
	defer m.unlockAndLog()

	source.problem = err.Error()

	return false
}

// follow runs a source until ctx ends, and again after it fails.
func (m *Monitor) follow(ctx context.Context, source *monitoredSource) {
	for attempt := 0; ; attempt++ {
		err := m.runSource(ctx, source)

		if up := m.sourceFailed(source, err); up >= longestBackoff {
			attempt = 0
		}

		if ctx.Err() != nil {
			return
		}

		delay := delayBefore(attempt)
		m.metrics.failures.WithLabelValues(m.config.Name, source.Name()).Inc()
		m.config.Log.Warn("event source failed; relists replace it until it is connected again",
			"source", source.Name(), "period", m.config.RelistPeriod, "retry", delay, "error", err)

		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
	}
}

// delayBefore returns the delay before a source is connected again, given the number
// of failures before the newest.
func delayBefore(failures int) time.Duration {
	if failures == 0 {
		return 0
	}

	delay := time.Second
	for range failures - 1 {
		if delay *= 2; delay > longestBackoff {
			return steadyBackoff
		}
	}

	return delay
}

// runSource runs a source and returns why it ended, never nil.
func (m *Monitor) runSource(ctx context.Context, source *monitoredSource) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", errSourceEnded, value, debug.Stack())
		}
	}()

	if err := source.Run(ctx, func() { m.sourceConnected(source) }, func(event Event) { m.notify(source, event) }); err != nil {
		return err
	}

	return errSourceEnded
}

func (m *Monitor) sourceConnected(source *monitoredSource) {
	m.mu.Lock()
	defer m.unlockAndLog()

	source.connected, source.since, source.problem = true, time.Now(), ""
	m.metrics.connects.WithLabelValues(m.config.Name, source.Name()).Inc()
	m.metrics.setSourceUp(source.Name(), true)
	// A relist finds what happened before the source was connected.
	m.requestRelist(time.Now())
}

// sourceFailed records why a source ended and returns how long it was connected.
func (m *Monitor) sourceFailed(source *monitoredSource, err error) time.Duration {
	m.mu.Lock()
	defer m.unlockAndLog()

	var up time.Duration
	if source.connected {
		up = time.Since(source.since)
	}

	source.connected, source.problem = false, err.Error()
	m.metrics.setSourceUp(source.Name(), false)
	m.wakeRelists()

	return up
}

func (m *Monitor) notify(source *monitoredSource, event Event) {
	m.metrics.events.WithLabelValues(m.config.Name, source.Name(), event.Kind.String()).Inc()

	if event.Kind == Lost {
		m.mu.Lock()
		defer m.unlockAndLog()

		next := m.schedule.began.Add(lostGap)
		if now := time.Now(); next.Before(now) {
			next = now
		}

		m.requestRelist(next)

		return
	}

	if m.config.Concern == nil {
		return
	}

	if event.At.IsZero() {
		event.At = time.Now()
	}

	if ids := m.config.Concern(event); len(ids) > 0 {
		m.announce(ids, announcedEvent{at: event.At, source: source.Name()})
	}
}

// begin enables Suspect and events, and starts the timers of requested probes.
func (m *Monitor) begin() {
	m.mu.Lock()
	defer m.unlockAndLog()

	m.phase = running

	for _, s := range m.subjects {
		m.resetTimer(s)
	}
}

// end prevents further probes, and drops those that are queued, also behind one that runs: no worker
// takes them any more.
func (m *Monitor) end() {
	m.mu.Lock()
	defer m.unlockAndLog()

	m.phase = ended
	// ShutDown alone keeps what is queued, and Done would queue again what was added during its probe.
	m.queue.ShutDown()
	m.queue = workqueue.NewTyped[string]()
	m.queue.ShutDown()
	m.stop()

	for _, s := range m.subjects {
		m.resetTimer(s)
	}
}

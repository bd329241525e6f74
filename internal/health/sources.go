package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
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

// Sources returns the status of the sources, in the order of Config.
func (m *Monitor) Sources() []SourceStatus {
	m.schedule.mu.Lock()
	defer m.schedule.mu.Unlock()

	all := make([]SourceStatus, 0, len(m.sources))
	for _, each := range m.sources {
		all = append(all, each.status.SourceStatus)
	}

	return all
}

// monitoredSource runs a source. It reports events, and what they mean for relists.
type monitoredSource struct {
	Source

	status   *sourceStatus
	schedule *relistSchedule
	metrics  viewMetrics
	log      *slog.Logger
	// concern is Config.Concern, announce is prober.announce.
	concern  func(Event) []string
	announce func(ids []string, event announcedEvent)
}

// supported reports whether the kernel and the process support the source.
func (m *monitoredSource) supported() bool {
	err := m.Supported()
	if err == nil {
		return true
	}

	m.log.Info("event source is not supported; relists replace it",
		"source", m.Name(), "period", m.schedule.period, "error", err)
	m.schedule.failed(m.status, err)

	return false
}

// follow runs the source until ctx ends, and again after it fails.
func (m *monitoredSource) follow(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		err := m.run(ctx)

		m.metrics.setSourceUp(m.Name(), false)

		if up := m.schedule.failed(m.status, err); up >= longestBackoff {
			attempt = 0
		}

		if ctx.Err() != nil {
			return
		}

		delay := delayBefore(attempt)
		m.metrics.failures.WithLabelValues(m.metrics.view, m.Name()).Inc()
		m.log.Warn("event source failed; relists replace it until it is connected again",
			"source", m.Name(), "period", m.schedule.period, "retry", delay, "error", err)

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

// run runs the source once and returns why it ended, never nil.
func (m *monitoredSource) run(ctx context.Context) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", errSourceEnded, value, debug.Stack())
		}
	}()

	if err := m.Run(ctx, m.connected, m.notify); err != nil {
		return err
	}

	return errSourceEnded
}

func (m *monitoredSource) connected() {
	m.metrics.connects.WithLabelValues(m.metrics.view, m.Name()).Inc()
	m.metrics.setSourceUp(m.Name(), true)
	m.schedule.connected(m.status)
}

func (m *monitoredSource) notify(event Event) {
	m.metrics.events.WithLabelValues(m.metrics.view, m.Name(), event.Kind.String()).Inc()

	if event.Kind == Lost {
		m.schedule.lost()

		return
	}

	if m.concern == nil {
		return
	}

	if event.At.IsZero() {
		event.At = time.Now()
	}

	if ids := m.concern(event); len(ids) > 0 {
		m.announce(ids, announcedEvent{at: event.At, source: m.Name()})
	}
}

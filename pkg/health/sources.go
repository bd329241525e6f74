package health

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

const (
	// longestDoubled is the last delay of those that double, steadyDelay comes
	// behind it for ever.
	longestDoubled = 64 * time.Second
	steadyDelay    = 60 * time.Second
)

var errSourceEnded = errors.New("it has ended without an error")

// SourceStatus is how a source is doing.
type SourceStatus struct {
	Name      string `json:"name"`
	Connected bool   `json:"connected"`
	// Problem says why it is not connected.
	Problem string `json:"problem,omitempty"`
}

// followed is a source and how it is doing. Monitor.mu guards the latter.
type followed struct {
	Source

	connected bool
	since     time.Time
	problem   string
}

// Sources tells how the sources are doing, in the order of Config.
func (m *Monitor) Sources() []SourceStatus {
	m.mu.Lock()
	defer m.unlock()

	all := make([]SourceStatus, 0, len(m.sources))
	for _, each := range m.sources {
		all = append(all, SourceStatus{Name: each.Name(), Connected: each.connected, Problem: each.problem})
	}

	return all
}

// allUp says whether every source of the config is connected, and there is one.
func (m *Monitor) allUp() bool {
	for _, each := range m.sources {
		if !each.connected {
			return false
		}
	}

	return len(m.sources) > 0
}

// supported asks a source whether it can be had at all.
func (m *Monitor) supported(source *followed) bool {
	err := source.Supported()
	if err == nil {
		return true
	}

	m.config.Log.Info("a source of events is not to be had here; relists make up for it",
		"source", source.Name(), "period", m.config.RelistPeriod, "error", err)

	m.mu.Lock()
	defer m.unlock()

	source.problem = err.Error()

	return false
}

// follow runs a source until ctx ends, again and again when it fails.
func (m *Monitor) follow(ctx context.Context, source *followed) {
	for attempt := 0; ; attempt++ {
		err := m.runSource(ctx, source)

		if up := m.down(source, err); up >= longestDoubled {
			attempt = 0
		}

		if ctx.Err() != nil {
			return
		}

		delay := delayBefore(attempt)
		m.measured.failures.WithLabelValues(m.config.Name, source.Name()).Inc()
		m.config.Log.Warn("a source of events has failed; relists make up for it until it is connected again",
			"source", source.Name(), "period", m.config.RelistPeriod, "again", delay, "error", err)

		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
	}
}

// delayBefore returns how long to wait before a source is connected again, after
// the given number of failures before the newest.
func delayBefore(failures int) time.Duration {
	if failures == 0 {
		return 0
	}

	delay := time.Second
	for range failures - 1 {
		if delay *= 2; delay > longestDoubled {
			return steadyDelay
		}
	}

	return delay
}

// runSource returns why the source has ended.
func (m *Monitor) runSource(ctx context.Context, source *followed) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", errSourceEnded, value, debug.Stack())
		}
	}()

	if err := source.Run(ctx, func() { m.up(source) }, func(event Event) { m.notify(source, event) }); err != nil {
		return err
	}

	return errSourceEnded
}

func (m *Monitor) up(source *followed) {
	m.mu.Lock()
	defer m.unlock()

	source.connected, source.since, source.problem = true, time.Now(), ""
	m.measured.connects.WithLabelValues(m.config.Name, source.Name()).Inc()
	m.measured.sourceUp(source.Name(), true)
	// What has happened before the source was listening is for a relist to find.
	m.disturbed(time.Now())
}

// down returns for how long the source was up.
func (m *Monitor) down(source *followed, err error) time.Duration {
	m.mu.Lock()
	defer m.unlock()

	var up time.Duration
	if source.connected {
		up = time.Since(source.since)
	}

	source.connected, source.problem = false, err.Error()
	m.measured.sourceUp(source.Name(), false)
	m.disturbed(time.Time{})

	return up
}

func (m *Monitor) notify(source *followed, event Event) {
	m.measured.events.WithLabelValues(m.config.Name, source.Name(), event.Kind.String()).Inc()

	if event.Kind == Lost {
		m.mu.Lock()
		defer m.unlock()

		next := m.plan.began.Add(lostGap)
		if now := time.Now(); next.Before(now) {
			next = now
		}

		m.disturbed(next)

		return
	}

	if m.config.Concern == nil {
		return
	}

	if event.At.IsZero() {
		event.At = time.Now()
	}

	if ids := m.config.Concern(event); len(ids) > 0 {
		m.announce(ids, announcement{at: event.At, source: source.Name()})
	}
}

// begin has Suspect and the events looked at, and the looks that observations
// have asked for so far.
func (m *Monitor) begin() {
	m.mu.Lock()
	defer m.unlock()

	m.phase = running

	for _, s := range m.looks.subjects {
		m.settle(s)
	}
}

// end has no more probes begun.
func (m *Monitor) end() {
	m.mu.Lock()
	defer m.unlock()

	m.phase = ended
	m.stop()

	for _, s := range m.looks.subjects {
		m.settle(s)
	}
}

package health

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

const (
	// lostGap is the time between relists because of lost events.
	lostGap = time.Second
	// connectLimit is how long the first relist waits for the sources. What was probed before a source is connected
	// must be probed again.
	connectLimit = 200 * time.Millisecond
)

var errEnded = errdefs.New(errdefs.ErrUnavailable, "the driver is ending")

// Relist probes all subjects and forgets those that are not listed any more. It
// returns once every probe has ended or timed out, or with ctx's error.
func (m *Monitor) Relist(ctx context.Context) error {
	r := m.schedule.begin()
	ids := m.config.List()

	if err := m.prober.await(ctx, r, func(q *probeQueue) { q.addRound(r, ids) }); err != nil {
		return err
	}

	m.prober.forgetOthers(ids, r.began)
	m.schedule.completed.Do(func() { close(m.schedule.first) })
	m.metrics.relist.WithLabelValues(m.config.Name).Observe(time.Since(r.began).Seconds())

	return nil
}

// AwaitRelist returns once a relist is complete, so that all subjects have a record, or
// with ctx's error.
func (m *Monitor) AwaitRelist(ctx context.Context) error {
	select {
	case <-m.schedule.first:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-m.prober.base.Done():
		return errEnded
	}
}

// ProbeNow probes one subject before those of relists and returns its record, which has
// ProbeTimedOut if the probe hangs. Unlike an event it triggers no later probes.
// Errors: ErrGone, ctx's.
func (m *Monitor) ProbeNow(ctx context.Context, id string) (*Record, error) {
	r := &round{incomplete: 1, done: make(chan struct{})}

	if err := m.prober.await(ctx, r, func(q *probeQueue) { q.join(r, id) }); err != nil {
		return nil, err
	}

	if record, ok := m.cache.get(id); ok {
		return record, nil
	}

	return nil, ErrGone
}

// relistPeriodically calls Relist whenever it is due, until ctx ends.
func (m *Monitor) relistPeriodically(ctx context.Context) {
	m.schedule.awaitSources(ctx)

	timer := time.NewTimer(0)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-m.schedule.wake:
		case <-timer.C:
		}

		if wait := m.schedule.untilNext(); wait > 0 {
			timer.Reset(wait)

			continue
		}

		if err := m.Relist(ctx); err != nil {
			return
		}

		timer.Reset(m.schedule.untilNext())
	}
}

// relistSchedule decides when to relist: by the period, and earlier because of the sources, whose status
// it has.
type relistSchedule struct {
	period, eventedPeriod time.Duration
	clock                 *stamps
	// wake has relistPeriodically recompute the time of the next relist.
	wake chan struct{}
	// first is closed when the first relist is complete.
	first     chan struct{}
	completed sync.Once

	mu      sync.Mutex
	sources []sourceStatus
	// began is when the newest relist started.
	began time.Time
	// wanted is the time of a relist that is due before the period ends, because a
	// source was connected or lost events; or zero.
	wanted time.Time
}

// sourceStatus is the status of a source, and since when it is connected.
type sourceStatus struct {
	SourceStatus

	since time.Time
	// tried means that it was connected, or has failed.
	tried bool
}

func newRelistSchedule(config *Config, clock *stamps) *relistSchedule {
	s := &relistSchedule{
		period: config.RelistPeriod, eventedPeriod: config.EventedRelistPeriod, clock: clock,
		wake: make(chan struct{}, 1), first: make(chan struct{}),
	}

	for _, source := range config.Sources {
		s.sources = append(s.sources, sourceStatus{SourceStatus: SourceStatus{Name: source.Name(), Problem: "not connected yet"}})
	}

	return s
}

// awaitSources returns once each source is connected or has failed, after connectLimit, or when ctx ends.
func (s *relistSchedule) awaitSources(ctx context.Context) {
	limit := time.NewTimer(connectLimit)
	defer limit.Stop()

	for s.isConnecting() {
		select {
		case <-ctx.Done():
			return
		case <-limit.C:
			return
		case <-s.wake:
		}
	}
}

// isConnecting reports whether a source has neither been connected nor failed.
func (s *relistSchedule) isConnecting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.ContainsFunc(s.sources, func(each sourceStatus) bool { return !each.tried })
}

// begin returns the round of a relist, whose time precedes the listing of its ids.
func (s *relistSchedule) begin() *round {
	s.mu.Lock()
	defer s.mu.Unlock()

	r := &round{began: s.clock.next(), done: make(chan struct{})}
	r.unexpected = s.allConnected() && s.wanted.IsZero() && !s.began.IsZero()
	s.began, s.wanted = r.began, time.Time{}

	return r
}

// untilNext returns the time until the next relist, at most 0 when it is due.
func (s *relistSchedule) untilNext() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	period := s.period
	if s.allConnected() {
		period = s.eventedPeriod
	}

	next := s.began.Add(period)
	if !s.wanted.IsZero() && s.wanted.Before(next) {
		next = s.wanted
	}

	return time.Until(next)
}

// allConnected reports whether there are sources and all are connected.
func (s *relistSchedule) allConnected() bool {
	return len(s.sources) > 0 && !slices.ContainsFunc(s.sources, func(each sourceStatus) bool { return !each.Connected })
}

// connected records that a source is connected. A relist that begins later finds what happened before.
func (s *relistSchedule) connected(source *sourceStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()

	source.Connected, source.since, source.Problem, source.tried = true, time.Now(), "", true

	if s.began.IsZero() {
		s.wakeUp()
	} else {
		s.request(time.Now())
	}
}

// failed records why a source is not connected and returns how long it was.
func (s *relistSchedule) failed(source *sourceStatus, err error) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	var up time.Duration
	if source.Connected {
		up = time.Since(source.since)
	}

	source.Connected, source.Problem, source.tried = false, err.Error(), true
	s.wakeUp()

	return up
}

// lost requests a relist because events were lost: now, or lostGap after the newest one.
func (s *relistSchedule) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.request(s.began.Add(lostGap))
}

// request has a relist started at a time, if none is due before.
func (s *relistSchedule) request(at time.Time) {
	if s.wanted.IsZero() || at.Before(s.wanted) {
		s.wanted = at
	}

	s.wakeUp()
}

// wakeUp has relistPeriodically recompute the time of the next relist.
func (s *relistSchedule) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // woken already
	}
}

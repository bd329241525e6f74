package health

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// lostGap is the time between relists because of lost events.
const lostGap = time.Second

var errEnded = errdefs.New(errdefs.ErrUnavailable, "the driver is ending")

// relistSchedule decides when to relist. Monitor.mu guards it.
type relistSchedule struct {
	// began is when the newest relist started.
	began time.Time
	// wanted is the time of a relist that is due before the period ends, because a
	// source was connected or lost events; or zero.
	wanted time.Time
	// wake has relistPeriodically recompute the time of the next one.
	wake chan struct{}
	// first is closed when the first relist is complete.
	first     chan struct{}
	completed sync.Once
}

// round has the probes of one relist, or the one of ProbeNow. Monitor.mu guards it.
type round struct {
	began time.Time
	// queued are the ids that are not in the monitor's queue yet.
	queued []string
	// incomplete counts the ids whose probe is not complete; done is closed at 0.
	incomplete int
	done       chan struct{}
	// unexpected: all sources were connected and lost no event since the previous
	// relist, so an event should have preceded each change.
	unexpected bool
}

func (m *Monitor) complete(rounds []*round) {
	for _, r := range rounds {
		r.incomplete--

		if r.incomplete == 0 {
			close(r.done)
		}
	}
}

// Relist probes all subjects and forgets those that are not listed any more. It
// returns once every probe has ended or timed out, or with ctx's error.
func (m *Monitor) Relist(ctx context.Context) error {
	r := m.beginRelist()
	ids := m.config.List()

	if len(ids) > 0 {
		m.mu.Lock()
		r.queued, r.incomplete = ids, len(ids)
		m.relists = append(m.relists, r)
		m.startProbes()
		m.unlockAndLog()
	} else {
		close(r.done)
	}

	if err := m.await(ctx, r); err != nil {
		return err
	}

	m.mu.Lock()
	defer m.unlockAndLog()

	m.changes = append(m.changes, m.cache.relisted(ids, r.began)...)
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
	case <-m.base.Done():
		return errEnded
	}
}

// beginRelist returns a round without ids, whose time precedes their listing.
func (m *Monitor) beginRelist() *round {
	m.mu.Lock()
	defer m.unlockAndLog()

	r := &round{began: m.stamp(), done: make(chan struct{})}
	r.unexpected = m.allConnected() && m.schedule.wanted.IsZero()
	m.schedule.began, m.schedule.wanted = r.began, time.Time{}

	return r
}

// ProbeNow probes one subject before those of relists and returns its record, which has
// ProbeTimedOut if the probe hangs. Unlike an event it triggers no later probes.
// Errors: ErrGone, ctx's.
func (m *Monitor) ProbeNow(ctx context.Context, id string) (*Record, error) {
	r := &round{incomplete: 1, done: make(chan struct{})}

	m.mu.Lock()
	m.join(r, id)
	m.startProbes()
	m.unlockAndLog()

	if err := m.await(ctx, r); err != nil {
		return nil, err
	}

	if record, ok := m.cache.get(id); ok {
		return record, nil
	}

	return nil, ErrGone
}

// await returns once the round's probes are complete. On an error it dequeues those
// that have not started.
func (m *Monitor) await(ctx context.Context, r *round) error {
	select {
	case <-r.done:
	case <-ctx.Done():
	case <-m.base.Done():
	}

	m.mu.Lock()
	defer m.unlockAndLog()

	m.relists = slices.DeleteFunc(m.relists, func(each *round) bool { return each == r })

	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case m.base.Err() != nil:
		return errEnded
	default:
		return nil
	}
}

// join queues a subject and has the round wait for its next probe, or not wait if the
// running one has timed out.
func (m *Monitor) join(r *round, id string) {
	s := m.subjectOf(id)
	m.queue.Add(id)

	if s.running != nil && s.running.timedOut {
		m.complete([]*round{r})
	} else {
		s.waiting = append(s.waiting, r)
	}
}

// queueNextOfRelists queues the next subject of the relists if nothing else is queued.
func (m *Monitor) queueNextOfRelists() {
	for m.queue.Len() == 0 && len(m.relists) > 0 {
		r := m.relists[0]
		if len(r.queued) == 0 {
			m.relists = m.relists[1:]
			continue
		}

		id := r.queued[0]
		r.queued = r.queued[1:]
		m.join(r, id)
	}
}

// expectsEvents reports whether a change that the next probe finds should have been
// preceded by an event: a relist is the only cause of the probe, all sources are
// connected, and there is a record to compare with.
func (m *Monitor) expectsEvents(s *subject) bool {
	byRelist := slices.ContainsFunc(s.waiting, func(r *round) bool { return r.unexpected })
	if !byRelist || s.due != [dueCauses]time.Time{} || !s.announced.at.IsZero() {
		return false
	}

	_, known := m.cache.get(s.id)

	return known
}

// relistPeriodically calls Relist whenever it is due, until ctx ends.
func (m *Monitor) relistPeriodically(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-m.schedule.wake:
		case <-timer.C:
		}

		if wait := m.untilRelist(); wait > 0 {
			timer.Reset(wait)

			continue
		}

		if err := m.Relist(ctx); err != nil {
			return
		}

		timer.Reset(m.untilRelist())
	}
}

// untilRelist returns the time until the next relist, at most 0 when it is due.
func (m *Monitor) untilRelist() time.Duration {
	m.mu.Lock()
	defer m.unlockAndLog()

	if m.schedule.began.IsZero() {
		return 0
	}

	period := m.config.RelistPeriod
	if m.allConnected() {
		period = m.config.EventedRelistPeriod
	}

	next := m.schedule.began.Add(period)
	if wanted := m.schedule.wanted; !wanted.IsZero() && wanted.Before(next) {
		next = wanted
	}

	return time.Until(next)
}

// requestRelist has a relist started at a time, if none is due before.
func (m *Monitor) requestRelist(at time.Time) {
	if m.schedule.wanted.IsZero() || at.Before(m.schedule.wanted) {
		m.schedule.wanted = at
	}

	m.wakeRelists()
}

// wakeRelists has relistPeriodically recompute the time of the next one.
func (m *Monitor) wakeRelists() {
	select {
	case m.schedule.wake <- struct{}{}:
	default: // woken already
	}
}

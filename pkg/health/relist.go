package health

import (
	"context"
	"errors"
	"slices"
	"time"
)

const (
	// lostGap is the time between relists because of lost events.
	lostGap = time.Second
	// missedAfter is the time after which an event counts as missed if a relist found
	// its effect first: for some events the kernel needs some 10 ms.
	missedAfter = time.Second
)

var errEnded = errors.New("the monitor has ended")

// relistSchedule decides when to relist. Monitor.mu guards it.
type relistSchedule struct {
	// began is when the newest relist started.
	began time.Time
	// earlier is the time of a relist that is due before the period ends, or zero.
	earlier time.Time
	// wake has relists recompute the time of the next one.
	wake chan struct{}

	// interruptions counts times in which sources may have missed events: they
	// connected, failed, or lost events. interruptionsAtRelist is the number at the
	// newest relist.
	interruptions, interruptionsAtRelist int
}

// round has the probes of one relist, or the one of ProbeNow. Monitor.mu guards it.
type round struct {
	ids   []string
	next  int
	began time.Time
	// urgent rounds precede others.
	urgent bool
	// unanswered counts the ids whose probe is not complete; done is closed at 0.
	unanswered int
	done       chan struct{}
	// sourcesWereUp: all sources have been connected since the previous relist, so
	// every change should have raised an event.
	sourcesWereUp bool
}

func completeOne(rounds []*round) {
	for _, r := range rounds {
		r.unanswered--

		if r.unanswered == 0 {
			close(r.done)
		}
	}
}

// Relist probes all subjects and forgets those that are not listed any more. It
// returns once every probe has ended or timed out, or with ctx's error.
func (m *Monitor) Relist(ctx context.Context) error {
	r := m.beginRound()
	ids := m.config.List()

	if err := m.probeAll(ctx, r, ids); err != nil {
		return err
	}

	m.mu.Lock()
	defer m.unlockAndLog()

	m.changes = append(m.changes, m.cache.relisted(ids, r.began)...)
	m.metrics.relist.WithLabelValues(m.config.Name).Observe(time.Since(r.began).Seconds())

	return nil
}

// ProbeNow probes one subject before any others and returns its record, which has
// ProbeTimedOut if the probe hangs. Unlike an event it triggers no later probes.
// Errors: ErrGone, ctx's.
func (m *Monitor) ProbeNow(ctx context.Context, id string) (*Record, error) {
	m.mu.Lock()
	r := &round{began: m.stamp(), done: make(chan struct{}), urgent: true}
	m.mu.Unlock()

	if err := m.probeAll(ctx, r, []string{id}); err != nil {
		return nil, err
	}

	if record, ok := m.cache.get(id); ok {
		return record, nil
	}

	return nil, ErrGone
}

// beginRound returns a round without ids, whose time precedes their listing.
func (m *Monitor) beginRound() *round {
	m.mu.Lock()
	defer m.unlockAndLog()

	r := &round{began: m.stamp(), done: make(chan struct{})}
	r.sourcesWereUp = m.allConnected() && m.schedule.interruptionsAtRelist == m.schedule.interruptions
	m.schedule.interruptionsAtRelist, m.schedule.began, m.schedule.earlier = m.schedule.interruptions, r.began, time.Time{}

	return r
}

// probeAll returns once a probe of each of the ids, started after the round, is
// complete.
func (m *Monitor) probeAll(ctx context.Context, r *round, ids []string) error {
	if len(ids) > 0 {
		m.addRound(r, ids)
		defer m.removeRound(r)

		select {
		case <-r.done:
		case <-ctx.Done():
		case <-m.base.Done():
		}
	}

	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case m.base.Err() != nil:
		return errEnded
	default:
		return nil
	}
}

func (m *Monitor) addRound(r *round, ids []string) {
	m.mu.Lock()
	defer m.unlockAndLog()

	r.ids, r.unanswered = ids, len(ids)

	if r.urgent {
		m.queue.relists = slices.Insert(m.queue.relists, 0, r)
	} else {
		m.queue.relists = append(m.queue.relists, r)
	}

	m.startWorkers(len(ids))
}

func (m *Monitor) removeRound(r *round) {
	m.mu.Lock()
	defer m.unlockAndLog()

	m.queue.relists = slices.DeleteFunc(m.queue.relists, func(each *round) bool { return each == r })
}

// nextOfRelists returns the next subject that a relist must probe, or nil.
func (m *Monitor) nextOfRelists() *probeState {
	for len(m.queue.relists) > 0 {
		r := m.queue.relists[0]
		if r.next == len(r.ids) {
			m.queue.relists = m.queue.relists[1:]

			continue
		}

		r.next++

		if s := m.join(r, r.ids[r.next-1]); s != nil {
			return s
		}
	}

	return nil
}

// join has the round wait for a probe of a subject. It returns the subject unless
// the probe is running already or cannot be started.
func (m *Monitor) join(r *round, id string) *probeState {
	s := m.stateOf(id)

	switch {
	case s.phase == hanging:
		s.probeAgain = true
		completeOne([]*round{r})

		return nil
	case s.phase == probing && s.startedAt.Before(r.began):
		s.probeAgain = true
		s.waitingForNext = append(s.waitingForNext, r)

		return nil
	case s.phase == probing:
		s.waiting = append(s.waiting, r)

		return nil
	default:
		s.waiting = append(s.waiting, r)

		return s
	}
}

// expectsEvents reports whether a change found by the running probe means a missed
// event: all sources have been connected since the previous relist, the subject had
// a record then, and no event has arrived since. If another probe was requested, the
// change may be its reason.
func (m *Monitor) expectsEvents(s *probeState) bool {
	if !slices.ContainsFunc(s.waiting, func(r *round) bool { return r.sourcesWereUp }) {
		return false
	}

	_, hasRecord := m.cache.get(s.id)
	awaited := slices.ContainsFunc(s.due[:dueMissedCount], func(due time.Time) bool { return !due.IsZero() })
	recent := !s.lastEventProbe.IsZero() && time.Since(s.lastEventProbe) < thirdRetry+missedAfter

	return hasRecord && !awaited && !recent
}

// countAsMissed counts the changes that an event should have announced. The metric
// is incremented after missedAfter, because the event may be late.
func (s *probeState) countAsMissed(changes []Change) {
	for _, change := range changes {
		if change.Reason.Evented() {
			s.missed++
			s.due[dueMissedCount] = time.Now().Add(missedAfter)
		}
	}
}

// relists calls Relist whenever it is due, until ctx ends.
func (m *Monitor) relists(ctx context.Context) {
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
	if wanted := m.schedule.earlier; !wanted.IsZero() && wanted.Before(next) {
		next = wanted
	}

	return time.Until(next)
}

// noteMissedEvents records that events may have been missed: until the next relist,
// changes do not count as missed events. A relist is due at wanted, if not zero.
func (m *Monitor) noteMissedEvents(wanted time.Time) {
	m.schedule.interruptions++

	if !wanted.IsZero() && (m.schedule.earlier.IsZero() || wanted.Before(m.schedule.earlier)) {
		m.schedule.earlier = wanted
	}

	select {
	case m.schedule.wake <- struct{}{}:
	default: // woken already
	}
}

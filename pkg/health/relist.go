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
	// verdictAfter is how long an event may take to come after the relist that
	// has found what it tells of: the kernel needs some 10 ms for a few of them.
	verdictAfter = time.Second
)

var errEnded = errors.New("the monitor has ended, and looks at nothing any more")

// plan is when to relist. Monitor.mu guards it.
type plan struct {
	// began is when the newest relist began.
	began time.Time
	// wanted is when the next one is wanted before its time, zero where it is not.
	wanted time.Time
	// wake has the plan looked at again.
	wake chan struct{}

	// disturbances counts what makes a relist find more than events were missed,
	// that sources have connected and failed among it; seen is the number at the
	// newest relist.
	disturbances, seen int
}

// round is one relist's looks. Monitor.mu guards it.
type round struct {
	ids   []string
	next  int
	began time.Time
	// urgent comes before the rounds that are not.
	urgent bool
	// unanswered are the ids that are not answered for; done is closed at 0.
	unanswered int
	done       chan struct{}
	// vouched says that all sources have been up since the relist before, so that
	// every change should have been told of.
	vouched bool
}

func answer(rounds []*round) {
	for _, r := range rounds {
		r.unanswered--

		if r.unanswered == 0 {
			close(r.done)
		}
	}
}

// Relist looks at all subjects and forgets those that are not listed any more.
// It returns once every one of them is answered for, a probe that hangs by
// ProbeTimedOut; or with ctx's error.
func (m *Monitor) Relist(ctx context.Context) error {
	r := m.beginRound()
	ids := m.config.List()

	if err := m.lookAt(ctx, r, ids); err != nil {
		return err
	}

	m.mu.Lock()
	defer m.unlock()

	m.noted = append(m.noted, m.cache.relisted(ids, r.began)...)
	m.measured.relist.WithLabelValues(m.config.Name).Observe(time.Since(r.began).Seconds())

	return nil
}

// Look looks at one subject before any others, and returns what is known of it
// then; of one whose probe hangs that it does. It is no event: it is not looked
// at once more later. Errors: ErrGone, ctx's.
func (m *Monitor) Look(ctx context.Context, id string) (*Record, error) {
	m.mu.Lock()
	r := &round{began: m.stamp(), done: make(chan struct{}), urgent: true}
	m.mu.Unlock()

	if err := m.lookAt(ctx, r, []string{id}); err != nil {
		return nil, err
	}

	if record, ok := m.cache.get(id); ok {
		return record, nil
	}

	return nil, ErrGone
}

// beginRound returns a round without ids: its time is before they are listed.
func (m *Monitor) beginRound() *round {
	m.mu.Lock()
	defer m.unlock()

	r := &round{began: m.stamp(), done: make(chan struct{})}
	r.vouched = m.allUp() && m.plan.seen == m.plan.disturbances
	m.plan.seen, m.plan.began, m.plan.wanted = m.plan.disturbances, r.began, time.Time{}

	return r
}

// lookAt returns once all of ids are answered for, by looks that have begun since
// the round has.
func (m *Monitor) lookAt(ctx context.Context, r *round, ids []string) error {
	if len(ids) > 0 {
		m.beginLooks(r, ids)
		defer m.endLooks(r)

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

func (m *Monitor) beginLooks(r *round, ids []string) {
	m.mu.Lock()
	defer m.unlock()

	r.ids, r.unanswered = ids, len(ids)

	if r.urgent {
		m.looks.rounds = slices.Insert(m.looks.rounds, 0, r)
	} else {
		m.looks.rounds = append(m.looks.rounds, r)
	}

	m.hire(len(ids))
}

func (m *Monitor) endLooks(r *round) {
	m.mu.Lock()
	defer m.unlock()

	m.looks.rounds = slices.DeleteFunc(m.looks.rounds, func(each *round) bool { return each == r })
}

// nextOfRounds returns the next subject that a relist has to look at, nil when
// there is none.
func (m *Monitor) nextOfRounds() *subject {
	for len(m.looks.rounds) > 0 {
		r := m.looks.rounds[0]
		if r.next == len(r.ids) {
			m.looks.rounds = m.looks.rounds[1:]

			continue
		}

		r.next++

		if s := m.join(r, r.ids[r.next-1]); s != nil {
			return s
		}
	}

	return nil
}

// join has the round wait for the look at a subject. It returns the subject
// unless the look is under way, or can't be begun.
func (m *Monitor) join(r *round, id string) *subject {
	s := m.subject(id)

	switch {
	case s.state == hanging:
		s.dirty = true
		answer([]*round{r})

		return nil
	case s.state == looking && s.began.Before(r.began):
		s.dirty = true
		s.later = append(s.later, r)

		return nil
	case s.state == looking:
		s.rounds = append(s.rounds, r)

		return nil
	default:
		s.rounds = append(s.rounds, r)

		return s
	}
}

// vouched says whether the look under way finds nothing new unless an event was
// missed: all sources have been up since the relist before, something was known
// then, and no event has come since. Where another look was asked for, the
// change may be what it was asked for.
func (m *Monitor) vouched(s *subject) bool {
	if !slices.ContainsFunc(s.rounds, func(r *round) bool { return r.vouched }) {
		return false
	}

	_, known := m.cache.get(s.id)
	awaited := slices.ContainsFunc(s.due[:dueVerdict], func(due time.Time) bool { return !due.IsZero() })
	told := !s.looked.IsZero() && time.Since(s.looked) < laterAfter+verdictAfter

	return known && !awaited && !told
}

// suspectMissed notes the changes that an event should have told of. The verdict
// waits for one that is late.
func (s *subject) suspectMissed(changes []Change) {
	for _, change := range changes {
		if change.Reason.Evented() {
			s.missed++
			s.due[dueVerdict] = time.Now().Add(verdictAfter)
		}
	}
}

// relists calls Relist whenever it is time, until ctx ends.
func (m *Monitor) relists(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-m.plan.wake:
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

// untilRelist returns how long it is to the next relist, at most 0 when it is
// time.
func (m *Monitor) untilRelist() time.Duration {
	m.mu.Lock()
	defer m.unlock()

	if m.plan.began.IsZero() {
		return 0
	}

	period := m.config.RelistPeriod
	if m.allUp() {
		period = m.config.EventedRelistPeriod
	}

	next := m.plan.began.Add(period)
	if wanted := m.plan.wanted; !wanted.IsZero() && wanted.Before(next) {
		next = wanted
	}

	return time.Until(next)
}

// disturbed says that events may have been missed: until another relist, nothing
// vouches for them. Where wanted is not zero, that relist comes then.
func (m *Monitor) disturbed(wanted time.Time) {
	m.plan.disturbances++

	if !wanted.IsZero() && (m.plan.wanted.IsZero() || wanted.Before(m.plan.wanted)) {
		m.plan.wanted = wanted
	}

	select {
	case m.plan.wake <- struct{}{}:
	default: // it is going to be looked at anyway
	}
}

package health

import (
	"sync"
	"time"
)

const (
	// What an event tells of is there at once, or shortly after: an ext4 counts
	// its error with the next write of the superblock, and a filesystem shuts
	// down some milliseconds after the I/O error.
	firstAfter = 20 * time.Millisecond
	soonAfter  = 100 * time.Millisecond
	laterAfter = time.Second
	// Events of one subject that come in a storm are looked at with a growing time
	// in between; shortestGap also keeps a probe from asking for itself at once.
	shortestGap = 5 * time.Millisecond
	longestGap  = 100 * time.Millisecond
)

// looks are those that are under way or wanted. Monitor.mu guards them.
type looks struct {
	// subjects has those with anything to remember: neither healthy nor sick ones
	// that nobody looks at are among them.
	subjects map[string]*subject
	// urgent are looked at first, rounds have the rest.
	urgent []*subject
	rounds []*round
	// workers have a place, stuck have given it away and are under way still.
	workers, stuck int
	// probing counts the probes that are under way and not hanging.
	probing sync.WaitGroup
}

// subject is where the looks at one subject stand.
type subject struct {
	id    string
	state state
	// dirty asks for another look behind the one that is under way.
	dirty bool
	// began is when the look under way began; a late one has begun the newest.
	began time.Time
	// rounds wait for the look under way, later ones for the next.
	rounds, later []*round

	// announced is the event that no look has begun after, answering the one that
	// the look under way will have answered.
	announced, answering announcement
	// looked is when it was looked at last because of an event, gap how long to
	// wait from then to the next time.
	looked time.Time
	gap    time.Duration

	// due says when to do what.
	due   [duties]time.Time
	timer *time.Timer
	// missed are the changes that a relist has found before any event.
	missed int
}

type state int

const (
	resting state = iota
	queued
	looking
	// hanging: the probe has not returned in time, and no other is begun before
	// it does.
	hanging
)

// The duties of subject.due: looks, but for the last.
const (
	dueEvent int = iota
	dueFirst
	dueSoon
	dueLater
	dueAgain
	dueVerdict
	duties
)

// announcement is that something has happened.
type announcement struct {
	at     time.Time
	source string
}

func (m *Monitor) subject(id string) *subject {
	s := m.looks.subjects[id]
	if s == nil {
		s = &subject{id: id}
		m.looks.subjects[id] = s
	}

	return s
}

// announce has the subjects looked at because of an event.
func (m *Monitor) announce(ids []string, event announcement) {
	m.mu.Lock()
	defer m.unlock()

	if m.phase != running {
		return
	}

	for _, id := range ids {
		s, now := m.subject(id), time.Now()
		s.missed, s.due[dueVerdict] = 0, time.Time{}
		s.due[dueFirst], s.due[dueSoon], s.due[dueLater] = now.Add(firstAfter), now.Add(soonAfter), now.Add(laterAfter)

		if s.announced.at.IsZero() {
			s.announced = event
		}

		if next := s.looked.Add(s.gap); s.looked.IsZero() || !now.Before(next) {
			m.lookNow(s, now)
		} else {
			s.due[dueEvent] = next
		}

		m.settle(s)
	}
}

// lookNow enqueues because of an event.
func (m *Monitor) lookNow(s *subject, now time.Time) {
	if now.Sub(s.looked) > laterAfter {
		s.gap = 0
	}

	s.looked, s.gap = now, min(max(2*s.gap, shortestGap), longestGap)
	m.enqueue(s)
}

// lookAgain replaces the look that an observation has asked for before; 0 is
// none.
func (m *Monitor) lookAgain(id string, after time.Duration) {
	s := m.looks.subjects[id]

	switch {
	case after > 0:
		s = m.subject(id)
		s.due[dueAgain] = time.Now().Add(max(after, shortestGap))
	case s == nil:
		return
	default:
		s.due[dueAgain] = time.Time{}
	}

	m.settle(s)
}

// abandon drops the looks that are wanted at what was forgotten.
func (m *Monitor) abandon(id string) {
	s := m.looks.subjects[id]
	if s == nil {
		return
	}

	s.dirty, s.missed, s.due = false, 0, [duties]time.Time{}
	s.announced, s.answering = announcement{}, announcement{}
	answer(s.later)
	s.later = nil

	if s.state == queued {
		// It stays in the queue, where it is passed over.
		s.state = resting
		answer(s.rounds)
		s.rounds = nil
	}

	m.settle(s)
}

// enqueue has it looked at before what relists look at.
func (m *Monitor) enqueue(s *subject) {
	switch s.state {
	case resting:
		s.state = queued
		m.looks.urgent = append(m.looks.urgent, s)
		m.hire(1)
	case queued:
	case looking, hanging:
		s.dirty = true
	}
}

// settle has the timer wait for what is due next, or lets the subject go.
func (m *Monitor) settle(s *subject) {
	var next time.Time

	for _, due := range s.due {
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}

	switch {
	case m.phase == ended, next.IsZero():
		if s.timer != nil {
			s.timer.Stop()
		}

		if s.state == resting && m.looks.subjects[s.id] == s {
			delete(m.looks.subjects, s.id)
		}
	case m.phase != running: // begin sees to it
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Until(next), func() { m.fire(s) })
	default:
		s.timer.Reset(time.Until(next))
	}
}

// fire does what is due.
func (m *Monitor) fire(s *subject) {
	m.mu.Lock()
	defer m.unlock()

	if m.phase != running || m.looks.subjects[s.id] != s {
		return
	}

	now := time.Now()

	for duty, due := range s.due {
		if due.IsZero() || due.After(now) {
			continue
		}

		s.due[duty] = time.Time{}

		switch duty {
		case dueVerdict:
			m.measured.missed.WithLabelValues(m.config.Name).Add(float64(s.missed))
			s.missed = 0
		case dueEvent:
			m.lookNow(s, now)
		default:
			m.enqueue(s)
		}
	}

	m.settle(s)
}

package health

import (
	"sync"
	"time"
)

const (
	// The probes after an event, besides the immediate one. The effect may follow
	// the event: an ext4 counts its error with the next write of the superblock, and
	// a filesystem shuts down some milliseconds after the I/O error.
	firstRetry  = 20 * time.Millisecond
	secondRetry = 100 * time.Millisecond
	thirdRetry  = time.Second
	// Many events of one subject trigger probes with a growing gap between them;
	// shortestGap is also the least Observation.Again.
	shortestGap = 5 * time.Millisecond
	longestGap  = 100 * time.Millisecond
)

// probeQueue has the probes that are running or wanted. Monitor.mu guards it.
type probeQueue struct {
	// states has the subjects with a probe running, queued or due; others need none.
	states map[string]*probeState
	// urgent are probed first, relists have the rest.
	urgent  []*probeState
	relists []*round
	// workers counts towards the concurrency limit; slow ones no longer do, because
	// their probe takes longer than slowAfter, and still run.
	workers, slow int
	// running counts the probes that run and have not timed out.
	running sync.WaitGroup
}

// probeState has the probes of one subject: running, queued and due.
type probeState struct {
	id    string
	phase probePhase
	// probeAgain requests another probe after the running one.
	probeAgain bool
	// startedAt is when the running probe started.
	startedAt time.Time
	// waiting are the rounds that wait for the running or queued probe.
	waiting, waitingForNext []*round

	// announced is the first event without a probe started after it; reacting is the
	// event that the running probe reacts to.
	announced, reacting announcedEvent
	// lastEventProbe is when an event last triggered a probe; the next one follows
	// at the earliest after gap.
	lastEventProbe time.Time
	gap            time.Duration

	// due has the time of each kind of action; zero is none.
	due   [dueKinds]time.Time
	timer *time.Timer
	// missed counts changes that a relist found without a preceding event.
	missed int
}

type probePhase int

const (
	notQueued probePhase = iota
	queued
	probing
	// hanging: the probe has timed out; no other starts before it returns.
	hanging
)

// The kinds of probeState.due: probes, except for the last.
const (
	dueEvent int = iota
	dueFirst
	dueSoon
	dueLater
	dueAgain
	dueMissedCount
	dueKinds
)

// announcedEvent is the time and source of an event.
type announcedEvent struct {
	at     time.Time
	source string
}

func (m *Monitor) stateOf(id string) *probeState {
	s := m.queue.states[id]
	if s == nil {
		s = &probeState{id: id}
		m.queue.states[id] = s
	}

	return s
}

// announce has the subjects probed because of an event.
func (m *Monitor) announce(ids []string, event announcedEvent) {
	m.mu.Lock()
	defer m.unlockAndLog()

	if m.phase != running {
		return
	}

	for _, id := range ids {
		s, now := m.stateOf(id), time.Now()
		s.missed, s.due[dueMissedCount] = 0, time.Time{}
		s.due[dueFirst], s.due[dueSoon], s.due[dueLater] = now.Add(firstRetry), now.Add(secondRetry), now.Add(thirdRetry)

		if s.announced.at.IsZero() {
			s.announced = event
		}

		if next := s.lastEventProbe.Add(s.gap); s.lastEventProbe.IsZero() || !now.Before(next) {
			m.probeNow(s, now)
		} else {
			s.due[dueEvent] = next
		}

		m.resetTimer(s)
	}
}

// probeNow queues a probe because of an event.
func (m *Monitor) probeNow(s *probeState, now time.Time) {
	if now.Sub(s.lastEventProbe) > thirdRetry {
		s.gap = 0
	}

	s.lastEventProbe, s.gap = now, min(max(2*s.gap, shortestGap), longestGap)
	m.enqueue(s)
}

// scheduleRequested replaces the probe that the previous observation requested; 0
// cancels it.
func (m *Monitor) scheduleRequested(id string, after time.Duration) {
	s := m.queue.states[id]

	switch {
	case after > 0:
		s = m.stateOf(id)
		s.due[dueAgain] = time.Now().Add(max(after, shortestGap))
	case s == nil:
		return
	default:
		s.due[dueAgain] = time.Time{}
	}

	m.resetTimer(s)
}

// cancelProbes cancels the queued and due probes of a subject that was forgotten.
func (m *Monitor) cancelProbes(id string) {
	s := m.queue.states[id]
	if s == nil {
		return
	}

	s.probeAgain, s.missed, s.due = false, 0, [dueKinds]time.Time{}
	s.announced, s.reacting = announcedEvent{}, announcedEvent{}
	completeOne(s.waitingForNext)
	s.waitingForNext = nil

	if s.phase == queued {
		// It stays in the queue, which skips it.
		s.phase = notQueued
		completeOne(s.waiting)
		s.waiting = nil
	}

	m.resetTimer(s)
}

// enqueue has the subject probed before those of relists.
func (m *Monitor) enqueue(s *probeState) {
	switch s.phase {
	case notQueued:
		s.phase = queued
		m.queue.urgent = append(m.queue.urgent, s)
		m.startWorkers(1)
	case queued:
	case probing, hanging:
		s.probeAgain = true
	}
}

// resetTimer sets the timer to the next due time, or drops the idle state.
func (m *Monitor) resetTimer(s *probeState) {
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

		if s.phase == notQueued && m.queue.states[s.id] == s {
			delete(m.queue.states, s.id)
		}
	case m.phase != running: // begin starts the timers
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Until(next), func() { m.runDue(s) })
	default:
		s.timer.Reset(time.Until(next))
	}
}

// runDue runs the actions that are due.
func (m *Monitor) runDue(s *probeState) {
	m.mu.Lock()
	defer m.unlockAndLog()

	if m.phase != running || m.queue.states[s.id] != s {
		return
	}

	now := time.Now()

	for duty, due := range s.due {
		if due.IsZero() || due.After(now) {
			continue
		}

		s.due[duty] = time.Time{}

		switch duty {
		case dueMissedCount:
			m.metrics.missed.WithLabelValues(m.config.Name).Add(float64(s.missed))
			s.missed = 0
		case dueEvent:
			m.probeNow(s, now)
		default:
			m.enqueue(s)
		}
	}

	m.resetTimer(s)
}

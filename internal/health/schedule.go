package health

import "time"

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

// subject has the probes of one subject that run, are queued or are due later. It is
// dropped when there are none. prober.mu guards it.
type subject struct {
	id string
	// running is the probe that runs, or nil.
	running *runningProbe
	// waiting are the rounds that wait for the next probe to start.
	waiting []*round
	// announced is the first event without a probe started after it.
	announced announcedEvent
	// lastEventProbe is when an event last triggered a probe; the next one follows
	// at the earliest after gap.
	lastEventProbe time.Time
	gap            time.Duration
	// due has the time of later probes by their cause; zero is none. timer is set to
	// the first of them.
	due   [dueCauses]time.Time
	timer *time.Timer
}

// The causes in subject.due: an event that waits for the gap, the probes that follow an
// event, and Observation.Again.
const (
	dueEvent int = iota
	dueFirst
	dueSecond
	dueThird
	dueRequested
	dueCauses
)

// announcedEvent is the time and source of an event.
type announcedEvent struct {
	at     time.Time
	source string
}

// announce has the subjects probed because of an event.
func (p *prober) announce(ids []string, event announcedEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.phase != running {
		return
	}

	now := time.Now()

	for _, id := range ids {
		s := p.queue.subject(id)
		s.due[dueFirst], s.due[dueSecond], s.due[dueThird] = now.Add(firstRetry), now.Add(secondRetry), now.Add(thirdRetry)

		if s.announced.at.IsZero() {
			s.announced = event
		}

		if next := s.lastEventProbe.Add(s.gap); now.Before(next) {
			s.due[dueEvent] = next
		} else {
			p.probeAfterEvent(s, now)
		}

		p.resetTimer(s)
	}

	p.startProbes()
}

// probeSoon is Monitor.ProbeSoon. The first probe after an event serves as well.
func (p *prober) probeSoon(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.phase != running {
		return
	}

	s := p.queue.subject(id)
	if s.due[dueFirst].IsZero() {
		s.due[dueFirst] = time.Now().Add(firstRetry)
	}

	p.resetTimer(s)
}

// probeAfterEvent queues a probe because of an event.
func (p *prober) probeAfterEvent(s *subject, now time.Time) {
	if now.Sub(s.lastEventProbe) > thirdRetry {
		s.gap = 0
	}

	s.lastEventProbe, s.gap = now, min(max(2*s.gap, shortestGap), longestGap)
	p.queue.Add(s.id)
}

// request replaces the probe that the previous observation requested; 0 cancels it.
func (s *subject) request(after time.Duration) {
	s.due[dueRequested] = time.Time{}

	if after > 0 {
		s.due[dueRequested] = time.Now().Add(max(after, shortestGap))
	}
}

// resetTimer sets the timer to the first due time, or drops an idle subject.
func (p *prober) resetTimer(s *subject) {
	var next time.Time

	for _, due := range s.due {
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}

	switch {
	case p.phase == ended, next.IsZero():
		if s.timer != nil {
			s.timer.Stop()
		}

		if s.running == nil && len(s.waiting) == 0 && s.announced.at.IsZero() && p.queue.subjects[s.id] == s {
			delete(p.queue.subjects, s.id)
		}
	case p.phase != running: // begin starts the timers
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Until(next), func() { p.queueDue(s) })
	default:
		s.timer.Reset(time.Until(next))
	}
}

// queueDue queues the probes that are due.
func (p *prober) queueDue(s *subject) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.phase != running || p.queue.subjects[s.id] != s {
		return
	}

	now := time.Now()

	for cause, due := range s.due {
		if due.IsZero() || due.After(now) {
			continue
		}

		s.due[cause] = time.Time{}

		if cause == dueEvent {
			p.probeAfterEvent(s, now)
		} else {
			p.queue.Add(s.id)
		}
	}

	p.resetTimer(s)
	p.startProbes()
}

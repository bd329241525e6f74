package health

import (
	"context"
	"time"
)

const (
	// concurrency is the number of probes that run at a time.
	concurrency = 32
	// slowAfter is when a probe is assumed to wait for an unhealthy device or server:
	// from then on it does not count towards the concurrency limit.
	slowAfter = 100 * time.Millisecond
	// slowLimit is the number of slow probes beyond which no probe starts. Each of
	// them may hold a thread, and the Go runtime ends a process that has 10,000.
	slowLimit = 1000
)

// runningProbe is a probe that runs. Monitor.mu guards it.
type runningProbe struct {
	worker    *worker
	subject   *subject
	startedAt time.Time
	// event is the one that it reacts to.
	event announcedEvent
	// waiting are the rounds that it completes.
	waiting []*round
	// unexpected means that an event should have preceded what it finds.
	unexpected bool
	// slow probes do not count towards the concurrency limit. timedOut ones have been
	// given up: no other of the subject starts before they return.
	slow, timedOut bool
}

// worker runs one probe after the other, until none is queued or one was slow.
type worker struct {
	ctx    context.Context //nolint:containedctx // one for all its probes: they are many, and short
	cancel context.CancelCauseFunc
	// timer calls checkDuration for probe, the one that runs.
	timer *time.Timer
	probe *runningProbe
}

// startProbes starts workers for the subjects that are queued, within the concurrency
// limit.
func (m *Monitor) startProbes() {
	for m.running < concurrency {
		s := m.next()
		if s == nil {
			return
		}

		w := &worker{}
		w.ctx, w.cancel = context.WithCancelCause(m.base) //nolint:fatcontext // a context for each worker, all of the base
		w.timer = time.AfterFunc(m.untilSlow(), func() { m.checkDuration(w) })
		w.probe = m.newProbe(w, s)
		m.running++

		go m.work(w, w.probe)
	}
}

func (m *Monitor) work(w *worker, p *runningProbe) {
	defer w.cancel(nil)

	for p != nil {
		observed, err := m.probe(w.ctx, p.subject.id)
		p = m.finish(p, observed, err)
	}
}

// next returns the next subject to probe, or nil. The caller probes it at once. While too
// many probes hang, the subjects get ProbeTimedOut instead.
func (m *Monitor) next() *subject {
	for m.phase != ended {
		m.queueNextOfRelists()

		if m.queue.Len() == 0 {
			return nil
		}

		// Every Get is here, with mu locked, so it does not block.
		id, _ := m.queue.Get()
		s := m.subjectOf(id)

		if m.slow < slowLimit {
			return s
		}

		m.failWithoutProbe(s)
	}

	return nil
}

func (m *Monitor) newProbe(w *worker, s *subject) *runningProbe {
	p := &runningProbe{
		worker: w, subject: s, startedAt: m.stamp(), event: s.announced, waiting: s.waiting, unexpected: m.expectsEvents(s),
	}
	s.running, s.announced, s.waiting, s.due[dueEvent] = p, announcedEvent{}, nil, time.Time{}
	m.pending.Add(1)

	return p
}

func (m *Monitor) untilSlow() time.Duration { return min(slowAfter, m.config.ProbeTimeout) }

// checkDuration lets another probe start beside a slow one, and gives up one that has
// timed out. The timer may have fired for an earlier probe of the worker.
func (m *Monitor) checkDuration(w *worker) {
	m.mu.Lock()
	defer m.unlockAndLog()

	p := w.probe
	if p == nil || p.timedOut {
		return
	}

	took := time.Since(p.startedAt)
	if took < m.untilSlow() {
		w.timer.Reset(m.untilSlow() - took)
		return
	}

	if !p.slow {
		p.slow = true
		m.running--
		m.slow++
		m.startProbes()
	}

	if took < m.config.ProbeTimeout {
		w.timer.Reset(m.config.ProbeTimeout - took)
		return
	}

	p.timedOut = true
	w.cancel(context.DeadlineExceeded)
	m.metrics.timedOut.WithLabelValues(m.config.Name).Inc()
	m.storeFailure(p, probeTimedOut)
	m.complete(p.waiting)
	m.complete(p.subject.waiting)
	p.waiting, p.subject.waiting = nil, nil
	m.pending.Done()
}

// finish stores the result of a probe. It returns the next one for this worker, or nil
// if there is none or the worker does not count towards the concurrency limit.
func (m *Monitor) finish(p *runningProbe, observed Observation, err error) *runningProbe {
	m.mu.Lock()
	defer m.unlockAndLog()

	w := p.worker
	m.store(p, observed, err)
	m.complete(p.waiting)

	if !p.timedOut {
		m.pending.Done()
	}

	p.subject.running = nil
	m.queue.Done(p.subject.id)
	m.resetTimer(p.subject)
	w.probe = nil

	if p.slow {
		m.slow--
		m.startProbes()
	} else if next := m.next(); next != nil {
		w.probe = m.newProbe(w, next)
		w.timer.Reset(m.untilSlow())
		return w.probe
	} else {
		m.running--
	}

	w.timer.Stop()

	return nil
}

// failWithoutProbe stores ProbeTimedOut for a subject that cannot be probed.
func (m *Monitor) failWithoutProbe(s *subject) {
	changes, _ := m.cache.fail(s.id, NewEntry(ProbeTimedOut, tooManyHangingProbes), m.stamp())
	m.changes = append(m.changes, changes...)
	m.complete(s.waiting)
	s.waiting = nil
	m.queue.Done(s.id)
	m.resetTimer(s)
}

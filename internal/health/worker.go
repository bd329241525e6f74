package health

import (
	"context"
	"slices"
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

// runningProbe is a probe that runs. prober.mu guards it.
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
func (p *prober) startProbes() {
	for p.running < concurrency {
		s := p.next()
		if s == nil {
			return
		}

		w := &worker{}
		w.ctx, w.cancel = context.WithCancelCause(p.base) //nolint:fatcontext // a context for each worker, all of the base
		w.timer = time.AfterFunc(p.untilSlow(), func() { p.checkDuration(w) })
		w.probe = p.newProbe(w, s)
		p.running++

		go p.work(w, w.probe)
	}
}

func (p *prober) work(w *worker, probe *runningProbe) {
	defer w.cancel(nil)

	for probe != nil {
		observed, err := p.probe(w.ctx, probe.subject.id)
		probe = p.finish(probe, observed, err)
	}
}

// next returns the next subject to probe, or nil. The caller probes it at once. While too
// many probes hang, the subjects get ProbeTimedOut instead.
func (p *prober) next() *subject {
	for p.phase != ended {
		s := p.queue.next()
		if s == nil || p.slow < slowLimit {
			return s
		}

		p.failWithoutProbe(s)
	}

	return nil
}

func (p *prober) newProbe(w *worker, s *subject) *runningProbe {
	probe := &runningProbe{
		worker: w, subject: s, startedAt: p.clock.next(), event: s.announced, waiting: s.waiting, unexpected: p.expectsEvents(s),
	}
	s.running, s.announced, s.waiting, s.due[dueEvent] = probe, announcedEvent{}, nil, time.Time{}
	p.pending.Add(1)

	return probe
}

// expectsEvents reports whether a change that the next probe finds should have been
// preceded by an event: a relist is the only cause of the probe, all sources are
// connected, and there is a record to compare with.
func (p *prober) expectsEvents(s *subject) bool {
	byRelist := slices.ContainsFunc(s.waiting, func(r *round) bool { return r.unexpected })
	if !byRelist || s.due != [dueCauses]time.Time{} || !s.announced.at.IsZero() {
		return false
	}

	_, known := p.cache.get(s.id)

	return known
}

func (p *prober) untilSlow() time.Duration { return min(slowAfter, p.config.ProbeTimeout) }

// checkDuration lets another probe start beside a slow one, and gives up one that has
// timed out. The timer may have fired for an earlier probe of the worker.
func (p *prober) checkDuration(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()

	probe := w.probe
	if probe == nil || probe.timedOut {
		return
	}

	took := time.Since(probe.startedAt)
	if took < p.untilSlow() {
		w.timer.Reset(p.untilSlow() - took)
		return
	}

	if !probe.slow {
		probe.slow = true
		p.running--
		p.slow++
		p.startProbes()
	}

	if took < p.config.ProbeTimeout {
		w.timer.Reset(p.config.ProbeTimeout - took)
		return
	}

	probe.timedOut = true
	w.cancel(context.DeadlineExceeded)
	p.metrics.timedOut.WithLabelValues(p.config.Name).Inc()
	p.storeFailure(probe, probeTimedOut)
	complete(probe.waiting)
	complete(probe.subject.waiting)
	probe.waiting, probe.subject.waiting = nil, nil
	p.pending.Done()
}

// finish stores the result of a probe. It returns the next one for this worker, or nil
// if there is none or the worker does not count towards the concurrency limit.
func (p *prober) finish(probe *runningProbe, observed Observation, err error) *runningProbe {
	p.mu.Lock()
	defer p.mu.Unlock()

	w := probe.worker
	p.store(probe, observed, err)
	complete(probe.waiting)

	if !probe.timedOut {
		p.pending.Done()
	}

	probe.subject.running = nil
	p.queue.Done(probe.subject.id)
	p.resetTimer(probe.subject)
	w.probe = nil

	if probe.slow {
		p.slow--
		p.startProbes()
	} else if next := p.next(); next != nil {
		w.probe = p.newProbe(w, next)
		w.timer.Reset(p.untilSlow())
		return w.probe
	} else {
		p.running--
	}

	w.timer.Stop()

	return nil
}

// failWithoutProbe stores ProbeTimedOut for a subject that cannot be probed.
func (p *prober) failWithoutProbe(s *subject) {
	changes, _ := p.cache.fail(s.id, NewEntry(ProbeTimedOut, tooManyHangingProbes), p.clock.next())
	p.mu.note(changes)
	complete(s.waiting)
	s.waiting = nil
	p.queue.Done(s.id)
	p.resetTimer(s)
}

package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"syscall"
	"time"
)

const (
	// concurrency is how many probes run at a time.
	concurrency = 32
	// slowAfter is when a probe is taken to wait for something that is sick, so
	// that others need not wait for it: it gives its place to them.
	slowAfter = 100 * time.Millisecond
	// stuckLimit is how many probes may have given their place away and still be
	// under way. Each of them may hold a thread, and the Go runtime ends a process
	// that has 10 000.
	stuckLimit = 1000
	// keepAgain is when to look again at what is just being changed.
	keepAgain = 100 * time.Millisecond
)

// The messages of ProbeTimedOut, by cause.
const (
	hangs       = "the last look at it did not finish in time"
	panicked    = "the last look at it failed by a defect of the driver, whose log has more"
	failed      = "the last look at it failed; the driver's log has more"
	failedWith  = "the last look at it failed: "
	notLookedAt = "it is not looked at, because too many looks at others hang"
)

// panicError is a probe's panic.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// hire begins workers for as many looks as there is place.
func (m *Monitor) hire(looks int) {
	for range min(looks, concurrency-m.looks.workers) {
		m.looks.workers++

		w := &worker{m: m, placed: true}
		go w.work()
	}
}

// worker runs one probe after the other, as long as there are any, and as long
// as none of them makes it wait.
type worker struct {
	m *Monitor
	// placed is false once its place was given away; subject is what it looks at.
	// Both are guarded by Monitor.mu.
	placed  bool
	subject *subject

	ctx      context.Context //nolint:containedctx // one for all probes in turn: they are many, and short
	cancel   context.CancelCauseFunc
	watchdog *time.Timer
}

func (w *worker) work() {
	m := w.m
	w.ctx, w.cancel = context.WithCancelCause(m.base)

	defer w.cancel(nil)

	for s := w.next(nil, Observation{}, nil); s != nil; {
		observed, err := m.probe(w.ctx, s.id)

		w.watchdog.Stop()
		s = w.next(s, observed, err)
	}
}

// next finishes the look before, if any, and begins the next one. It returns nil
// when there is none, or when the place is given away.
func (w *worker) next(before *subject, observed Observation, err error) *subject {
	m := w.m

	m.mu.Lock()
	defer m.unlock()

	if before != nil {
		w.finish(before, observed, err)
	}

	if !w.placed {
		return nil
	}

	s := m.nextLook()
	if s == nil {
		m.looks.workers--

		return nil
	}

	w.begin(s)

	return s
}

// nextLook returns what to look at next, nil when there is nothing.
func (m *Monitor) nextLook() *subject {
	for m.phase != ended {
		s := m.nextUrgent()
		if s == nil {
			s = m.nextOfRounds()
		}

		if s == nil || m.looks.stuck < stuckLimit {
			return s
		}

		m.refuse(s)
	}

	return nil
}

func (m *Monitor) nextUrgent() *subject {
	for len(m.looks.urgent) > 0 {
		s := m.looks.urgent[0]
		m.looks.urgent = m.looks.urgent[1:]

		if s.state == queued {
			return s
		}
	}

	m.looks.urgent = nil

	return nil
}

// refuse answers for a subject that can't be looked at.
func (m *Monitor) refuse(s *subject) {
	changes, _ := m.cache.fail(s.id, NewEntry(ProbeTimedOut, notLookedAt), m.stamp())
	m.noted = append(m.noted, changes...)
	s.state = resting
	answer(s.rounds)
	s.rounds = nil
	m.settle(s)
}

func (w *worker) begin(s *subject) {
	s.state, s.began = looking, w.m.stamp()
	s.answering, s.announced, s.due[dueEvent] = s.announced, announcement{}, time.Time{}
	w.subject = s
	w.m.looks.probing.Add(1)

	patience := min(slowAfter, w.m.config.ProbeTimeout)
	if w.watchdog == nil {
		w.watchdog = time.AfterFunc(patience, w.overdue)
	} else {
		w.watchdog.Reset(patience)
	}
}

// overdue gives the place of a slow probe away, and gives a hanging one up. The
// timer may have fired for an earlier probe, so that only the time counts.
func (w *worker) overdue() {
	m := w.m

	m.mu.Lock()
	defer m.unlock()

	s := w.subject
	if s == nil || s.state == hanging {
		return
	}

	took, limit := time.Since(s.began), m.config.ProbeTimeout
	timedOut := took >= limit

	if w.placed && (timedOut || took >= slowAfter && m.looks.stuck < stuckLimit) {
		w.placed = false
		m.looks.workers--
		m.looks.stuck++
		m.hire(len(m.looks.urgent) + len(m.looks.rounds))
	}

	switch {
	case timedOut:
		w.giveUp(s)
	case took < slowAfter:
		w.watchdog.Reset(min(slowAfter, limit) - took)
	default:
		w.watchdog.Reset(limit - took)
	}
}

func (w *worker) giveUp(s *subject) {
	m := w.m

	s.state = hanging
	m.measured.timedOut.WithLabelValues(m.config.Name).Inc()
	m.failed(s, hangs)
	w.cancel(context.DeadlineExceeded)
	answer(s.rounds)
	answer(s.later)
	s.rounds, s.later = nil, nil
	m.looks.probing.Done()
}

// probe returns a panic as an error.
func (m *Monitor) probe(ctx context.Context, id string) (observed Observation, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()

	return m.config.Probe(ctx, id)
}

// finish keeps what the probe has said, and has the subject looked at again
// where that was asked for meanwhile.
func (w *worker) finish(s *subject, observed Observation, err error) {
	m := w.m
	w.subject = nil

	if !w.placed {
		m.looks.stuck--
	}

	m.conclude(s, observed, err)
	answer(s.rounds)

	if s.state != hanging {
		m.looks.probing.Done()
	}

	s.state, s.rounds, s.later = resting, s.later, nil
	if s.dirty && m.phase != ended {
		s.dirty = false
		m.enqueue(s)
	}

	m.settle(s)
}

// conclude keeps what a look has found.
func (m *Monitor) conclude(s *subject, observed Observation, err error) {
	switch {
	case err == nil:
		vouched := m.vouched(s)

		changes, stored := m.cache.set(s.id, observed, s.began)
		if !stored {
			return
		}

		m.noted = append(m.noted, changes...)

		if vouched {
			s.suspectMissed(changes)
		}

		s.due[dueAgain] = time.Time{}

		if observed.Again > 0 {
			s.due[dueAgain] = time.Now().Add(max(observed.Again, shortestGap))
		}

		m.answered(s)
	case errors.Is(err, ErrGone):
		m.noted = append(m.noted, m.cache.forget(s.id, s.began)...)
		m.answered(s)
	case errors.Is(err, ErrKeep):
		if m.cache.forgottenSince(s.id, s.began) {
			return
		}

		s.due[dueAgain] = time.Now().Add(max(cmp.Or(observed.Again, keepAgain), shortestGap))
		// The event is answered by the look that can tell.
		if !s.answering.at.IsZero() {
			s.announced = s.answering
		}
	case m.phase == ended: // of course it failed
	case s.state == hanging && isCancelled(err): // that is known already
	default:
		m.measured.errors.WithLabelValues(m.config.Name).Inc()
		m.logFailure(s.id, err)
		m.failed(s, classify(err))
	}
}

// logFailure logs a failure that is not the same as the last one's.
func (m *Monitor) logFailure(id string, err error) {
	attributes := []any{"subject", id, "error", err}

	if defect, ok := errors.AsType[*panicError](err); ok {
		attributes = append(attributes, "stack", string(defect.stack))
	}

	level := slog.LevelWarn
	if before, ok := m.cache.get(id); ok && before.failure != nil && before.failure.Message == classify(err) {
		level = slog.LevelDebug
	}

	m.config.Log.Log(m.base, level, "a look has failed", attributes...)
}

// failed keeps that the look under way does not succeed.
func (m *Monitor) failed(s *subject, message string) {
	changes, stored := m.cache.fail(s.id, NewEntry(ProbeTimedOut, message), s.began)
	m.noted = append(m.noted, changes...)

	if stored {
		m.answered(s)
	}
}

// answered measures how long it took to know what an event was about.
func (m *Monitor) answered(s *subject) {
	if !s.answering.at.IsZero() {
		m.measured.answered(s.answering.source, time.Since(s.answering.at))
		s.answering = announcement{}
	}
}

func isCancelled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// classify returns a message that is the same for the same cause.
func classify(err error) string {
	if isCancelled(err) {
		return hangs
	}

	if _, ok := errors.AsType[*panicError](err); ok {
		return panicked
	}

	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return failedWith + errno.Error()
	}

	return failed
}

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
	// concurrency is the number of probes that run at a time.
	concurrency = 32
	// slowAfter is when a probe is assumed to wait for an unhealthy device or server:
	// from then on it does not count towards the concurrency limit.
	slowAfter = 100 * time.Millisecond
	// stuckLimit is the number of slow probes that may run. Each of them may hold a
	// thread, and the Go runtime ends a process that has 10,000.
	stuckLimit = 1000
	// retryWhileChanging is the time to the next probe after ErrKeep.
	retryWhileChanging = 100 * time.Millisecond
)

// The messages of ProbeTimedOut, by cause.
const (
	probeTimedOut        = "the last probe timed out"
	probePanicked        = "the last probe failed because of a defect of the driver; see its log"
	probeFailed          = "the last probe failed; see the driver's log"
	probeFailedWith      = "the last probe failed: "
	tooManyHangingProbes = "not probed, because too many other probes hang"
)

// panicError is a probe's panic.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// startWorkers starts up to n workers, within the concurrency limit.
func (m *Monitor) startWorkers(n int) {
	for range min(n, concurrency-m.queue.workers) {
		m.queue.workers++

		w := &worker{m: m, counted: true}
		go w.work()
	}
}

// worker runs one probe after the other, until there is none or one was slow.
type worker struct {
	m *Monitor
	// counted is false once the worker does not count towards the concurrency limit;
	// subject is the one that it probes. Monitor.mu guards both.
	counted bool
	subject *probeState

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

// next completes the previous probe, if any, and starts the next one. It returns nil
// when there is none, or when the worker was slow.
func (w *worker) next(before *probeState, observed Observation, err error) *probeState {
	m := w.m

	m.mu.Lock()
	defer m.unlockAndLog()

	if before != nil {
		w.finish(before, observed, err)
	}

	if !w.counted {
		return nil
	}

	s := m.nextProbe()
	if s == nil {
		m.queue.workers--

		return nil
	}

	w.start(s)

	return s
}

// nextProbe returns the next subject to probe, or nil.
func (m *Monitor) nextProbe() *probeState {
	for m.phase != ended {
		s := m.nextUrgent()
		if s == nil {
			s = m.nextOfRelists()
		}

		if s == nil || m.queue.slow < stuckLimit {
			return s
		}

		m.failWithoutProbe(s)
	}

	return nil
}

func (m *Monitor) nextUrgent() *probeState {
	for len(m.queue.urgent) > 0 {
		s := m.queue.urgent[0]
		m.queue.urgent = m.queue.urgent[1:]

		if s.phase == queued {
			return s
		}
	}

	m.queue.urgent = nil

	return nil
}

// failWithoutProbe stores ProbeTimedOut for a subject that cannot be probed.
func (m *Monitor) failWithoutProbe(s *probeState) {
	changes, _ := m.cache.fail(s.id, NewEntry(ProbeTimedOut, tooManyHangingProbes), m.stamp())
	m.changes = append(m.changes, changes...)
	s.phase = notQueued
	completeOne(s.waiting)
	s.waiting = nil
	m.resetTimer(s)
}

func (w *worker) start(s *probeState) {
	s.phase, s.startedAt = probing, w.m.stamp()
	s.reacting, s.announced, s.due[dueEvent] = s.announced, announcedEvent{}, time.Time{}
	w.subject = s
	w.m.queue.running.Add(1)

	limit := min(slowAfter, w.m.config.ProbeTimeout)
	if w.watchdog == nil {
		w.watchdog = time.AfterFunc(limit, w.checkDuration)
	} else {
		w.watchdog.Reset(limit)
	}
}

// checkDuration stops counting a slow probe and abandons one that has timed out. The
// timer may have fired for an earlier probe, so only the elapsed time counts.
func (w *worker) checkDuration() {
	m := w.m

	m.mu.Lock()
	defer m.unlockAndLog()

	s := w.subject
	if s == nil || s.phase == hanging {
		return
	}

	took, limit := time.Since(s.startedAt), m.config.ProbeTimeout
	timedOut := took >= limit

	if w.counted && (timedOut || took >= slowAfter && m.queue.slow < stuckLimit) {
		w.counted = false
		m.queue.workers--
		m.queue.slow++
		m.startWorkers(len(m.queue.urgent) + len(m.queue.relists))
	}

	switch {
	case timedOut:
		w.abandon(s)
	case took < slowAfter:
		w.watchdog.Reset(min(slowAfter, limit) - took)
	default:
		w.watchdog.Reset(limit - took)
	}
}

func (w *worker) abandon(s *probeState) {
	m := w.m

	s.phase = hanging
	m.metrics.timedOut.WithLabelValues(m.config.Name).Inc()
	m.storeFailure(s, probeTimedOut)
	w.cancel(context.DeadlineExceeded)
	completeOne(s.waiting)
	completeOne(s.waitingForNext)
	s.waiting, s.waitingForNext = nil, nil
	m.queue.running.Done()
}

// probe calls Config.Probe and returns a panic as an error.
func (m *Monitor) probe(ctx context.Context, id string) (observed Observation, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()

	return m.config.Probe(ctx, id)
}

// finish stores the result of the probe, and queues another one if it was requested
// meanwhile.
func (w *worker) finish(s *probeState, observed Observation, err error) {
	m := w.m
	w.subject = nil

	if !w.counted {
		m.queue.slow--
	}

	m.store(s, observed, err)
	completeOne(s.waiting)

	if s.phase != hanging {
		m.queue.running.Done()
	}

	s.phase, s.waiting, s.waitingForNext = notQueued, s.waitingForNext, nil
	if s.probeAgain && m.phase != ended {
		s.probeAgain = false
		m.enqueue(s)
	}

	m.resetTimer(s)
}

// store stores the result of a probe.
func (m *Monitor) store(s *probeState, observed Observation, err error) {
	switch {
	case err == nil:
		expected := m.expectsEvents(s)

		changes, stored := m.cache.set(s.id, observed, s.startedAt)
		if !stored {
			return
		}

		m.changes = append(m.changes, changes...)

		if expected {
			s.countAsMissed(changes)
		}

		s.due[dueAgain] = time.Time{}

		if observed.Again > 0 {
			s.due[dueAgain] = time.Now().Add(max(observed.Again, shortestGap))
		}

		m.measureLatency(s)
	case errors.Is(err, ErrGone):
		m.changes = append(m.changes, m.cache.forget(s.id, s.startedAt)...)
		m.measureLatency(s)
	case errors.Is(err, ErrKeep):
		if m.cache.forgottenSince(s.id, s.startedAt) {
			return
		}

		s.due[dueAgain] = time.Now().Add(max(cmp.Or(observed.Again, retryWhileChanging), shortestGap))
		// The latency of the event ends with the probe that succeeds.
		if !s.reacting.at.IsZero() {
			s.announced = s.reacting
		}
	case m.phase == ended: // it was cancelled
	case s.phase == hanging && isCancelled(err): // stored by abandon
	default:
		m.metrics.errors.WithLabelValues(m.config.Name).Inc()
		m.logFailure(s.id, err)
		m.storeFailure(s, classify(err))
	}
}

// logFailure logs a failure; one with the same message as the last only at debug level.
func (m *Monitor) logFailure(id string, err error) {
	attributes := []any{"subject", id, "error", err}

	if defect, ok := errors.AsType[*panicError](err); ok {
		attributes = append(attributes, "stack", string(defect.stack))
	}

	level := slog.LevelWarn
	if before, ok := m.cache.get(id); ok && before.failure != nil && before.failure.Message == classify(err) {
		level = slog.LevelDebug
	}

	m.config.Log.Log(m.base, level, "probe failed", attributes...)
}

// storeFailure stores that the running probe failed.
func (m *Monitor) storeFailure(s *probeState, message string) {
	changes, stored := m.cache.fail(s.id, NewEntry(ProbeTimedOut, message), s.startedAt)
	m.changes = append(m.changes, changes...)

	if stored {
		m.measureLatency(s)
	}
}

// measureLatency observes the time from the event that triggered the probe.
func (m *Monitor) measureLatency(s *probeState) {
	if !s.reacting.at.IsZero() {
		m.metrics.observeLatency(s.reacting.source, time.Since(s.reacting.at))
		s.reacting = announcedEvent{}
	}
}

func isCancelled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// classify returns the same message for the same cause.
func classify(err error) string {
	if isCancelled(err) {
		return probeTimedOut
	}

	if _, ok := errors.AsType[*panicError](err); ok {
		return probePanicked
	}

	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return probeFailedWith + errno.Error()
	}

	return probeFailed
}

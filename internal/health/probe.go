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

// retryWhileChanging is the time to the next probe after ErrKeep.
const retryWhileChanging = 100 * time.Millisecond

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

// probe calls Config.Probe. A panic is returned as an error.
func (m *Monitor) probe(ctx context.Context, id string) (observed Observation, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()

	observed, err = m.config.Probe(ctx, id)
	if err == nil && m.config.Inject != nil {
		observed.Entries = append(observed.Entries, m.config.Inject(m.config.Name, id)...)
	}

	return observed, err
}

// store stores the result of a probe.
func (m *Monitor) store(p *runningProbe, observed Observation, err error) {
	s := p.subject

	switch {
	case err == nil:
		changes, stored := m.cache.set(s.id, observed, p.startedAt)
		if !stored {
			return
		}

		m.changes = append(m.changes, changes...)

		if p.unexpected {
			m.metrics.countMissed(changes)
		}

		s.request(observed.Again)
		m.measureLatency(p)
	case errors.Is(err, ErrGone):
		m.changes = append(m.changes, m.cache.forget(s.id, p.startedAt)...)
		m.measureLatency(p)
	case errors.Is(err, ErrKeep):
		s.request(cmp.Or(observed.Again, retryWhileChanging))
		// The latency of the event ends with the probe that succeeds.
		if !p.event.at.IsZero() {
			s.announced = p.event
		}
	case m.phase == ended: // it was cancelled
	case p.timedOut && isCancelled(err): // stored by checkDuration
	default:
		m.metrics.errors.WithLabelValues(m.config.Name).Inc()
		m.logFailure(s.id, err)
		m.storeFailure(p, classify(err))
	}
}

// logFailure logs a failure; one with the same message as the last only at debug level.
func (m *Monitor) logFailure(id string, err error) {
	attributes := []any{"subject", id, "error", err}

	if defect, ok := errors.AsType[*panicError](err); ok {
		attributes = append(attributes, "stack", string(defect.stack))
	}

	level := slog.LevelWarn
	if before, ok := m.cache.get(id); ok && before.failed != nil && before.failed.failure.Message == classify(err) {
		level = slog.LevelDebug
	}

	m.config.Log.Log(m.base, level, "probe failed", attributes...)
}

// storeFailure stores that the running probe failed.
func (m *Monitor) storeFailure(p *runningProbe, message string) {
	changes, stored := m.cache.fail(p.subject.id, NewEntry(ProbeTimedOut, message), p.startedAt)
	m.changes = append(m.changes, changes...)

	if stored {
		m.measureLatency(p)
	}
}

// measureLatency observes the time from the event that triggered the probe.
func (m *Monitor) measureLatency(p *runningProbe) {
	if !p.event.at.IsZero() {
		m.metrics.observeLatency(p.event.source, time.Since(p.event.at))
		p.event = announcedEvent{}
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

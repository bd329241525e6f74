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
func (p *prober) probe(ctx context.Context, id string) (observed Observation, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()

	observed, err = p.config.Probe(ctx, id)
	if err == nil && p.config.Inject != nil {
		observed.Entries = append(observed.Entries, p.config.Inject(p.config.Name, id)...)
	}

	return observed, err
}

// store stores the result of a probe.
func (p *prober) store(probe *runningProbe, observed Observation, err error) {
	s := probe.subject

	switch {
	case err == nil:
		changes, stored := p.cache.set(s.id, observed, probe.startedAt)
		if !stored {
			return
		}

		p.mu.note(changes)

		if probe.unexpected {
			p.metrics.countMissed(changes)
		}

		s.request(observed.Again)
		probe.measureLatency(p.metrics)
	case errors.Is(err, ErrGone):
		p.mu.note(p.cache.forget(s.id, probe.startedAt))
		probe.measureLatency(p.metrics)
	case errors.Is(err, ErrKeep):
		s.request(cmp.Or(observed.Again, retryWhileChanging))
		// The latency of the event ends with the probe that succeeds.
		if !probe.event.at.IsZero() {
			s.announced = probe.event
		}
	case p.phase == ended: // it was cancelled
	case probe.timedOut && isCancelled(err): // stored by checkDuration
	default:
		p.metrics.errors.WithLabelValues(p.config.Name).Inc()
		p.logFailure(s.id, err)
		p.storeFailure(probe, classify(err))
	}
}

// logFailure logs a failure; one with the same message as the last only at debug level.
func (p *prober) logFailure(id string, err error) {
	attributes := []any{"subject", id, "error", err}

	if defect, ok := errors.AsType[*panicError](err); ok {
		attributes = append(attributes, "stack", string(defect.stack))
	}

	level := slog.LevelWarn
	if before, ok := p.cache.get(id); ok && before.failed != nil && before.failed.failure.Message == classify(err) {
		level = slog.LevelDebug
	}

	p.config.Log.Log(p.base, level, "probe failed", attributes...)
}

// storeFailure stores that the running probe failed.
func (p *prober) storeFailure(probe *runningProbe, message string) {
	changes, stored := p.cache.fail(probe.subject.id, NewEntry(ProbeTimedOut, message), probe.startedAt)
	p.mu.note(changes)

	if stored {
		probe.measureLatency(p.metrics)
	}
}

// measureLatency observes the time from the event that triggered the probe.
func (probe *runningProbe) measureLatency(metrics viewMetrics) {
	if !probe.event.at.IsZero() {
		metrics.observeLatency(probe.event.source, time.Since(probe.event.at))
		probe.event = announcedEvent{}
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

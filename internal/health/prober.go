package health

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// prober probes subjects, each by one probe at a time, and stores what the probes find in the cache.
// It also decides when an event, an observation or a failure has a subject probed again (schedule.go).
type prober struct {
	config  Config
	cache   *cache
	metrics viewMetrics
	clock   *stamps

	// base ends with the monitor, and with it the probes.
	base context.Context //nolint:containedctx // probes outlive the calls that request them
	stop context.CancelFunc

	// mu guards what follows, and the cache against writes of others.
	mu    changeMutex
	phase phase
	queue probeQueue
	// running counts towards the concurrency limit, slow are the other probes that run.
	running, slow int
	// pending are the probes that run and have not timed out.
	pending sync.WaitGroup
}

// phase is the lifecycle of a prober.
type phase int

const (
	// idle: Relist and ProbeNow probe, events are not received.
	idle phase = iota
	running
	ended
)

func newProber(config Config, records *cache, metrics viewMetrics, clock *stamps) *prober {
	p := &prober{
		config: config, cache: records, metrics: metrics, clock: clock, mu: changeMutex{log: config.Log},
		queue: probeQueue{TypedInterface: workqueue.NewTyped[string](), subjects: map[string]*subject{}},
	}
	p.base, p.stop = context.WithCancel(context.Background())

	return p
}

// begin enables Suspect and events, and starts the timers of requested probes.
func (p *prober) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.phase = running

	for _, s := range p.queue.subjects {
		p.resetTimer(s)
	}
}

// end prevents further probes, and drops those that are queued, also behind one that runs: no worker
// takes them any more.
func (p *prober) end() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.phase = ended
	p.queue.end()
	p.stop()

	for _, s := range p.queue.subjects {
		p.resetTimer(s)
	}
}

// set is Monitor.Set.
func (p *prober) set(id string, observed Observation, observedAt time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	changes, stored := p.cache.set(id, observed, observedAt)
	p.mu.note(changes)

	if stored {
		s := p.queue.subject(id)
		s.request(observed.Again)
		p.resetTimer(s)
	}

	return stored
}

// forget is Monitor.Forget.
func (p *prober) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	at := p.clock.next()
	if record, ok := p.cache.get(id); ok && record.lastProbeAt().After(at) {
		at = record.lastProbeAt()
	}

	p.mu.note(p.cache.forget(id, at))

	if s := p.queue.subjects[id]; s != nil {
		s.due, s.announced = [dueCauses]time.Time{}, announcedEvent{}
		p.resetTimer(s)
	}
}

// forgetOthers drops the records of subjects that a relist did not list.
func (p *prober) forgetOthers(listed []string, began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.mu.note(p.cache.relisted(listed, began))
}

// probeIdle has those subjects probed of which no probe runs. It reports whether events are received.
func (p *prober) probeIdle(ids ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.phase != running {
		return false
	}

	for _, id := range ids {
		if s := p.queue.subjects[id]; s == nil || s.running == nil {
			p.queue.Add(id)
		}
	}

	p.startProbes()

	return true
}

// await queues and starts the probes of a round, and returns once they are complete. On an error it dequeues those
// that have not started. Errors: ctx's, errEnded.
func (p *prober) await(ctx context.Context, r *round, queue func(*probeQueue)) error {
	p.mu.Lock()
	queue(&p.queue)
	p.startProbes()
	p.mu.Unlock()

	select {
	case <-r.done:
	case <-ctx.Done():
	case <-p.base.Done():
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.queue.dropRound(r)

	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p.base.Err() != nil:
		return errEnded
	default:
		return nil
	}
}

// stamps returns strictly increasing times: of two probes of a subject the second is always newer,
// whatever the clock's resolution.
type stamps struct {
	mu     sync.Mutex
	newest time.Time
}

func (s *stamps) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	now := time.Now()
	if !now.After(s.newest) {
		now = s.newest.Add(1)
	}

	s.newest = now

	return now
}

// changeMutex is a mutex whose Unlock logs the changes that were noted while it was locked.
type changeMutex struct {
	sync.Mutex

	log     *slog.Logger
	changes []Change
}

func (m *changeMutex) note(changes []Change) { m.changes = append(m.changes, changes...) }

// Unlock implements sync.Locker.
func (m *changeMutex) Unlock() {
	changes := m.changes
	m.changes = nil
	m.Mutex.Unlock()

	for _, change := range changes {
		attributes := []any{"subject", change.Subject, "status", change.Status, "reason", change.Reason, "message", change.Message}

		if change.Cleared {
			m.log.Info("a condition has cleared", attributes...)
		} else {
			m.log.Warn("a condition has appeared", attributes...)
		}
	}
}

package health

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// The defaults of Config.
const (
	DefaultRelistPeriod        = time.Minute
	DefaultEventedRelistPeriod = 5 * time.Minute
	DefaultProbeTimeout        = 5 * time.Second
	DefaultAnswerAge           = 30 * time.Second
)

var (
	// ErrGone is returned by a probe whose subject does not exist any more, as
	// intended: its record is dropped.
	ErrGone = errors.New("the subject does not exist any more")
	// ErrKeep is returned by a probe while an operation changes the subject: the
	// record stays, and the subject is probed again after Observation.Again.
	ErrKeep = errors.New("the subject is being changed")
)

// Amount is a quantity of bytes or inodes.
type Amount struct {
	Total     int64 `json:"total"`
	Used      int64 `json:"used"`
	Available int64 `json:"available"`
}

// Usage is the usage of a volume's bytes and inodes.
type Usage struct {
	Bytes  Amount `json:"bytes"`
	Inodes Amount `json:"inodes"`
}

// Observation is the result of a probe.
type Observation struct {
	// Entries are empty for a healthy subject.
	Entries []Entry
	// Usage is nil if the probe did not measure it.
	Usage *Usage
	// Again requests another probe after that time, without an event; 0 requests
	// none before the next relist.
	Again time.Duration
	// NoEarlyProbe excludes an unhealthy subject from the probes of each second (see
	// unhealthy.go), because each probe of it may hang.
	NoEarlyProbe bool
}

// Config configures a Monitor.
type Config struct {
	Settings

	// Name is the name of the view in metrics and in the log: "node",
	// "controller", "storage".
	Name string
	// List returns the ids of all subjects.
	List func() []string
	// Probe observes one subject now. It is called concurrently for different
	// subjects, never for the same one. It may hang: after ProbeTimeout the subject
	// is ProbeTimedOut beside its previous entries, and no caller waits any longer.
	// Errors: ErrGone, ErrKeep; any other becomes ProbeTimedOut too, because a
	// subject that cannot be observed is not healthy.
	Probe func(ctx context.Context, id string) (Observation, error)
	// Concern returns the subjects that an event affects; nil means that events
	// affect none. It is not called for Lost, which affects all.
	Concern func(Event) []string
	// Sources are run by Run; without any there are relists only.
	Sources []Source
	Log     *slog.Logger
}

// Settings are the part of Config that all monitors of a process share.
type Settings struct {
	// PollingOnly disables the sources: only relists trigger probes.
	PollingOnly bool
	// RelistPeriod is the time between relists while a source is missing or
	// has failed, EventedRelistPeriod while all are connected; 0 is the default.
	RelistPeriod, EventedRelistPeriod time.Duration
	// ProbeTimeout bounds a probe; 0 is the default.
	ProbeTimeout time.Duration
	// AnswerAge is the age of a record from which an answer has its subject probed; 0 is the default.
	AnswerAge time.Duration
	// Metrics and History receive changes; they may be nil.
	Metrics *Metrics
	History *History
	// Inject returns entries that the observations of a subject in a view get besides their own
	// (docs/faults.md); nil adds none.
	Inject func(view, id string) []Entry `json:"-"`
}

// Record is the cached condition of one subject. It is immutable.
type Record struct {
	ID string
	// Entries has the worst first; it is empty for a healthy subject.
	Entries []Entry
	// Since has the time at which each reason of Entries appeared.
	Since map[Reason]time.Time
	// Usage is the newest measurement, nil without any.
	Usage *Usage
	// ObservedAt is when the probe that Entries come from started.
	ObservedAt time.Time

	// condition is VolumeCondition, encoded; empty for a healthy subject.
	condition    string
	noEarlyProbe bool
	// failed is a probe after ObservedAt that failed, or nil.
	failed *failedProbe
}

type failedProbe struct {
	at      time.Time
	failure Entry
	// observed are the entries of the probe at ObservedAt.
	observed []Entry
}

// Healthy reports whether the record has no entry.
func (r *Record) Healthy() bool { return len(r.Entries) == 0 }

// lastProbeAt returns when the newest probe started, successful or not.
func (r *Record) lastProbeAt() time.Time {
	if r.failed != nil {
		return r.failed.at
	}

	return r.ObservedAt
}

// Monitor keeps the newest condition of each subject. It is safe for concurrent
// use.
type Monitor struct {
	config  Config
	cache   *cache
	metrics viewMetrics
	sources []*monitoredSource

	// base ends with the monitor, and with it the probes.
	base context.Context //nolint:containedctx // probes outlive the calls that request them
	stop context.CancelFunc

	mu    sync.Mutex
	phase phase
	// stamped is the newest time that stamp has returned.
	stamped time.Time
	// changes are logged by unlockAndLog.
	changes  []Change
	schedule relistSchedule

	// queue has the subjects to probe next, and relists those to probe when it is
	// empty. It does not return a subject whose probe runs, but returns it again
	// afterwards if it was added meanwhile.
	queue    workqueue.TypedInterface[string]
	relists  []*round
	subjects map[string]*subject
	// running counts towards the concurrency limit, slow are the other probes that run.
	running, slow int
	// pending are the probes that run and have not timed out.
	pending sync.WaitGroup
}

// phase is the lifecycle of a Monitor.
type phase int

const (
	// idle: Relist and ProbeNow probe, events are not received.
	idle phase = iota
	running
	ended
)

// New returns a monitor with an empty cache; see Relist and Run.
func New(config Config) *Monitor {
	config.RelistPeriod = cmp.Or(config.RelistPeriod, DefaultRelistPeriod)
	config.EventedRelistPeriod = cmp.Or(config.EventedRelistPeriod, DefaultEventedRelistPeriod)
	config.ProbeTimeout = cmp.Or(config.ProbeTimeout, DefaultProbeTimeout)
	config.AnswerAge = cmp.Or(config.AnswerAge, DefaultAnswerAge)

	if config.PollingOnly {
		config.Sources = nil
	}

	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}

	config.Log = config.Log.With("view", config.Name)

	m := &Monitor{config: config, metrics: config.Metrics.forView(config.Name, config.Sources)}
	m.base, m.stop = context.WithCancel(context.Background())
	m.queue, m.subjects = workqueue.NewTyped[string](), map[string]*subject{}
	m.schedule.wake, m.schedule.first = make(chan struct{}, 1), make(chan struct{})
	m.cache = newCache(config.Name, func(changes []Change) {
		m.metrics.countChanges(changes)

		if config.History != nil {
			config.History.add(changes)
		}
	})

	for _, source := range config.Sources {
		m.sources = append(m.sources, &monitoredSource{Source: source, problem: "not connected yet"})
	}

	return m
}

// Run runs the sources, probes the subjects of their events, and relists, until ctx
// ends. When it returns, only probes that hang are still running. It is called once.
func (m *Monitor) Run(ctx context.Context) {
	m.begin()

	var following sync.WaitGroup

	for _, each := range m.sources {
		if m.supported(each) {
			following.Go(func() { m.follow(ctx, each) })
		}
	}

	following.Go(func() { m.probeUnhealthy(ctx) })

	m.relistPeriodically(ctx)
	m.end()
	following.Wait()
	m.pending.Wait()
}

// Suspect has the subjects probed now, as an event does. It does not wait, and has
// no effect unless Run is running.
func (m *Monitor) Suspect(ids ...string) { m.announce(ids, announcedEvent{}) }

// SuspectAll is Suspect for all subjects.
func (m *Monitor) SuspectAll() { m.Suspect(m.config.List()...) }

// Set stores an observation of a subject unless the record is as new: observedAt is
// the time just before the observation started. It reports whether it was stored.
func (m *Monitor) Set(id string, observed Observation, observedAt time.Time) bool {
	m.mu.Lock()
	defer m.unlockAndLog()

	changes, stored := m.cache.set(id, observed, observedAt)
	m.changes = append(m.changes, changes...)

	if stored {
		s := m.subjectOf(id)
		s.request(observed.Again)
		m.resetTimer(s)
	}

	return stored
}

// Get returns the record of a subject, false without one. It never waits.
func (m *Monitor) Get(id string) (*Record, bool) { return m.cache.get(id) }

// Answer is Get for an answer to a CO. It also has the subject probed, for the next answer, if the
// record is older than AnswerAge: some conditions, such as exhausted inodes, are not announced by
// an event. One probe of a subject runs at a time. It never waits for it.
func (m *Monitor) Answer(id string) (*Record, bool) {
	record, ok := m.cache.get(id)
	if !ok || time.Since(record.lastProbeAt()) < m.config.AnswerAge {
		return record, ok
	}

	m.mu.Lock()
	defer m.unlockAndLog()

	if s := m.subjects[id]; m.phase == running && (s == nil || s.running == nil) {
		m.queue.Add(id)
		m.startProbes()
	}

	return record, true
}

// Forget drops the record of a subject, and the result of a probe that is running. One
// that is queued follows, and must return ErrGone.
func (m *Monitor) Forget(id string) {
	m.mu.Lock()
	defer m.unlockAndLog()

	at := m.stamp()
	if record, ok := m.cache.get(id); ok && record.lastProbeAt().After(at) {
		at = record.lastProbeAt()
	}

	m.changes = append(m.changes, m.cache.forget(id, at)...)

	if s := m.subjects[id]; s != nil {
		s.due, s.announced = [dueCauses]time.Time{}, announcedEvent{}
		m.resetTimer(s)
	}
}

// Abnormal returns the unhealthy records, ordered by id, beginning behind after.
func (m *Monitor) Abnormal(after string) []*Record { return m.cache.after(after) }

// All returns all records, unordered.
func (m *Monitor) All() []*Record { return m.cache.all() }

// Await returns the record of a subject once it was observed at newerThan or later:
// by a probe of it, or by a relist that started then and did not list it. It
// requests no probe. Errors: ErrGone, ctx's.
func (m *Monitor) Await(ctx context.Context, id string, newerThan time.Time) (*Record, error) {
	return m.cache.await(ctx, id, newerThan)
}

// stamp returns a strictly increasing time: of two probes of a subject the second
// is always newer, whatever the clock's resolution.
func (m *Monitor) stamp() time.Time {
	now := time.Now()
	if !now.After(m.stamped) {
		now = m.stamped.Add(1)
	}

	m.stamped = now

	return now
}

// unlockAndLog unlocks mu and logs the changes made while it was locked.
func (m *Monitor) unlockAndLog() {
	changes := m.changes
	m.changes = nil
	m.mu.Unlock()

	for _, change := range changes {
		attributes := []any{"subject", change.Subject, "status", change.Status, "reason", change.Reason, "message", change.Message}

		if change.Cleared {
			m.config.Log.Info("a condition has cleared", attributes...)
		} else {
			m.config.Log.Warn("a condition has appeared", attributes...)
		}
	}
}

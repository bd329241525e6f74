package health

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
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

// Usage is the usage of a volume's bytes and inodes at a time, which is zero if only the total is known.
type Usage struct {
	Bytes  Amount    `json:"bytes"`
	Inodes Amount    `json:"inodes"`
	At     time.Time `json:"at,omitzero"`
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
	config   Config
	cache    *cache
	metrics  viewMetrics
	prober   *prober
	schedule *relistSchedule
	sources  []*monitoredSource
}

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
	m.cache = newCache(config.Name, func(changes []Change) {
		m.metrics.countChanges(changes)

		if config.History != nil {
			config.History.add(changes)
		}
	})
	clock := &stamps{}
	m.prober = newProber(config, m.cache, m.metrics, clock)
	m.schedule = newRelistSchedule(&config, clock)

	for i, source := range config.Sources {
		m.sources = append(m.sources, &monitoredSource{
			Source: source, status: &m.schedule.sources[i], schedule: m.schedule, metrics: m.metrics, log: config.Log,
			concern: config.Concern, announce: m.prober.announce,
		})
	}

	return m
}

// Run runs the sources, probes the subjects of their events, and relists, until ctx
// ends. When it returns, only probes that hang are still running. It is called once.
func (m *Monitor) Run(ctx context.Context) {
	m.prober.begin()

	var following sync.WaitGroup

	for _, each := range m.sources {
		if each.supported() {
			following.Go(func() { each.follow(ctx) })
		}
	}

	following.Go(func() { m.probeUnhealthy(ctx) })

	m.relistPeriodically(ctx)
	m.prober.end()
	following.Wait()
	m.prober.pending.Wait()
}

// Suspect has the subjects probed now, as an event does. It does not wait, and has
// no effect unless Run is running.
func (m *Monitor) Suspect(ids ...string) { m.prober.announce(ids, announcedEvent{}) }

// ProbeSoon has a subject probed once, within 20 ms, after an operation: its effect does not follow later,
// as that of an event may, and the next operation often follows at once. Forget cancels the probe.
func (m *Monitor) ProbeSoon(id string) { m.prober.probeSoon(id) }

// SuspectAll is Suspect for all subjects.
func (m *Monitor) SuspectAll() { m.Suspect(m.config.List()...) }

// Set stores an observation of a subject unless the record is as new: observedAt is
// the time just before the observation started. It reports whether it was stored.
func (m *Monitor) Set(id string, observed Observation, observedAt time.Time) bool {
	return m.prober.set(id, observed, observedAt)
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

	m.prober.probeIdle(id)

	return record, true
}

// Forget drops the record of a subject, and the result of a probe that is running. One
// that is queued follows, and must return ErrGone.
func (m *Monitor) Forget(id string) { m.prober.forget(id) }

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

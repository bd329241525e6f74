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
)

var (
	// ErrGone is returned by a probe whose subject is not there any more and
	// should not be: nothing is kept about it.
	ErrGone = errors.New("there is nothing to look at any more")
	// ErrKeep is returned by a probe that can't tell right now because the
	// subject is just being changed: what is known stays, and it is looked at
	// again after Observation.Again.
	ErrKeep = errors.New("it is just being changed")
)

// Amount is a quantity of bytes or inodes.
type Amount struct {
	Total     int64 `json:"total"`
	Used      int64 `json:"used"`
	Available int64 `json:"available"`
}

// Usage is what is used of a volume, as far as it is known.
type Usage struct {
	Bytes  Amount `json:"bytes"`
	Inodes Amount `json:"inodes"`
}

// Observation is what a probe has found.
type Observation struct {
	// Entries are empty when nothing is the matter.
	Entries []Entry
	// Usage is nil when it was not looked for, or can't be told.
	Usage *Usage
	// Again asks for another look after that time, without an event; 0 is none
	// before the next relist.
	Again time.Duration
	// Patient keeps a subject that is unhealthy from being probed again before
	// that, where each probe may hang.
	Patient bool
}

// Config is what a Monitor must be told.
type Config struct {
	// Name says whose view it is, in metrics and in the log: "node",
	// "controller", "storage".
	Name string
	// List returns the ids of all subjects.
	List func() []string
	// Probe looks at one subject, now. It is never called twice at a time for
	// one subject, but for different ones at the same time. It may hang: after
	// ProbeTimeout it counts as ProbeTimedOut, what was known stays known beside
	// that, and nobody waits for it any longer. Errors: ErrGone, ErrKeep; any
	// other becomes ProbeTimedOut too, as what can't be seen is not well.
	Probe func(ctx context.Context, id string) (Observation, error)
	// Concern returns the subjects that an event is about; nil means that no
	// event is about any. Lost needs no answer: it is about all.
	Concern func(Event) []string
	// Sources are run by Run; none means that relists are all there is.
	Sources []Source
	// RelistPeriod is the time between relists while a source is missing or
	// has failed, EventedRelistPeriod while all are up; 0 is the default.
	RelistPeriod, EventedRelistPeriod time.Duration
	// ProbeTimeout bounds a probe; 0 is the default.
	ProbeTimeout time.Duration
	// Metrics and History are told of what changes; they may be shared among
	// monitors, and nil is nobody.
	Metrics *Metrics
	History *History
	Log     *slog.Logger
}

// Settings are the part of Config that all monitors of a process share.
type Settings struct {
	// PollingOnly leaves the sources out (--health-events=false).
	PollingOnly                                     bool
	RelistPeriod, EventedRelistPeriod, ProbeTimeout time.Duration
	Metrics                                         *Metrics
	History                                         *History
}

// With returns config with the settings in it.
func (s Settings) With(config Config) Config {
	config.RelistPeriod, config.EventedRelistPeriod, config.ProbeTimeout = s.RelistPeriod, s.EventedRelistPeriod, s.ProbeTimeout
	config.Metrics, config.History = s.Metrics, s.History

	if s.PollingOnly {
		config.Sources = nil
	}

	return config
}

// Record is what is known of one subject. It is never changed.
type Record struct {
	ID string
	// Entries has the worst first; it is empty when nothing is the matter.
	Entries []Entry
	// Since says of each reason among the entries since when it has been there.
	Since map[Reason]time.Time
	// Usage is the newest that is known, nil where none is.
	Usage *Usage
	// ObservedAt is when the look that the entries come from began.
	ObservedAt time.Time

	// condition is VolumeCondition, encoded.
	condition []byte
	patient   bool
	// known are the entries of the look at ObservedAt, and failure is the one of a
	// later look, at failedAt, that did not succeed; nil where there is none.
	known    []Entry
	failure  *Entry
	failedAt time.Time
}

// Healthy says whether nothing is the matter.
func (r *Record) Healthy() bool { return len(r.Entries) == 0 }

// answeredAt is when the newest look began, whatever came of it.
func (r *Record) answeredAt() time.Time {
	if r.failedAt.After(r.ObservedAt) {
		return r.failedAt
	}

	return r.ObservedAt
}

// Monitor keeps the newest condition of each subject. It is safe for concurrent
// use.
type Monitor struct {
	config   Config
	cache    *cache
	measured measured
	sources  []*followed

	// base ends with the monitor, and with it the looks.
	base context.Context //nolint:containedctx // looks live as long as the monitor, not as who has asked for them
	stop context.CancelFunc

	mu    sync.Mutex
	phase phase
	// stamped is the newest time that stamp has returned.
	stamped time.Time
	// noted are changes that unlock has yet to log.
	noted []Change
	looks looks
	plan  plan
}

// phase is where a Monitor stands.
type phase int

const (
	// idle: a Relist looks, events don't come.
	idle phase = iota
	running
	ended
)

// New returns a monitor that knows nothing yet; see Relist and Run.
func New(config Config) *Monitor {
	config.RelistPeriod = cmp.Or(config.RelistPeriod, DefaultRelistPeriod)
	config.EventedRelistPeriod = cmp.Or(config.EventedRelistPeriod, DefaultEventedRelistPeriod)
	config.ProbeTimeout = cmp.Or(config.ProbeTimeout, DefaultProbeTimeout)

	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}

	config.Log = config.Log.With("view", config.Name)

	m := &Monitor{config: config, measured: config.Metrics.measure(config.Name, config.Sources)}
	m.base, m.stop = context.WithCancel(context.Background())
	m.looks.subjects = map[string]*subject{}
	m.plan.wake = make(chan struct{}, 1)
	m.cache = newCache(config.Name, func(changes []Change) {
		m.measured.changed(changes)

		if config.History != nil {
			config.History.add(changes)
		}
	})

	for _, source := range config.Sources {
		m.sources = append(m.sources, &followed{Source: source, problem: "it has not been connected yet"})
	}

	return m
}

// Run runs the sources, looks at what they tell of, and relists, until ctx ends.
// When it returns no probe is running but those that hang. It is called once.
func (m *Monitor) Run(ctx context.Context) {
	m.begin()

	var following sync.WaitGroup

	for _, each := range m.sources {
		if m.supported(each) {
			following.Go(func() { m.follow(ctx, each) })
		}
	}

	following.Go(func() { m.probeUnhealthy(ctx) })

	m.relists(ctx)
	m.end()
	following.Wait()
	m.looks.probing.Wait()
}

// Suspect has the subjects looked at, now, as an event does. It does not wait.
// Before Run has begun, and after it has ended, nothing is looked at.
func (m *Monitor) Suspect(ids ...string) { m.announce(ids, announcement{}) }

// Set keeps what was observed of a subject, unless something as new is known:
// observedAt is the time just before the observation began. It says whether it
// did.
func (m *Monitor) Set(id string, observed Observation, observedAt time.Time) bool {
	m.mu.Lock()
	defer m.unlock()

	changes, stored := m.cache.set(id, observed, observedAt)
	m.noted = append(m.noted, changes...)

	if stored {
		m.lookAgain(id, observed.Again)
	}

	return stored
}

// Get returns what is known of a subject, false where nothing is. It never
// waits.
func (m *Monitor) Get(id string) (*Record, bool) { return m.cache.get(id) }

// Forget drops what is known of a subject, and what a probe under way will say.
func (m *Monitor) Forget(id string) {
	m.mu.Lock()
	defer m.unlock()

	at := m.stamp()
	if record, ok := m.cache.get(id); ok && record.answeredAt().After(at) {
		at = record.answeredAt()
	}

	m.noted = append(m.noted, m.cache.forget(id, at)...)
	m.abandon(id)
}

// Abnormal returns those that are not healthy, in the order of their ids,
// beginning behind after.
func (m *Monitor) Abnormal(after string) []*Record { return m.cache.after(after) }

// All returns what is known of all, in no order.
func (m *Monitor) All() []*Record { return m.cache.all() }

// Await returns what is known of a subject once it was observed at newerThan or
// after: by a look at it, or by a relist that began then and did not find it. It
// asks for no look. Errors: ErrGone, ctx's.
func (m *Monitor) Await(ctx context.Context, id string, newerThan time.Time) (*Record, error) {
	return m.cache.await(ctx, id, newerThan)
}

// stamp is the time, later each time that it is called: of two looks at a
// subject the second one always is the newer.
func (m *Monitor) stamp() time.Time {
	now := time.Now()
	if !now.After(m.stamped) {
		now = m.stamped.Add(1)
	}

	m.stamped = now

	return now
}

// unlock unlocks mu and logs what has changed meanwhile.
func (m *Monitor) unlock() {
	changes := m.noted
	m.noted = nil
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

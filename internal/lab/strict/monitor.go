package strict

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/recent"
)

// Mode is how violations are treated.
type Mode = string

// The modes.
const (
	Off     Mode = ""
	Observe Mode = "observe"
	Refuse  Mode = "refuse"
)

// Config is what a monitor needs to know.
type Config struct {
	Mode Mode
	// NodeID is the node whose stagings and publications this process sees.
	NodeID       string
	Capabilities capability.Set
	// Number returns the number of a call in the driver's log, for the interceptors.
	Number func(context.Context) uint64
	Log    *slog.Logger
	// Now returns the time; nil is time.Now.
	Now func() time.Time
}

// Monitor checks calls. It is safe for concurrent use, and its memory is bounded.
type Monitor struct {
	config     Config
	advertised advertised
	violations violations

	// mu guards what calls have shown.
	mu        sync.Mutex
	lifecycle lifecycle
	running   runningCalls
	failures  failures
	pages     pages
}

// New returns a monitor whose metric is in the registry.
func New(config Config, registry prometheus.Registerer) (*Monitor, error) {
	if config.Now == nil {
		config.Now = time.Now
	}

	metric := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "touchstone_co_violations_total", Help: "Violations of the CO's part of the CSI spec, by their id (docs/strict.md).",
	}, []string{"id"})

	for _, kind := range kinds {
		metric.WithLabelValues(kind.ID)
	}

	if err := registry.Register(metric); err != nil {
		return nil, fmt.Errorf("register the metric of violations: %w", err)
	}

	capabilities, started := advertised{config.Capabilities}, config.Now()

	return &Monitor{
		config: config, advertised: capabilities,
		violations: violations{
			refuse: config.Mode == Refuse, log: config.Log, now: config.Now, metric: metric, byKey: map[recordKey]*Violation{},
		},
		lifecycle: lifecycle{config.NodeID, capabilities, started, newVolumes(), recent.NewMap[string, string](maxMembers)},
		running:   runningCalls{config.NodeID, map[string][]*running{}},
		failures:  failures{config.Now, map[fingerprint]*failure{}},
		pages:     pages{config.Now, started, map[string]*tokens{}},
	}, nil
}

// Watches reports whether calls of the method are checked: those of CSI.
func Watches(method string) bool { return strings.HasPrefix(method, "/csi.") }

// finding is a violation of a call.
type finding struct {
	id string
	// object is the volume, snapshot or method that it is about.
	object string
	// detail is what is wrong, without values that may be secret.
	detail string
}

// call is a call under check.
type call struct {
	ctx     context.Context //nolint:containedctx // it is a state: whether the caller still waits
	number  uint64
	method  string
	request proto.Message
	digest  fingerprint
	// token is the starting_token that it has taken from the issued ones, if it has one.
	token string
	// name is the name of the volume that a violation is about, if it is known.
	name string
	// isStream means that BeginStream has checked whether it may be called.
	isStream bool
}

func (c *call) rpc() string { return c.method[strings.LastIndexByte(c.method, '/')+1:] }

// Begin checks a request before its handler runs. With Refuse it returns a FAILED_PRECONDITION
// status for a violation. Otherwise end has to be called with the response that the CO gets.
func (m *Monitor) Begin(ctx context.Context, number uint64, method string, request any) (end func(response any, err error), refusal error) {
	return m.begin(&call{ctx: ctx, number: number, method: method}, request)
}

func (m *Monitor) begin(c *call, request any) (end func(response any, err error), refusal error) {
	message, ok := request.(proto.Message)
	if !ok {
		return func(any, error) {}, nil
	}

	c.request, c.digest = message, fingerprintOf(c.method, message)

	m.mu.Lock()
	found := m.check(c)
	c.name = m.lifecycle.volumes.nameOf(found)
	begun := m.config.Mode != Refuse || len(found) == 0

	var key string
	if begun {
		m.pages.begin(c)
		key = m.running.begin(c)
	} else {
		m.failures.add(c)
	}
	m.mu.Unlock()

	m.violations.report(c.ctx, c, found)

	if !begun {
		return nil, refused(found[0])
	}

	return func(response any, err error) {
		m.mu.Lock()
		found := m.finish(c, key, response, err)
		m.mu.Unlock()

		m.violations.report(c.ctx, c, found)
	}, nil
}

// BeginStream checks whether a stream may be called, before it has its request, which Begin
// checks.
func (m *Monitor) BeginStream(ctx context.Context, number uint64, method string) error {
	c := &call{ctx: ctx, number: number, method: method}
	found := m.advertised.checkCall(c)
	m.violations.report(ctx, c, found)

	if m.config.Mode == Refuse && len(found) > 0 {
		return refused(found[0])
	}

	return nil
}

// check returns the violations that a request shows.
func (m *Monitor) check(c *call) []finding {
	var found []finding
	if !c.isStream {
		found = m.advertised.checkCall(c)
	}

	return slices.Concat(found, m.advertised.checkFields(c.request), checkSecrets(c), m.pages.check(c),
		m.failures.check(c), m.running.check(c), m.lifecycle.check(c.request))
}

// finish takes what a call has done, and returns the violations that only its end shows.
func (m *Monitor) finish(c *call, key string, response any, err error) []finding {
	m.running.end(c, key)
	found := m.pages.end(c, response, err)

	if err != nil {
		m.failures.add(c)

		return found
	}

	delete(m.failures.byDigest, c.digest)

	if message, ok := response.(proto.Message); ok {
		m.lifecycle.apply(c.request, message)
		m.lifecycle.learnMembers(c.request, message)
	}

	return found
}

func refused(f finding) error {
	kind := kindOf(f.id)

	return status.Errorf(codes.FailedPrecondition, "refused by --strict=refuse: %s: %s (violation %s, CSI spec %s); %s",
		cmp.Or(f.object, "request"), f.detail, f.id, strings.Join(kind.Rows, " "), kind.Remedy)
}

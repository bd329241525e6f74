package driver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var (
	errFirst  = errors.New("the first fails")
	errSecond = errors.New("the second fails")
)

// TestALabThatCannotBeOpened gives back what it has opened: no goroutine stays.
func TestALabThatCannotBeOpened(t *testing.T) {
	t.Parallel()

	capabilities, err := capability.Without()
	require.NoError(t, err)

	log := filepath.Join(t.TempDir(), "log")

	for want, config := range map[string]Config{
		"register the metric of the call log":  {CallLog: log},
		"register the metric of violations":    {Strict: "observe"},
		"register the metrics of fault rules":  {EnableFaults: true},
		"faults: read the fault rules: open /": {CallLog: log, Faults: "/none/rules"},
	} {
		config.capabilities = capabilities
		d := &Driver{guard: &guard{log: slog.New(slog.DiscardHandler), gate: newGate()}, config: config}
		registry := prometheus.NewRegistry()

		if first := (*d); config.Faults == "" {
			opened, err := first.openLab(registry)
			require.NoError(t, err, "want: the first lab of a registry is opened")
			require.Len(t, opened.parts, 1, "want: the part that is configured")

			for _, end := range opened.close {
				require.NoError(t, end())
			}
		}

		opened, err := d.openLab(registry)
		errtext.Require(t, err, want, "want: the second lab of a registry, or a missing file, is refused")
		require.Empty(t, opened, "want: no hooks of a lab that is not opened")
	}
}

// composed returns components without services, with a pool.
func composed(t *testing.T) (*components, *bytes.Buffer) {
	t.Helper()

	var text bytes.Buffer

	directory := t.TempDir()
	defaults := Defaults()
	config := &defaults
	config.Mode, config.StateDir, config.Pools = ModeController, filepath.Join(directory, "state"), map[string]string{"p": filepath.Join(directory, "p")}
	config.Log = slog.New(slog.NewTextHandler(&text, nil))
	r := &components{
		shared: shared{
			config: config, pools: pool.NewSet(config.Pools), operations: operation.NewGroup(),
			store: state.New(config.StateDir, state.Options{Log: config.Log}), removals: removal.New(config.Log),
		},
	}
	r.opener = newOpener(t.Context(), r.shared)
	r.storage = r.opener.monitor()
	r.closers = append(r.closers, r.opener.close)

	return r, &text
}

// serviceOf records its steps, and fails the one with the name fails.
func serviceOf(name, fails string, steps *[]string) service {
	step := func(what string) error {
		*steps = append(*steps, what+" "+name)

		if what+" "+name == fails {
			return errFirst
		}

		return nil
	}

	return service{
		name: name, register: func(grpc.ServiceRegistrar) {},
		recover:     func(context.Context) error { return step("recover") },
		recoverPool: func(_ context.Context, p *pool.Pool) error { return step("recover " + p.Name() + " of") },
		observe:     func(context.Context) error { return step("observe") },
		served:      func(_ context.Context, name string) { _ = step("served " + name + " to") },
	}
}

// TestServicesRecoverBeforePoolsAreServed: each service recovers, the pool is served, and then each service observes. A failure ends
// the start, but that of a pool.
func TestServicesRecoverBeforePoolsAreServed(t *testing.T) {
	t.Parallel()

	all := []string{
		"recover a", "recover b", "recover p of a", "recover p of b", "served p to a", "served p to b", "observe a", "observe b",
	}

	for fails, test := range map[string]struct {
		steps []string
		says  string
	}{
		"":               {all, ""},
		"recover a":      {all[:1], "recover a: the first fails"},
		"recover b":      {all[:2], "recover b: the first fails"},
		"observe a":      {all[:7], "recover a: the first fails"},
		"observe b":      {all, "recover b: the first fails"},
		"recover p of a": {[]string{"recover a", "recover b", "recover p of a", "observe a", "observe b"}, ""},
	} {
		var steps []string

		r, _ := composed(t)
		unobserved := serviceOf("c", fails, &steps)
		unobserved.recover = func(context.Context) error { return nil }
		unobserved.recoverPool = func(context.Context, *pool.Pool) error { return nil }
		unobserved.observe, unobserved.served = nil, nil
		r.services = []service{serviceOf("a", fails, &steps), unobserved, serviceOf("b", fails, &steps)}
		err := r.open(t.Context())

		if test.says == "" {
			require.NoError(t, err, "want: a start without %q", fails)
			require.Equal(t, fails == "", r.pools.Failure("p") == nil, "want: the pool is served, or has failed with %q", fails)
		} else {
			require.EqualError(t, err, test.says, "want: a start ends with %q", fails)
		}

		require.Equal(t, test.steps, steps, "want: the steps of a start with %q", fails)
		require.NoError(t, r.close())
	}
}

// TestComponentsEndInReverse: all closers are called, and all failures returned.
func TestComponentsEndInReverse(t *testing.T) {
	t.Parallel()

	r, _ := composed(t)

	var ended []string

	closer := func(name string, err error) func() error {
		return func() error {
			ended = append(ended, name)

			return err
		}
	}
	r.closers = append(r.closers, closer("a", errFirst), closer("b", nil), closer("c", errSecond))
	err := r.close()
	require.ErrorIs(t, err, errFirst)
	require.ErrorIs(t, err, errSecond)
	require.Equal(t, []string{"c", "b", "a"}, ended, "want: the last is closed first")

	drained := func(name string, err error) func(context.Context) error {
		return func(context.Context) error { return closer(name, err)() }
	}
	ended, r.drains = nil, []func(context.Context) error{drained("a", errFirst), drained("b", errSecond)}
	err = r.drain(t.Context())
	require.ErrorIs(t, err, errFirst)
	require.ErrorIs(t, err, errSecond)
	require.Equal(t, []string{"a", "b"}, ended, "want: each service is drained")
}

// TestBackgroundGoesOnUntilItsContextEnds, and its end is awaited.
func TestBackgroundGoesOnUntilItsContextEnds(t *testing.T) {
	t.Parallel()

	r, _ := composed(t)
	require.NoError(t, r.open(t.Context()))

	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan string, 3), make(chan string, 3)
	watch := func(name string) func(context.Context) {
		return func(ctx context.Context) {
			begun <- name

			<-ctx.Done()
			ended <- name
		}
	}
	r.watches = []func(context.Context){watch("a"), watch("b"), watch("another")}
	wait := r.begin(ctx)

	var names []string
	for range 3 {
		names = append(names, await.Receive(t, begun, "a watch"))
	}

	require.ElementsMatch(t, []string{"a", "b", "another"}, names, "want: each watch has begun")
	cancel()
	wait()
	require.Len(t, ended, 3, "want: all watches have ended after the wait")
	require.NoError(t, r.close())
}

// TestProbesOfThePools compares what a probe answers at each state of a pool.
func TestProbesOfThePools(t *testing.T) {
	t.Parallel()

	r, text := composed(t)
	o := r.opener
	require.Equal(t, []string{health.StateSubject, health.PoolSubject("p")}, o.list(), "want: the subjects of the storage")
	require.NoError(t, r.open(t.Context()))

	_, err := o.probe(t.Context(), health.PoolSubject("none"))
	require.ErrorIs(t, err, health.ErrGone, "want: a pool that is not configured is gone")

	observed, err := o.probe(t.Context(), health.StateSubject)
	require.NoError(t, err)
	require.Empty(t, observed, "want: the state is healthy")

	observed, err = o.probe(t.Context(), health.PoolSubject("p"))
	require.NoError(t, err)
	require.Empty(t, observed.Entries, "want: the pool is healthy")
	require.Equal(t, observed.Usage.Bytes.Total, observed.Usage.Bytes.Used+observed.Usage.Bytes.Available, "want: the space is used or available")
	require.Positive(t, observed.Usage.Bytes.Available, "want: the pool has space")

	served, err := r.pools.Get("p")
	require.NoError(t, err)

	record, known := o.identities.Get("p")
	require.True(t, known, "want: the identity of the pool is in the state")
	require.Equal(t, served.Identity(), record.ID, "want: the identity of the pool")

	// A pool that has just failed is not opened again at once.
	o.fail("p", errFirst)
	o.fail("p", errFirst)
	require.Equal(t, 1, strings.Count(text.String(), "a pool cannot be used"), "want: one reason is logged once")
	require.ErrorIs(t, o.open("p"), errFirst, "want: the failure of the last attempt")

	observed, err = o.probe(t.Context(), health.PoolSubject("p"))
	require.NoError(t, err)
	require.Equal(t, condition(health.PoolUnreachable, `pool "p": the first fails`), observed, "want: a failed pool is unreachable")

	// One that hangs does not answer.
	o.members["p"].turn <- struct{}{}
	o.limit = time.Millisecond

	observed, err = o.probe(t.Context(), health.PoolSubject("p"))
	require.NoError(t, err)
	require.Equal(t, condition(health.PoolUnreachable, `pool "p": the first fails`), observed, "want: the failure of a pool whose probe hangs")

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = o.probe(ended, health.PoolSubject("p"))
	require.ErrorIs(t, err, context.Canceled, "want: the end of the probe is no answer")

	// The probes that wait for the turn may still take it.
	o.limit, o.members["p"].failedAt = maxPoolProbe, time.Now().Add(-reopenPause)
	<-o.members["p"].turn

	observed, err = o.probe(t.Context(), health.PoolSubject("p"))
	require.NoError(t, err)
	require.Empty(t, observed.Entries, "want: the pool is opened again after the pause")

	o.members["p"].turn <- struct{}{}
	require.NoError(t, o.members["p"].failure, "want: the failure is over")

	o.limit = time.Millisecond

	observed, err = o.probe(t.Context(), health.PoolSubject("p"))
	require.NoError(t, err)
	require.Equal(t, condition(health.PoolUnreachable, `pool "p" does not answer; check the storage below `+r.pools.Path("p")), observed, "want: a served pool that hangs")
	<-o.members["p"].turn

	require.Eventually(t, func() bool { return r.operations.Len() == 0 }, time.Minute, time.Millisecond, "want: the announcement has ended")
	require.NoError(t, r.close())
}

// TestAFailedSearchForEvadingFilesIsLogged, unless the driver ends.
func TestAFailedSearchForEvadingFilesIsLogged(t *testing.T) {
	t.Parallel()

	r, text := composed(t)
	require.NoError(t, r.open(t.Context()))

	served, err := r.pools.Get("p")
	require.NoError(t, err)

	find := func(err error) func() ([]string, error) { return func() ([]string, error) { return nil, err } }
	r.confine(t.Context(), served, find(nil))
	require.NotContains(t, text.String(), "cannot search", "want: a search that succeeds is not logged")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.confine(ended, served, find(errFirst))
	require.NotContains(t, text.String(), "cannot search", "want: a search that the end interrupts is not logged")

	r.confine(t.Context(), served, find(errFirst))
	require.Contains(t, text.String(), "cannot search", "want: a search that fails is logged")
	require.NoError(t, r.close())
}

func TestTheHTTPEndpointHasTheNamesOfItsHost(t *testing.T) {
	t.Parallel()

	for endpoint, want := range map[string][]string{
		"": {"localhost", "a"}, ":9808": {"localhost", "a"}, "127.0.0.1:9808": {"localhost", "a", "127.0.0.1"}, "host:1": {"localhost", "a", "host"},
		"host": {"localhost", "a"},
	} {
		require.Equal(t, want, (&Config{HTTPHosts: []string{"a"}, HTTPEndpoint: endpoint}).hostNames(), "want: the names of %q", endpoint)
	}
}

// TestReportBeforeTheFirstProbes waits for them, as long as its caller.
func TestReportBeforeTheFirstProbes(t *testing.T) {
	t.Parallel()

	r, _ := composed(t)
	r.views = []view{{"storage", r.storage, func() []health.VolumeReport { return nil }}}

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := (&Driver{guard: &guard{gate: newGate()}, components: r}).report(ended)
	errtext.Require(t, err, "wait for the first probes", "want: no report before the first probes")
	rpccode.Require(t, newGate().pass(ended, "/csi.v1.Node/NodeStageVolume"), codes.Canceled, "a call that does not wait for the start")
	require.NoError(t, r.close())
}

package health_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// fakes are the subjects of a monitor under test.
type fakes struct {
	mu      sync.Mutex
	ids     []string
	entries map[string][]health.Entry
	again   map[string]time.Duration
	patient map[string]bool
	errs    map[string]error
	panics  map[string]any
	hanging map[string]chan struct{}
	probes  map[string]int
	running map[string]int
	// atOnce is the largest number of concurrent probes by subject; the empty name
	// counts all.
	atOnce map[string]int
}

func newFakes(ids ...string) *fakes {
	return &fakes{
		ids: ids, entries: map[string][]health.Entry{}, again: map[string]time.Duration{}, patient: map[string]bool{}, errs: map[string]error{},
		panics: map[string]any{}, hanging: map[string]chan struct{}{}, probes: map[string]int{}, running: map[string]int{}, atOnce: map[string]int{},
	}
}

// config returns a Config whose events affect the subject named by their path.
func (w *fakes) config() health.Config {
	return health.Config{
		Name: "node", List: w.list, Probe: w.probe,
		Concern: func(event health.Event) []string {
			if event.Path == "" {
				return nil
			}

			return []string{event.Path}
		},
	}
}

func (w *fakes) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	return append([]string(nil), w.ids...)
}

// probe returns the entries from when it started, even if it hangs meanwhile.
func (w *fakes) probe(_ context.Context, id string) (health.Observation, error) {
	w.mu.Lock()
	w.probes[id]++

	for _, each := range []string{id, ""} {
		w.running[each]++
		w.atOnce[each] = max(w.atOnce[each], w.running[each])
	}

	observed, err := health.Observation{Entries: w.entries[id], Again: w.again[id], NoEarlyProbe: w.patient[id]}, w.errs[id]
	gate, value := w.hanging[id], w.panics[id]
	w.mu.Unlock()

	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		w.running[id]--
		w.running[""]--
	}()

	if gate != nil {
		<-gate
	}

	if value != nil {
		panic(value)
	}

	return observed, err
}

func (w *fakes) change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()

	change()
}

func (w *fakes) setReasons(id string, reasons ...health.Reason) {
	w.change(func() {
		w.entries[id] = nil
		for _, reason := range reasons {
			w.entries[id] = append(w.entries[id], health.NewEntry(reason, "it is "+string(reason)))
		}
	})
}

// hang blocks the probes of a subject until the returned function is called.
func (w *fakes) hang(id string) (release func()) {
	gate := make(chan struct{})

	w.change(func() { w.hanging[id] = gate })

	return sync.OnceFunc(func() {
		w.change(func() { delete(w.hanging, id) })
		close(gate)
	})
}

func (w *fakes) count(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.probes[id]
}

// most returns how many probes of a subject there were at a time at most, and of
// all if it has no name.
func (w *fakes) most(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.atOnce[id]
}

// run runs the monitor until the test's end, and returns once it waits.
func run(t *testing.T, monitor *health.Monitor) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		monitor.Run(ctx)
	}()

	t.Cleanup(func() {
		cancel()
		<-ended
	})
	synctest.Wait()
}

func reasons(t *testing.T, monitor *health.Monitor, id string) []health.Reason {
	t.Helper()

	record, ok := monitor.Get(id)
	require.True(t, ok, "nothing is known of %s", id)

	found := []health.Reason{}
	for _, entry := range record.Entries {
		found = append(found, entry.Reason)
	}

	return found
}

func TestRelistProbesAllSubjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a", "b")
		w.setReasons("b", health.DiskFailure)

		monitor := health.New(w.config())
		require.NoError(t, monitor.Relist(t.Context()))
		require.Empty(t, reasons(t, monitor, "a"), "want: the healthy subject has no condition")
		require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "b"))

		w.change(func() { w.ids = []string{"a"} })
		require.NoError(t, monitor.Relist(t.Context()))

		_, ok := monitor.Get("b")
		require.False(t, ok, "what is not listed is forgotten")
		require.Empty(t, monitor.Abnormal(""), "want: no subject is unhealthy")
	})
}

func TestSuspectProbesImmediatelyAndLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		monitor := health.New(w.config())

		monitor.Suspect("a")
		synctest.Wait()
		require.Zero(t, w.count("a"), "no probe before Run")

		run(t, monitor)
		require.Equal(t, 1, w.count("a"), "the first relist")

		time.Sleep(10 * time.Second)

		monitor.Suspect("a")

		for at, passed := range []time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond, 900 * time.Millisecond} {
			time.Sleep(passed)
			synctest.Wait()
			require.Equal(t, at+2, w.count("a"), "want: the subject is probed at once and once more")
		}

		time.Sleep(20 * time.Second)
		require.Equal(t, 5, w.count("a"), "no more than that, before the next relist")
	})
}

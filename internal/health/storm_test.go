package health_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// storm has everything happen to a few subjects at random, and then nothing.
type storm struct {
	*fakes

	random  *rand.Rand // guarded by world.mu
	gone    map[string]bool
	over    bool // the storm: probes take no time any more
	errors  *source
	monitor *health.Monitor
}

func (s *storm) intN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.random.IntN(n)
}

func (s *storm) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	ids := []string{}

	for _, id := range s.ids {
		if !s.gone[id] {
			ids = append(ids, id)
		}
	}

	return ids
}

// probe takes its time, and says what was so when it began.
func (s *storm) probe(ctx context.Context, id string) (health.Observation, error) {
	s.mu.Lock()
	gone, over := s.gone[id], s.over
	s.mu.Unlock()

	switch what := s.intN(20); {
	case over:
	case what == 0:
		time.AfterFunc(time.Duration(s.intN(60_000))*time.Millisecond, s.hang(id))
	case what <= 3:
		time.AfterFunc(time.Duration(s.intN(300))*time.Millisecond, s.hang(id))
	}

	found, err := s.fakes.probe(ctx, id)
	if gone {
		return found, health.ErrGone
	}

	return found, err
}

func (s *storm) act(ctx context.Context) {
	id := s.ids[s.intN(len(s.ids))]

	switch s.intN(11) {
	case 0, 1, 2:
		s.setReasons(id, health.Reasons()[s.intN(8):][:s.intN(4)]...)
		s.monitor.Suspect(id)
	case 3:
		s.setReasons(id, health.Reasons()[s.intN(8):][:s.intN(4)]...)
	case 4:
		go s.monitor.Relist(ctx)
	case 5:
		s.change(func() { s.gone[id] = true })
		s.monitor.Forget(id)
	case 6, 7:
		s.change(func() { delete(s.gone, id) })
		s.monitor.Suspect(id)
	case 8:
		errs := []error{nil, unix.EIO, health.ErrKeep, errors.New("broken")}
		err, again := errs[s.intN(len(errs))], time.Duration(s.intN(1000))*time.Millisecond
		s.change(func() { s.errs[id], s.again[id] = err, again })
	case 9:
		select {
		case s.errors.fail <- errors.New("broken"):
		default: // it is not connected
		}
	case 10:
		go func() {
			waiting, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()

			s.monitor.Await(waiting, id, time.Now())
		}()
	}
}

// TestRecordsAreRightAfterAStorm: after any sequence of events, the records have the actual
// conditions, and metrics, history and records agree.
func TestRecordsAreRightAfterAStorm(t *testing.T) {
	t.Parallel()

	for seed := range uint64(30) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				registry, history := prometheus.NewRegistry(), health.NewHistory(100_000)
				s := &storm{
					fakes: newFakes(manyIDs()[:16]...), gone: map[string]bool{}, errors: newSource("errors"),
					random: rand.New(rand.NewPCG(seed, seed)),
				}
				config := s.config()
				config.List, config.Probe, config.Sources = s.list, s.probe, []health.Source{s.errors}
				config.Metrics, config.History = health.NewMetrics(registry), history
				s.monitor = health.New(config)
				run(t, s.monitor)

				for range 1000 {
					s.act(t.Context())
					time.Sleep(time.Duration(s.intN(100)) * time.Millisecond)
				}

				// All probes have returned, and there has been a relist since.
				s.change(func() { clear(s.errs); clear(s.again); s.over = true })
				time.Sleep(10 * time.Minute)

				for _, id := range s.ids {
					require.Equal(t, 1, s.most(id), "never two at a time")
				}

				s.requireKnown(t, registry, history)
			})
		})
	}
}

func (s *storm) requireKnown(t *testing.T, registry *prometheus.Registry, history *health.History) {
	t.Helper()

	series, told := map[string]float64{}, map[string]int{}

	for _, record := range s.monitor.All() {
		require.Contains(t, s.list(), record.ID)

		if !record.Healthy() {
			require.Contains(t, s.monitor.Abnormal(""), record)
		}
	}

	for _, id := range s.list() {
		want := []health.Reason{}

		var entries []health.Entry

		s.change(func() { entries = s.entries[id] })

		for _, entry := range entries {
			want = append(want, entry.Reason)
			series[string(entry.Reason)+"/"+entry.Status.String()+"/node"]++
			told[id+string(entry.Reason)]++
		}

		require.ElementsMatch(t, want, reasons(t, s.monitor, id))
	}

	require.Equal(t, series, abnormal(t, registry))

	for _, change := range history.Changes() {
		if change.Cleared {
			told[change.Subject+string(change.Reason)]++
		} else {
			told[change.Subject+string(change.Reason)]--
		}
	}

	for what, balance := range told {
		require.Zero(t, balance, what)
	}
}

package health_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime/pprof"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// TestHangingProbesDelayNoOther has more probes hang than may run concurrently.
func TestHangingProbesDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ids := manyIDs()[:200]
		w := newFakes(append(ids, "other")...)
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(10 * time.Second)

		releases := []func(){}
		for _, id := range ids {
			releases = append(releases, w.hang(id))
		}

		began := time.Now()

		monitor.Suspect(ids...)
		time.Sleep(time.Millisecond)
		w.setReasons("other", health.DiskFailure)
		monitor.Suspect("other")

		record, err := monitor.Await(t.Context(), "other", began.Add(time.Millisecond))
		require.NoError(t, err)
		require.False(t, record.Healthy(), "want: the subject is unhealthy")
		require.Less(t, time.Since(began), time.Second, "the clock is synctest's own")

		time.Sleep(10 * time.Second)

		for _, id := range ids {
			require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(t, monitor, id))
		}

		for _, release := range releases {
			release()
		}
	})
}

// markGoroutines labels the goroutines that this one starts from now on, because other
// tests run in parallel. It returns a function that counts them.
func markGoroutines(t *testing.T) (count func() int) {
	t.Helper()

	mark := pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name()))
	pprof.SetGoroutineLabels(mark)

	marked := regexp.MustCompile(`(?m)^(\d+) @.*\n# labels: .*"` + regexp.QuoteMeta(t.Name()) + `"`)

	return func() int {
		synctest.Wait()

		var (
			profile bytes.Buffer
			sum     int
		)

		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))

		for _, alike := range marked.FindAllStringSubmatch(profile.String(), -1) {
			number, err := strconv.Atoi(alike[1])
			require.NoError(t, err)

			sum += number
		}

		require.Positive(t, sum, "want: the profile lists goroutines")

		return sum
	}
}

func TestHangingProbeTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goroutines := markGoroutines(t)
		w := newFakes("a", "b")
		w.setReasons("a", health.IOErrors)

		monitor := health.New(w.config())
		relist(t, monitor)

		known, _ := monitor.Get("a")
		release := w.hang("a")
		defer release() // also when the test fails, which would otherwise end as a deadlock

		began := time.Now()

		relist(t, monitor)
		require.InDelta(t, health.DefaultProbeTimeout, time.Since(began), float64(10*time.Millisecond), "duration of the relist")
		require.Equal(t, []health.Reason{health.IOErrors, health.ProbeTimedOut}, reasons(t, monitor, "a"), "the previous entries stay")

		record, _ := monitor.Get("a")
		require.Equal(t, known.ObservedAt, record.ObservedAt)
		require.Equal(t, known.Since[health.IOErrors], record.Since[health.IOErrors])

		// No second probe starts while it hangs, and no relist waits again.
		probes, running := w.count("a"), goroutines()
		began = time.Now()

		for range 5000 {
			relist(t, monitor)
		}

		require.Equal(t, probes, w.count("a"), "want: a hanging probe is not repeated")
		require.Equal(t, running, goroutines(), "want: relists start no further goroutines")
		require.Less(t, time.Since(began), time.Minute, "want: relists do not wait for the hanging probe")
		require.Equal(t, []health.Reason{health.IOErrors, health.ProbeTimedOut}, reasons(t, monitor, "a"))

		// Its result is old, but there is no newer one; another probe follows at once.
		release()
		synctest.Wait()
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
		require.Equal(t, probes+1, w.count("a"), "the relists have requested another probe")
		require.Equal(t, 1, w.most("a"), "want: one probe of the subject runs at once")
	})
}

func TestLateObservationKeepsNewerRecords(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		meanwhile func(monitor *health.Monitor)
		want      []health.Reason
		late      []health.Reason
	}{
		"is stored": {
			func(*health.Monitor) {}, []health.Reason{health.ProbeTimedOut}, []health.Reason{health.DiskFailure},
		},
		"is older than the record": {
			func(monitor *health.Monitor) { monitor.Set("a", observed(health.IOErrors), time.Now()) },
			[]health.Reason{health.IOErrors},
			[]health.Reason{health.IOErrors},
		},
		"is newer than the record": {
			func(monitor *health.Monitor) { monitor.Set("a", observed(health.IOErrors), time.Now().Add(-time.Hour)) },
			[]health.Reason{health.IOErrors, health.ProbeTimedOut},
			[]health.Reason{health.DiskFailure},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				w.setReasons("a", health.DiskFailure)

				release := w.hang("a")
				defer release()

				monitor := health.New(w.config())
				relist(t, monitor)
				time.Sleep(time.Minute)
				test.meanwhile(monitor)
				require.Equal(t, test.want, reasons(t, monitor, "a"))

				release()
				synctest.Wait()
				require.Equal(t, test.late, reasons(t, monitor, "a"))
			})
		})
	}
}

// TestForgetDropsRunningProbes forgets a subject while its probe runs: the result must
// not restore the record.
func TestForgetDropsRunningProbes(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		takes time.Duration
		errs  error
		again time.Duration
	}{
		"a probe":          {takes: 50 * time.Millisecond},
		"a slow probe":     {takes: time.Second},
		"a hanging probe":  {takes: time.Hour},
		"returns ErrKeep":  {takes: time.Second, errs: health.ErrKeep},
		"fails":            {takes: time.Second, errs: unix.EIO},
		"requests another": {takes: time.Second, again: time.Second},
		"hangs and fails":  {takes: time.Hour, errs: unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a")
				config := w.config()
				config.History = health.NewHistory(8)
				monitor := health.New(config)
				run(t, monitor)

				w.setReasons("a", health.DiskFailure)
				w.change(func() { w.errs["a"], w.again["a"] = test.errs, test.again })

				time.Sleep(time.Second)
				time.AfterFunc(test.takes, w.hang("a"))
				monitor.Suspect("a")
				time.Sleep(20 * time.Millisecond)

				w.change(func() { w.ids, w.errs["a"] = nil, health.ErrGone })
				monitor.Forget("a")

				probes := w.count("a")

				time.Sleep(2 * time.Hour)

				_, ok := monitor.Get("a")
				require.False(t, ok, "want: no record")
				require.LessOrEqual(t, w.count("a"), probes+2, "at most the queued and a requested probe")
				require.Empty(t, config.History.Changes(), "no change is reported")
			})
		})
	}
}

func TestForgottenIDIsUsedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")
		w.setReasons("a", health.DiskFailure)

		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		release := w.hang("a")
		monitor.Suspect("a")
		time.Sleep(20 * time.Millisecond)
		monitor.Forget("a")
		w.setReasons("a", health.IOErrors)
		monitor.Suspect("a")
		time.Sleep(20 * time.Millisecond)

		release()
		synctest.Wait()
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
	})
}

func TestProbeErrorsKeepTheRecord(t *testing.T) {
	t.Parallel()

	const message = "the last probe failed"

	for name, test := range map[string]struct {
		err   error
		panic any
		want  []health.Entry
	}{
		"errno": {err: fmt.Errorf("stat /x/0197: %w", unix.EIO), want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"), health.NewEntry(health.ProbeTimedOut, message+": input/output error"),
		}},
		"deadline exceeded": {err: fmt.Errorf("stat: %w", context.DeadlineExceeded), want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"),
			health.NewEntry(health.ProbeTimedOut, "the last probe timed out"),
		}},
		"other error": {err: errors.New("at 12:03 there were 7 of them"), want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"),
			health.NewEntry(health.ProbeTimedOut, message+"; see the driver's log"),
		}},
		"panic": {panic: "a defect", want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"),
			health.NewEntry(health.ProbeTimedOut, message+" because of a defect of the driver; see its log"),
		}},
		"ErrKeep": {err: health.ErrKeep, want: []health.Entry{health.NewEntry(health.IOErrors, "it is IOErrors")}},
		"ErrGone": {err: fmt.Errorf("no image: %w", health.ErrGone)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFakes("a", "b")
				w.setReasons("a", health.IOErrors)

				var logged bytes.Buffer

				config := w.config()
				config.Log = slog.New(slog.NewTextHandler(&logged, nil))
				monitor := health.New(config)
				relist(t, monitor)

				w.change(func() { w.errs["a"], w.panics["a"] = test.err, test.panic })
				relist(t, monitor)

				record, ok := monitor.Get("a")
				require.Equal(t, test.want != nil, ok, "want: the subject has a record where its probe failed")

				if ok {
					require.Equal(t, test.want, record.Entries)
				}

				if test.panic != nil {
					synctest.Wait() // the log is written after the result is stored
					require.Contains(t, logged.String(), "a defect")
					require.Contains(t, logged.String(), "(*fakes).probe", "the stack")
				}

				// The next probe succeeds.
				w.change(func() { w.errs["a"], w.panics["a"] = nil, nil })
				relist(t, monitor)
				require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
			})
		})
	}
}

func TestFailureIsLoggedOnceUntilItChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("a")

		var logged bytes.Buffer

		config := w.config()
		config.Log = slog.New(slog.NewTextHandler(&logged, nil))
		monitor := health.New(config)

		for _, err := range []error{unix.EIO, unix.EIO, unix.EIO, unix.ENODEV, unix.ENODEV} {
			w.change(func() { w.errs["a"] = err })
			relist(t, monitor)
		}

		require.Equal(t, 2, bytes.Count(logged.Bytes(), []byte(`msg="probe failed"`)), "want: the failure is logged again only when it changes")
	})
}

// TestHangingProbesAreBounded hangs the probes of all volumes of a large pool.
func TestHangingProbesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ids := manyIDs()[:1500]
		w := newFakes(ids...)
		releases := []func(){}

		for _, id := range ids {
			releases = append(releases, w.hang(id))
		}

		monitor := health.New(w.config())
		relist(t, monitor)
		require.InDelta(t, 1000, w.most(""), 50, "want: about 1000 hanging probes run at once")

		messages := map[string]int{}

		for _, record := range monitor.All() {
			require.Len(t, record.Entries, 1, "want: each subject has one condition")
			require.Equal(t, health.ProbeTimedOut, record.Entries[0].Reason)

			messages[record.Entries[0].Message]++
		}

		require.Len(t, messages, 2, "some have timed out, some were not probed")
		require.Len(t, monitor.All(), len(ids), "want: each subject has a record")

		for _, release := range releases {
			release()
		}

		synctest.Wait()
		relist(t, monitor)
		require.Empty(t, monitor.Abnormal(""), "want: no subject is unhealthy after the hang")
	})
}

func TestRunEndsDespiteHangingProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakes("quick", "hanging")
		ctx, cancel := context.WithCancel(t.Context())
		monitor := health.New(w.config())
		ended := make(chan struct{})

		go func() {
			defer close(ended)

			monitor.Run(ctx)
		}()

		synctest.Wait()
		time.Sleep(time.Second)

		release := w.hang("hanging")
		monitor.Suspect("hanging")
		time.Sleep(10 * time.Second)

		quick := w.hang("quick")
		monitor.Suspect("quick")
		synctest.Wait()
		w.setReasons("quick", health.IOErrors)
		cancel()
		synctest.Wait()

		select {
		case <-ended:
			t.Fatal("a probe is still running")
		default:
		}

		quick()
		<-ended

		require.Empty(t, reasons(t, monitor, "quick"), "the end of the monitor is no condition")

		probes := w.count("quick")

		monitor.Suspect("quick")
		require.Error(t, monitor.Relist(context.Background()), "Relist of a monitor that has ended")
		time.Sleep(time.Hour)
		require.Equal(t, probes, w.count("quick"), "want: no probe runs after the end")

		release()
	})
}

// TestProbeContextIsCancelled covers the probe's timeout and the monitor's end.
func TestProbeContextIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry, w := prometheus.NewRegistry(), newFakes("a")
		waiting := false
		config := w.config()
		config.Metrics = health.NewMetrics(registry)
		config.Probe = func(ctx context.Context, _ string) (health.Observation, error) {
			if waiting {
				<-ctx.Done()
			}

			return health.Observation{}, ctx.Err()
		}

		ctx, cancel := context.WithCancel(t.Context())
		monitor := health.New(config)
		ended := make(chan struct{})

		go func() {
			defer close(ended)

			monitor.Run(ctx)
		}()

		synctest.Wait()

		waiting = true
		began := time.Now()
		_, err := monitor.ProbeNow(t.Context(), "a")
		require.NoError(t, err)
		require.WithinDuration(t, began.Add(health.DefaultProbeTimeout), time.Now(), time.Millisecond)
		require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(t, monitor, "a"))
		synctest.Wait()
		require.InDelta(t, 1, values(t, registry, "touchstone_health_probes_timed_out_total")["node"], 0, "want: the timeout is counted once")
		require.InDelta(t, 0, values(t, registry, "touchstone_health_probe_errors_total")["node"], 0, "counted as timed out only")

		waiting = false
		_, err = monitor.ProbeNow(t.Context(), "a")
		require.NoError(t, err)
		require.Empty(t, reasons(t, monitor, "a"), "want: the probe after the timeout clears the condition")

		waiting = true

		monitor.Suspect("a")
		synctest.Wait()
		cancel()
		<-ended
		require.Empty(t, reasons(t, monitor, "a"), "the end of the monitor is no condition")
	})
}

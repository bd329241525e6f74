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

	"github.com/touchstone-csi/touchstone/pkg/health"
)

// relist relists once the clock has moved, so that the looks are newer.
func relist(t *testing.T, monitor *health.Monitor) {
	t.Helper()
	time.Sleep(time.Millisecond)
	require.NoError(t, monitor.Relist(t.Context()))
}

func TestAnEventWhileAProbeRunsHasItLookedAtAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		release := w.hang("a")
		monitor.Suspect("a")
		synctest.Wait()
		time.Sleep(50 * time.Millisecond)

		// The look under way has begun before.
		w.sicken("a", health.DiskFailure)
		monitor.Suspect("a")
		monitor.Suspect("a")
		synctest.Wait()
		require.Equal(t, 2, w.count("a"), "the first relist's, and the one under way")

		release()
		synctest.Wait()
		require.Equal(t, 3, w.count("a"))
		require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "a"))
		require.Equal(t, 1, w.most("a"), "never two at a time")
	})
}

func TestARelistDoesNotTakeAnOlderLooksWord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		monitor := health.New(w.config())
		release := w.hang("a")

		go monitor.Look(t.Context(), "a")

		synctest.Wait()
		w.sicken("a", health.DiskFailure)
		time.AfterFunc(50*time.Millisecond, release)
		relist(t, monitor)
		require.Equal(t, []health.Reason{health.DiskFailure}, reasons(t, monitor, "a"))
		require.Equal(t, 2, w.count("a"))
		require.Equal(t, 1, w.most("a"))
	})
}

// TestARelistDoesNotWaitForAnOlderLookThatHangs has the relist begin while the
// look is not given up yet.
func TestARelistDoesNotWaitForAnOlderLookThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		release := w.hang("a")
		defer release() // also when the test fails: else all that is seen is a deadlock

		began := time.Now()

		monitor.Suspect("a")
		time.Sleep(time.Second)
		relist(t, monitor)
		require.WithinDuration(t, began.Add(health.DefaultProbeTimeout), time.Now(), 10*time.Millisecond)
		require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(t, monitor, "a"))
		release()
	})
}

func TestWhatWasGoneBeforeIsKnownAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		w.change(func() { w.errs["a"] = health.ErrGone })

		monitor := health.New(w.config())
		time.AfterFunc(time.Second, w.hang("a"))
		time.AfterFunc(time.Second/2, func() { monitor.Set("a", observed(health.IOErrors), time.Now()) })
		relist(t, monitor)
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
	})
}

func TestARelistForgetsNothingNewer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		monitor := health.New(w.config())
		time.AfterFunc(time.Second, w.hang("a"))
		time.AfterFunc(time.Second/2, func() { monitor.Set("new", observed(health.IOErrors), time.Now()) })
		relist(t, monitor)
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "new"), "it was not there to be listed yet")
		relist(t, monitor)

		_, ok := monitor.Get("new")
		require.False(t, ok, "want: no record is known")
	})
}

func TestRelistsAtATimeShareTheLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b")
		release := w.hang("a")
		monitor := health.New(w.config())
		done := make(chan error)

		go func() { done <- monitor.Relist(t.Context()) }()

		synctest.Wait()

		go func() { done <- monitor.Relist(t.Context()) }()

		synctest.Wait()
		release()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, 1, w.most("a"))
	})
}

func TestProbesAreBoundedInNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(manyIDs()[:500]...)
		config := w.config()
		config.Probe = func(ctx context.Context, id string) (health.Observation, error) {
			gate := w.hang(id)
			time.AfterFunc(50*time.Millisecond, gate)

			return w.probe(ctx, id)
		}

		monitor := health.New(config)
		relist(t, monitor)
		require.Equal(t, 32, w.most(""))
		require.Len(t, monitor.All(), 500)
	})
}

// TestAHangingProbeDelaysNobody has more subjects hang than there are places.
func TestAHangingProbeDelaysNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ids := manyIDs()[:200]
		w := newWorld(append(ids, "well")...)
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
		w.sicken("well", health.DiskFailure)
		monitor.Suspect("well")

		record, err := monitor.Await(t.Context(), "well", began.Add(time.Millisecond))
		require.NoError(t, err)
		require.False(t, record.Healthy())
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

// markGoroutines marks those that this one begins from now on, and those that they
// begin: other tests run beside. It returns what counts them, once each rests.
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

		require.Positive(t, sum)

		return sum
	}
}

func TestAHangingProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goroutines := markGoroutines(t)
		w := newWorld("a", "b")
		w.sicken("a", health.IOErrors)

		monitor := health.New(w.config())
		relist(t, monitor)

		known, _ := monitor.Get("a")
		release := w.hang("a")
		defer release() // also when the test fails: else all that is seen is a deadlock

		began := time.Now()

		relist(t, monitor)
		require.InDelta(t, health.DefaultProbeTimeout, time.Since(began), float64(10*time.Millisecond), "the relist waits that long, no longer")
		require.Equal(t, []health.Reason{health.IOErrors, health.ProbeTimedOut}, reasons(t, monitor, "a"), "what was known stays")

		record, _ := monitor.Get("a")
		require.Equal(t, known.ObservedAt, record.ObservedAt)
		require.Equal(t, known.Since[health.IOErrors], record.Since[health.IOErrors])

		// It hangs for long: no second probe is begun, and nobody waits again.
		looks, running := w.count("a"), goroutines()
		began = time.Now()

		for range 5000 {
			relist(t, monitor)
		}

		require.Equal(t, looks, w.count("a"))
		require.Equal(t, running, goroutines())
		require.Less(t, time.Since(began), time.Minute)
		require.Equal(t, []health.Reason{health.IOErrors, health.ProbeTimedOut}, reasons(t, monitor, "a"))

		// Its answer is old, but there is no newer one; and it is asked again at once.
		release()
		synctest.Wait()
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
		require.Equal(t, looks+1, w.count("a"), "the relists meanwhile have asked for another look")
		require.Equal(t, 1, w.most("a"))
	})
}

func TestALateAnswer(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		meanwhile func(monitor *health.Monitor)
		want      []health.Reason
		late      []health.Reason
	}{
		"is taken": {
			func(*health.Monitor) {}, []health.Reason{health.ProbeTimedOut}, []health.Reason{health.DiskFailure},
		},
		"is too late": {
			func(monitor *health.Monitor) { monitor.Set("a", observed(health.IOErrors), time.Now()) },
			[]health.Reason{health.IOErrors},
			[]health.Reason{health.IOErrors},
		},
		"is newer than what was heard meanwhile": {
			func(monitor *health.Monitor) { monitor.Set("a", observed(health.IOErrors), time.Now().Add(-time.Hour)) },
			[]health.Reason{health.IOErrors, health.ProbeTimedOut},
			[]health.Reason{health.DiskFailure},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a")
				w.sicken("a", health.DiskFailure)

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

// TestTheForgottenStayForgotten has a probe under way when its subject is
// forgotten: what it says must not bring the subject back.
func TestTheForgottenStayForgotten(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		takes time.Duration
		errs  error
		again time.Duration
	}{
		"a probe":               {takes: 50 * time.Millisecond},
		"a slow probe":          {takes: time.Second},
		"a hanging probe":       {takes: time.Hour},
		"one that can't tell":   {takes: time.Second, errs: health.ErrKeep},
		"one that fails":        {takes: time.Second, errs: unix.EIO},
		"one that wants more":   {takes: time.Second, again: time.Second},
		"one that hangs, fails": {takes: time.Hour, errs: unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a")
				config := w.config()
				config.History = health.NewHistory(8)
				monitor := health.New(config)
				run(t, monitor)

				w.sicken("a", health.DiskFailure)
				w.change(func() { w.errs["a"], w.again["a"] = test.errs, test.again })

				time.Sleep(time.Second)
				time.AfterFunc(test.takes, w.hang("a"))
				monitor.Suspect("a")
				time.Sleep(20 * time.Millisecond)

				w.change(func() { w.ids = nil })
				monitor.Forget("a")

				looks := w.count("a")

				time.Sleep(2 * time.Hour)

				_, ok := monitor.Get("a")
				require.False(t, ok, "want: no record is known")
				require.Equal(t, looks, w.count("a"), "it is not looked at any more")
				require.Empty(t, config.History.Changes(), "and it never was ill")
			})
		})
	}
}

func TestANewOneOfTheNameOfTheForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		w.sicken("a", health.DiskFailure)

		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		release := w.hang("a")
		monitor.Suspect("a")
		time.Sleep(20 * time.Millisecond)
		monitor.Forget("a")
		w.sicken("a", health.IOErrors)
		monitor.Suspect("a")
		time.Sleep(20 * time.Millisecond)

		release()
		synctest.Wait()
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
	})
}

func TestWhatAProbeReturns(t *testing.T) {
	t.Parallel()

	const message = "the last look at it failed"

	for name, test := range map[string]struct {
		err   error
		panic any
		want  []health.Entry
	}{
		"an error number": {err: fmt.Errorf("stat /x/0197: %w", unix.EIO), want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"), health.NewEntry(health.ProbeTimedOut, message+": input/output error"),
		}},
		"its deadline": {err: fmt.Errorf("stat: %w", context.DeadlineExceeded), want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"),
			health.NewEntry(health.ProbeTimedOut, "the last look at it did not finish in time"),
		}},
		"any other error": {err: errors.New("at 12:03 there were 7 of them"), want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"),
			health.NewEntry(health.ProbeTimedOut, message+"; the driver's log has more"),
		}},
		"a panic": {panic: "a defect", want: []health.Entry{
			health.NewEntry(health.IOErrors, "it is IOErrors"),
			health.NewEntry(health.ProbeTimedOut, message+" by a defect of the driver, whose log has more"),
		}},
		"that it can't tell": {err: health.ErrKeep, want: []health.Entry{health.NewEntry(health.IOErrors, "it is IOErrors")}},
		"that it is gone":    {err: fmt.Errorf("no image: %w", health.ErrGone)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a", "b")
				w.sicken("a", health.IOErrors)

				var logged bytes.Buffer

				config := w.config()
				config.Log = slog.New(slog.NewTextHandler(&logged, nil))
				monitor := health.New(config)
				relist(t, monitor)

				w.change(func() { w.errs["a"], w.panics["a"] = test.err, test.panic })
				relist(t, monitor)

				record, ok := monitor.Get("a")
				require.Equal(t, test.want != nil, ok)

				if ok {
					require.Equal(t, test.want, record.Entries)
				}

				if test.panic != nil {
					require.Contains(t, logged.String(), "a defect")
					require.Contains(t, logged.String(), "(*world).probe", "the stack")
				}

				// It is no worse than that: the next look tells.
				w.change(func() { w.errs["a"], w.panics["a"] = nil, nil })
				relist(t, monitor)
				require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))
			})
		})
	}
}

func TestAFailureIsLoggedOnceUntilItChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")

		var logged bytes.Buffer

		config := w.config()
		config.Log = slog.New(slog.NewTextHandler(&logged, nil))
		monitor := health.New(config)

		for _, err := range []error{unix.EIO, unix.EIO, unix.EIO, unix.ENODEV, unix.ENODEV} {
			w.change(func() { w.errs["a"] = err })
			relist(t, monitor)
		}

		require.Equal(t, 2, bytes.Count(logged.Bytes(), []byte("a look has failed")))
	})
}

func TestAnotherLookWhenTheProbeAsksForIt(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		err   error
		again time.Duration
		want  time.Duration
	}{
		"an observation":              {again: 7500 * time.Millisecond, want: 7500 * time.Millisecond},
		"one that can't tell":         {err: health.ErrKeep, want: 100 * time.Millisecond},
		"one that knows when it will": {err: health.ErrKeep, again: 3500 * time.Millisecond, want: 3500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a")
				monitor := health.New(w.config())
				w.change(func() { w.again["a"], w.errs["a"] = test.again, test.err })
				run(t, monitor)
				w.change(func() { w.again["a"], w.errs["a"] = 0, nil })
				w.sicken("a", health.IOErrors)

				time.Sleep(test.want - time.Millisecond)
				synctest.Wait()
				require.Equal(t, 1, w.count("a"))
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, 2, w.count("a"))
				require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))

				w.sicken("a")
				time.Sleep(2 * time.Second)
				synctest.Wait()

				now := w.count("a")

				time.Sleep(28 * time.Second)
				require.Equal(t, now, w.count("a"), "it was asked for once")
			})
		})
	}
}

func TestTheNewestObservationSaysWhenToLookAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		require.True(t, monitor.Set("a", health.Observation{Again: 5 * time.Second}, time.Now()), "want: Set takes the observation")
		time.Sleep(time.Second)
		require.False(t, monitor.Set("a", health.Observation{Again: time.Second}, time.Now().Add(-time.Hour)),
			"want: Set ignores the observation")
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, w.count("a"), "the older one says nothing")
		time.Sleep(3 * time.Second)
		require.Equal(t, 2, w.count("a"))

		require.True(t, monitor.Set("a", health.Observation{Again: 5 * time.Second}, time.Now()), "want: Set takes the observation")
		time.Sleep(time.Second)
		require.True(t, monitor.Set("a", health.Observation{}, time.Now()), "want: Set takes the observation")
		time.Sleep(10 * time.Second)
		require.Equal(t, 2, w.count("a"), "the newer one wants none")

		// So does a newer look.
		require.True(t, monitor.Set("a", health.Observation{Again: 5 * time.Second}, time.Now()), "want: Set takes the observation")
		relist(t, monitor)
		time.Sleep(10 * time.Second)
		require.Equal(t, 3, w.count("a"))
	})
}

func TestLookIsNow(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		prepare func(w *world) (release func())
		err     error
		want    []health.Reason
	}{
		"well": {func(*world) func() { return func() {} }, nil, []health.Reason{}},
		"sick": {
			func(w *world) func() { w.sicken("a", health.IOErrors); return func() {} }, nil, []health.Reason{health.IOErrors},
		},
		"hanging": {func(w *world) func() { return w.hang("a") }, nil, []health.Reason{health.ProbeTimedOut}},
		"gone": {
			func(w *world) func() { w.change(func() { w.errs["a"] = health.ErrGone }); return func() {} }, health.ErrGone, nil,
		},
		"not to be told": {
			func(w *world) func() { w.change(func() { w.errs["a"] = health.ErrKeep }); return func() {} }, nil, []health.Reason{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("a")
				monitor := health.New(w.config())
				relist(t, monitor)
				time.Sleep(time.Second)

				release := test.prepare(w)
				record, err := monitor.Look(t.Context(), "a")
				require.ErrorIs(t, err, test.err)

				if test.err == nil {
					require.Equal(t, test.want, reasons(t, monitor, "a"))
					require.Equal(t, record.Entries, monitor.All()[0].Entries)
				}

				release()
				time.Sleep(10 * time.Second)
				require.Equal(t, 2, w.count("a"), "it is no event: it is looked at once")
			})
		})
	}
}

// TestLookComesBeforeTheRelists asks again and again while all places are taken
// by a relist of many.
func TestLookComesBeforeTheRelists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(manyIDs()[:1000]...)
		config := w.config()
		config.Probe = func(ctx context.Context, id string) (health.Observation, error) {
			time.Sleep(10 * time.Millisecond)

			return w.probe(ctx, id)
		}

		monitor := health.New(config)
		relisted := make(chan error)

		go func() { relisted <- monitor.Relist(t.Context()) }()

		for range 10 {
			synctest.Wait()

			began := time.Now()
			_, err := monitor.Look(t.Context(), "a")
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), 20*time.Millisecond, "the clock is synctest's own")
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		_, err := monitor.Look(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, <-relisted)
	})
}

// TestAStormOfEventsIsBounded has ten thousand events a second for ten seconds.
func TestAStormOfEventsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(time.Second)

		for range 100_000 {
			monitor.Suspect("a")
			time.Sleep(100 * time.Microsecond)
		}

		// What happens last is seen soon all the same.
		w.sicken("a", health.IOErrors)
		monitor.Suspect("a")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(t, monitor, "a"))

		time.Sleep(5 * time.Second)
		require.InDelta(t, 100, w.count("a"), 15, "about ten a second")
		require.Equal(t, 1, w.count("b"))

		// After the storm nothing waits any more.
		w.sicken("a")
		monitor.Suspect("a")
		synctest.Wait()
		require.Empty(t, reasons(t, monitor, "a"))
	})
}

func TestALookAnswersTheEventsBeforeIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		monitor := health.New(w.config())
		run(t, monitor)
		time.Sleep(10 * time.Second)

		for range 3 {
			monitor.Suspect("a")
			time.Sleep(time.Millisecond)
		}

		require.Equal(t, 2, w.count("a"), "the next one is due after 5 ms")
		relist(t, monitor)
		require.Equal(t, 3, w.count("a"))
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, 3, w.count("a"), "the relist's look was it")
	})
}

// TestAStormIsForgottenWhenItIsOver has a subject that is remembered for another
// reason.
func TestAStormIsForgottenWhenItIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a")
		w.change(func() { w.again["a"] = 30 * time.Second })

		monitor := health.New(w.config())
		run(t, monitor)

		for range 1000 {
			monitor.Suspect("a")
			time.Sleep(time.Millisecond)
		}

		time.Sleep(10 * time.Second)

		looks := w.count("a")

		monitor.Suspect("a")
		time.Sleep(6 * time.Millisecond)
		monitor.Suspect("a")
		synctest.Wait()
		require.Equal(t, looks+2, w.count("a"), "after the shortest gap again")
	})
}

// TestHangingProbesAreBoundedInNumber has a whole pool of very many volumes hang.
func TestHangingProbesAreBoundedInNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ids := manyIDs()[:1500]
		w := newWorld(ids...)
		releases := []func(){}

		for _, id := range ids {
			releases = append(releases, w.hang(id))
		}

		monitor := health.New(w.config())
		relist(t, monitor)
		require.InDelta(t, 1000, w.most(""), 50)

		messages := map[string]int{}

		for _, record := range monitor.All() {
			require.Len(t, record.Entries, 1)
			require.Equal(t, health.ProbeTimedOut, record.Entries[0].Reason)

			messages[record.Entries[0].Message]++
		}

		require.Len(t, messages, 2, "some have hung, some were not looked at")
		require.Len(t, monitor.All(), len(ids))

		for _, release := range releases {
			release()
		}

		synctest.Wait()
		relist(t, monitor)
		require.Empty(t, monitor.Abnormal(""))
	})
}

func TestRunEndsWithoutWaitingForWhatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("quick", "hanging")
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
		w.sicken("quick", health.IOErrors)
		cancel()
		synctest.Wait()

		select {
		case <-ended:
			t.Fatal("a probe is still running")
		default:
		}

		quick()
		<-ended

		require.Empty(t, reasons(t, monitor, "quick"), "the end of the monitor is not the matter with it")

		looks := w.count("quick")

		monitor.Suspect("quick")
		require.Error(t, monitor.Relist(context.Background()), "Relist of a monitor that has ended")
		time.Sleep(time.Hour)
		require.Equal(t, looks, w.count("quick"))

		release()
	})
}

// TestAProbeThatHeedsItsContext is told of its deadline, and of the end.
func TestAProbeThatHeedsItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry, w := prometheus.NewRegistry(), newWorld("a")
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
		_, err := monitor.Look(t.Context(), "a")
		require.NoError(t, err)
		require.WithinDuration(t, began.Add(health.DefaultProbeTimeout), time.Now(), time.Millisecond)
		require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(t, monitor, "a"))
		synctest.Wait()
		require.InDelta(t, 1, values(t, registry, "touchstone_health_probes_timed_out_total")["node"], 0)
		require.InDelta(t, 0, values(t, registry, "touchstone_health_probe_errors_total")["node"], 0, "that is counted already")

		waiting = false
		_, err = monitor.Look(t.Context(), "a")
		require.NoError(t, err)
		require.Empty(t, reasons(t, monitor, "a"))

		waiting = true

		monitor.Suspect("a")
		synctest.Wait()
		cancel()
		<-ended
		require.Empty(t, reasons(t, monitor, "a"), "the end of the monitor is not the matter with it")
	})
}

func TestARelistEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b")
		monitor := health.New(w.config())
		require.NoError(t, monitor.Relist(t.Context()))

		release := w.hang("a")
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()

		time.AfterFunc(time.Second, cancel)
		w.change(func() { w.ids = []string{"a"} })
		require.ErrorIs(t, monitor.Relist(ctx), context.Canceled)
		require.Equal(t, time.Second, time.Since(began))

		_, ok := monitor.Get("b")
		require.True(t, ok, "half a relist forgets nothing")
		release()
	})
}

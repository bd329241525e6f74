package fsck_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
)

// checks are the checks that a tool was started for.
type checks struct {
	mu    sync.Mutex
	times map[string][]time.Time
}

func (c *checks) of(id string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.times[id]
}

// scheduled is a fixture with a record of its volume, whose checks are counted and then call check.
func scheduled(t *testing.T, period time.Duration, check func(id string)) (*fixture, *checks) {
	t.Helper()

	f, c := newFixture(t, period), &checks{times: map[string][]time.Time{}}
	f.tool = func(_ context.Context, command filesystem.Command) (filesystem.Result, error) {
		id, _, _ := strings.Cut(filepath.Base(command.Args[len(command.Args)-1]), ".")

		c.mu.Lock()
		c.times[id] = append(c.times[id], time.Now())
		c.mu.Unlock()

		if check != nil {
			check(id)
		}

		return filesystem.Result{}, nil
	}
	f.RecordFormatted(t.Context(), f.record())

	return f, c
}

// run runs the scheduled checks until the test's end, or that of the returned function.
func (f *fixture) run() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		f.Run(ctx)
	}()

	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	f.t.Cleanup(stop)
	synctest.Wait()

	return stop
}

func (f *fixture) setPeriod(id string, period time.Duration) {
	f.t.Helper()
	require.NoError(f.t, f.pool.SetMutable(id, volume.Mutable{volume.KeyCheckPeriod: period.String()}))
}

const day = 24 * time.Hour

func TestChecksAreMadeOncePerPeriod(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		period  time.Duration
		prepare func(f *fixture)
		want    int
	}{
		"the driver's period":      {day, func(*fixture) {}, 10},
		"the volume's period":      {day, func(f *fixture) { f.setPeriod(f.id, 2*day) }, 5},
		"no period":                {0, func(*fixture) {}, 0},
		"never, of the volume":     {day, func(f *fixture) { f.setPeriod(f.id, 0) }, 0},
		"longer than times can be": {200 * 365 * day, func(*fixture) {}, 0},
		"the pool does not respond": {day, func(f *fixture) {
			f.setPeriod(f.id, 2*day)
			f.node.unreachable = errors.New("it hangs")
		}, 0},
		"in use by a guest": {day, func(f *fixture) { f.node.guest = errors.New("a guest has it") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, made := scheduled(t, test.period, nil)
				test.prepare(f)
				f.run()

				// At the end no check is due: each is within a period, at a time by the volume's id.
				time.Sleep(10 * day)
				synctest.Wait()
				require.InDelta(t, test.want, len(made.of(f.id)), 0, "the number of checks in ten days")

				for i, at := range made.of(f.id) {
					if i > 0 {
						require.Equal(t, 10*day/time.Duration(test.want), at.Sub(made.of(f.id)[i-1]), "want: the period between two checks")
					}
				}

				record := f.Get(f.id)
				require.Equal(t, test.want > 0, record.How == fsck.HowOffline, "want: the record is of the scheduled check")
			})
		})
	}
}

// TestAChangeIsPlannedAtOnce changes the period, and removes volumes, while the next check is far away.
func TestAChangeIsPlannedAtOnce(t *testing.T) {
	t.Parallel()

	gone := func(f *fixture) { require.NoError(f.t, os.Remove(f.image())) }
	known := func(f *fixture) bool { return f.HasRecord(f.id) }

	for name, test := range map[string]struct {
		change  func(f *fixture)
		request func(f *fixture)
		known   bool
	}{
		"deleted":                {gone, func(f *fixture) { f.Changed(f.id) }, false},
		"deleted, by an event":   {gone, func(f *fixture) { f.ChangedImage(f.id) }, false},
		"deleted, of its pool":   {gone, func(f *fixture) { f.ChangedPool("second") }, false},
		"deleted, at a relist":   {gone, func(f *fixture) { f.ChangedPool("") }, false},
		"another pool's":         {gone, func(f *fixture) { f.ChangedPool("first") }, true},
		"another volume's event": {gone, func(f *fixture) { f.ChangedImage("another") }, true},
		"exists":                 {func(*fixture) {}, func(f *fixture) { f.Changed(f.id) }, true},
		"registered": {func(f *fixture) {
			gone(f)
			f.node.change(func() { f.node.registered = true })
		}, func(f *fixture) { f.Changed(f.id) }, true},
		"staged": {func(f *fixture) {
			gone(f)
			f.node.change(func() { f.node.staged = f.record() })
		}, func(f *fixture) { f.Changed(f.id) }, true},
		"the pool does not respond": {func(f *fixture) {
			gone(f)
			f.node.change(func() { f.node.unreachable = errors.New("it hangs") })
		}, func(f *fixture) { f.Changed(f.id) }, true},
		"the pool has failed": {func(f *fixture) {
			require.NoError(f.t, f.pools.Fail("second", errors.New("broken")))
		}, func(f *fixture) { f.Changed(f.id) }, true},
		"no longer configured": {func(f *fixture) {
			moved := *f.Get(f.id)
			moved.Pool = "third"
			require.NoError(f.t, f.records.PutLazily(&moved))
		}, func(f *fixture) { f.Changed(f.id) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, _ := scheduled(t, 365*day, nil)
				f.run()
				f.node.takeProbed()
				test.change(f)
				test.request(f)
				synctest.Wait()
				require.Equal(t, test.known, known(f), "want: the record goes with the volume, and not before")
				require.Equal(t, !test.known, len(f.node.takeProbed()) == 1, "want: a volume without a record is probed")
			})
		})
	}
}

func TestAShorterPeriodIsPlannedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, made := scheduled(t, 0, nil)
		f.run()
		time.Sleep(10 * day)
		require.Empty(t, made.of(f.id), "want: without a period there is no check")

		f.setPeriod(f.id, day)
		f.Changed(f.id)
		time.Sleep(2 * day)
		synctest.Wait()
		require.NotEmpty(t, made.of(f.id), "want: the checks begin with the period")

		// Another machine changes the period: no event reports that.
		f.setPeriod(f.id, 0)

		before := len(made.of(f.id))

		time.Sleep(5 * day)
		synctest.Wait()
		require.Len(t, made.of(f.id), before, "want: the check is not made when it comes due")
	})
}

// TestChecksLeaveTimeForOthers has two checks be due that each take a minute.
func TestChecksLeaveTimeForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, made := scheduled(t, time.Second, func(string) { time.Sleep(time.Minute) })
		other := f.newVolume()
		record := f.record()
		record.VolumeID = other
		f.RecordFormatted(t.Context(), record)
		f.run()
		time.Sleep(time.Hour)

		first, second := made.of(f.id), made.of(other)
		require.InDelta(t, 15, len(first), 1, "the number of checks in an hour, of one volume")
		require.InDelta(t, 15, len(second), 1, "the number of checks in an hour, of the other one")

		distance := first[1].Sub(second[1]).Abs()
		require.GreaterOrEqual(t, distance, 2*time.Minute, "want: after a check a pause as long as it")
		require.Less(t, distance, 2*time.Minute+5*time.Second, "want: the next check follows the pause")
	})
}

// TestHangingCheckDelaysOthersForALimitedTime: it hangs for an hour.
func TestHangingCheckDelaysOthersForALimitedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hanging := make(chan struct{})

		var hangs string

		f, made := scheduled(t, time.Second, func(id string) {
			if id == hangs {
				<-hanging
			}
		})
		hangs = f.id
		other := f.newVolume()
		record := f.record()
		record.VolumeID = other
		f.RecordFormatted(t.Context(), record)

		stop := f.run()

		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, made.of(f.id), 1, "want: a check that hangs is not repeated")
		require.Greater(t, len(made.of(other)), 1000, "want: the other volume is checked each second again")

		close(hanging)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Greater(t, len(made.of(f.id)), 1, "want: the check is repeated when it has returned")
		stop()
	})
}

// TestRunAwaitsTheCheck for a limited time: it has to thaw the filesystem.
func TestRunAwaitsTheCheck(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ takes, want time.Duration }{
		"that ends": {time.Minute, time.Minute}, "that hangs": {time.Hour, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				checking := make(chan struct{}, 1)
				f, _ := scheduled(t, time.Second, func(string) {
					checking <- struct{}{}

					time.Sleep(test.takes)
				})
				stop := f.run()

				<-checking

				began := time.Now()

				stop()
				require.Equal(t, test.want, time.Since(began))
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestPanicOfACheckIsContained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, made := scheduled(t, time.Second, func(string) { panic("a defect") })
		f.run()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.InDelta(t, 10, len(made.of(f.id)), 1, "want: the next checks follow")
	})
}

// TestFutureCleanCheckIsCorrected: the time of the last clean check is far in the future.
func TestFutureCleanCheckIsCorrected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, made := scheduled(t, day, func(string) {})
		ahead := *f.Get(f.id)
		ahead.At, ahead.Since, ahead.CleanAt = time.Now().Add(900*day), time.Now().Add(900*day), time.Now().Add(900*day)
		require.NoError(t, f.records.PutLazily(&ahead))

		f.node.guest = errors.New("a guest has it")
		f.run()
		require.True(t, time.Now().Add(-day).Equal(f.Get(f.id).CleanAt), "want: the clean check counts as a period ago, not at %s", f.Get(f.id).CleanAt)

		f.node.change(func() { f.node.guest = nil })
		time.Sleep(2 * day)
		synctest.Wait()
		require.NotEmpty(t, made.of(f.id), "want: the check is due within the next period")

		clean := f.Get(f.id)
		f.Changed(f.id)
		synctest.Wait()
		require.Same(t, clean, f.Get(f.id), "want: a time in the past stays")
	})
}

// TestAVolumeThatIsDeletedDuringItsCheckIsForgotten once the check has ended.
func TestAVolumeThatIsDeletedDuringItsCheckIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		image := ""
		f, made := scheduled(t, day, func(string) { require.NoError(t, os.Remove(image)) })
		image = f.image()
		f.run()
		time.Sleep(day)
		synctest.Wait()
		require.Len(t, made.of(f.id), 1, "want: the volume is checked once")
		require.False(t, f.HasRecord(f.id), "want: its record goes with it")
	})
}

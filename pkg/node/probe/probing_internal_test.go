package probe

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// during runs do during an operation on the volume.
func (f *fixture) during(do func()) {
	f.t.Helper()

	_, err := operation.Do(f.t.Context(), f.config.Operations, operation.Call{Key: OperationKey(f.id), Method: "test"},
		func(context.Context) (struct{}, error) {
			do()

			return struct{}{}, nil
		})
	require.NoError(f.t, err)
}

// raw returns the volume as a raw-block one, whose device is missing.
func (f *fixture) raw() *staged.Volume {
	used := f.image()
	used.Capability.Block = true

	return used
}

// TestProbesOfVolumesWithoutAMount need no device or mount to be made.
func TestProbesOfVolumesWithoutAMount(t *testing.T) {
	t.Parallel()

	image := func(f *fixture) { require.NoError(f.t, f.first.Images.Create(f.id, 1<<20, false)) }
	directory := func(f *fixture) *staged.Volume {
		used := f.image()
		used.Parameters.Backing, used.Ephemeral = volume.BackingDirectory, true

		return used
	}

	for name, test := range map[string]struct {
		volume  func(f *fixture) *staged.Volume
		prepare func(f *fixture)
		err     error
		want    []health.Reason
	}{
		"raw device":         {(*fixture).raw, image, nil, []health.Reason{health.DeviceMissing}},
		"raw, and its image": {(*fixture).raw, func(*fixture) {}, nil, []health.Reason{health.DeviceMissing, health.BackingFileMissing}},
		"raw, in no pool":    {(*fixture).raw, func(f *fixture) { f.node.pool = nil }, pool.ErrUnknown, nil},
		"not revoked":        {(*fixture).raw, func(f *fixture) { f.node.revoking = os.ErrPermission }, os.ErrPermission, nil},
		"written": {directory, func(f *fixture) {
			require.NoError(f.t, f.first.Directories.Create(f.id, 0, false))
			f.observations.Attach(f.id, Attachment{Number: 1, Sequence: 1}, 0, false)
			f.observations.recordWrite(f.id, time.Now().Add(time.Second))
		}, nil, []health.Reason{health.FilesystemErrors}},
		"inline directory":    {directory, func(f *fixture) { require.NoError(f.t, f.first.Directories.Create(f.id, 0, false)) }, nil, nil},
		"no inline directory": {directory, func(*fixture) {}, nil, []health.Reason{health.VolumeNotFound}},
		"unstaged meanwhile":  {(*fixture).raw, func(f *fixture) { f.node.meanwhile = func() { delete(f.node.inUse, f.id) } }, health.ErrGone, nil},
		"removed meanwhile": {func(f *fixture) *staged.Volume {
			used := f.raw()
			used.Ephemeral = true

			return used
		}, func(f *fixture) { f.node.meanwhile = func() { delete(f.node.inUse, f.id) } }, health.ErrGone, nil},
		"published meanwhile":  {(*fixture).raw, func(f *fixture) { f.node.meanwhile = func() { f.node.inUse[f.id] = f.raw() } }, health.ErrKeep, nil},
		"with a damaged check": {(*fixture).raw, func(f *fixture) { image(f); f.checked(fsck.Result{Verdict: fsck.VerdictDamaged}) }, nil, []health.Reason{health.DeviceMissing, health.FilesystemCorrupted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			f.node.pool = f.first
			used := test.volume(f)
			f.node.inUse[f.id] = used
			test.prepare(f)
			f.observations.SetUsage(f.id, health.Usage{Bytes: health.Amount{Total: 7}})

			began := time.Now()
			observed, err := f.probe(t.Context(), f.id)
			require.ErrorIs(t, err, test.err)
			require.Equal(t, errors.Is(test.err, health.ErrGone), f.observations.LastUsage(f.id).Bytes.Total == 0, "want: nothing is remembered of what is gone")
			require.ElementsMatch(t, test.want, reasons(observed.Entries))
			require.Equal(t, test.err == nil, !f.observations.last(f.id).at.Before(began), "want: only a whole probe is an observation")
			require.Equal(t, errors.Is(test.err, health.ErrKeep), observed.Again == retryAfterChange, "want: a volume that changes is probed again soon")

			if name == "with a damaged check" {
				require.Equal(t, time.Hour, f.observations.CheckPeriod(f.id), "want: the period of a volume that was checked")
			}
		})
	}
}

// TestProbesDuringAnOperation keep the last observation where the operation may cause the finding.
func TestProbesDuringAnOperation(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.node.pool, f.node.inUse[f.id] = f.first, f.raw()
	f.during(func() {
		observed, err := f.probe(t.Context(), f.id)
		require.ErrorIs(t, err, health.ErrKeep)
		require.Equal(t, retryAfterChange, observed.Again)

		f.node.pool = nil
		_, err = f.probe(t.Context(), f.id)
		require.ErrorIs(t, err, health.ErrKeep, "want: the operation may cause the failure, too")
	})

	inline := f.image()
	inline.Parameters.Backing, inline.Ephemeral = volume.BackingDirectory, true
	require.NoError(t, f.first.Directories.Create(f.id, 0, false))
	f.node.pool, f.node.inUse[f.id] = f.first, inline
	f.during(func() {
		observed, err := f.probe(t.Context(), f.id)
		require.NoError(t, err, "want: the operation has changed nothing that was observed")
		require.Equal(t, retryWhileBusy, observed.Again)
	})

	observed, err := f.probe(t.Context(), f.id)
	require.NoError(t, err)
	require.Zero(t, observed.Again, "want: without an operation there is no early probe")
}

// TestProbesWithAnOperationMeanwhile, which begins or ends during the probe.
func TestProbesWithAnOperationMeanwhile(t *testing.T) {
	t.Parallel()

	for _, begins := range []bool{true, false} {
		f := newFixture(t)
		f.node.pool, f.node.inUse[f.id] = f.first, f.raw()
		began, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		begin := func() {
			go func() {
				defer close(ended)

				f.during(func() {
					close(began)
					<-end
				})
			}()
			<-began
		}
		finish := func() {
			close(end)
			<-ended
		}

		if begins {
			f.node.meanwhile = begin
		} else {
			f.node.meanwhile = finish

			begin()
		}

		_, err := f.probe(t.Context(), f.id)
		require.ErrorIs(t, err, health.ErrKeep, "want: the operation may cause the finding, begins meanwhile: %t", begins)

		if begins {
			finish()
		}
	}
}

// unstaging has no volumes any more once each was asked for twice.
type unstaging struct {
	*node

	asked int
}

func (u *unstaging) Get(id string) (*staged.Volume, staged.Record, bool) {
	u.asked++
	if u.asked > 2 {
		return nil, nil, false
	}

	return u.node.Get(id)
}

// TestAnObservationOfAnUnstagedVolumeIsForgotten, also where that happens while it is stored.
func TestAnObservationOfAnUnstagedVolumeIsForgotten(t *testing.T) {
	t.Parallel()

	f := newFixture(t, func(c *Config) { c.Volumes = &unstaging{node: c.Volumes.(*node)} })
	f.node.pool, f.node.inUse[f.id] = f.first, f.raw()
	_, err := f.probe(t.Context(), f.id)
	require.NoError(t, err)
	require.Zero(t, f.observations.last(f.id), "want: nothing is remembered of it")
}

// TestProbesOfAPoolAreLimited, of a volume whose files are all in the pool.
func TestProbesOfAPoolAreLimited(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	used := f.image()
	used.Parameters.Backing, used.Ephemeral = volume.BackingDirectory, true
	f.node.pool, f.node.inUse[f.id] = f.first, used

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	for range pool.MaxInPool {
		_, err := f.pools.Acquire(t.Context(), "first")
		require.NoError(t, err)
	}

	for _, each := range []*staged.Volume{used, f.raw(), f.image()} {
		f.node.inUse[f.id] = each

		s := f.state()
		s.pool = f.first

		if each.ExposesRawDevice() {
			require.ErrorIs(t, s.probeRawDevices(ended), pool.ErrUnreachable)
		}

		if each.Parameters.Backing.HasFilesystem() {
			require.ErrorIs(t, s.probeBacking(ended), pool.ErrUnreachable)
		} else {
			require.ErrorIs(t, s.run(ended), pool.ErrUnreachable)
		}
	}
}

// run runs the monitor until the end of the test.
func (f *fixture) run() {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		f.Monitor().Run(ctx)
	}()

	f.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func TestHealthOfAVolume(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		prepare func(f *fixture)
		busy    bool
		code    codes.Code
		want    []health.Reason
		isNil   bool
	}{
		"in use": {prepare: func(f *fixture) { f.node.inUse[f.id] = f.raw() }, want: []health.Reason{health.DeviceMissing, health.BackingFileMissing}},
		"in use, and not to be probed": {
			prepare: func(f *fixture) { f.node.inUse[f.id], f.node.pool = f.raw(), nil }, want: []health.Reason{health.ProbeTimedOut},
		},
		"unknown": {prepare: func(*fixture) {}, code: codes.NotFound},
		"stored":  {prepare: func(f *fixture) { require.NoError(f.t, f.first.Images.Create(f.id, 1<<20, false)) }},
		"deleted, and damaged": {
			prepare: func(f *fixture) { f.checked(fsck.Result{Verdict: fsck.VerdictDamaged}) }, code: codes.NotFound,
		},
		"being staged": {prepare: func(f *fixture) { f.node.inUse[f.id] = f.raw() }, busy: true, isNil: true},
		"being staged again": {prepare: func(f *fixture) {
			require.NoError(f.t, f.first.Images.Create(f.id, 1<<20, false))
			f.StagingFailed(f.image(), errors.New("broken"))
		}, busy: true, want: []health.Reason{health.StagingFailed}},
		"being staged again, and unknown": {prepare: func(f *fixture) {
			other := f.image()
			other.Parameters.Pool = "third"
			f.StagingFailed(other, errors.New("broken"))
			require.NoError(f.t, f.config.Pools.Fail("first", errors.New("broken")))
		}, busy: true, code: codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			f.node.pool = f.first
			test.prepare(f)

			var (
				record *health.Record
				err    error
			)

			if test.busy {
				f.during(func() { record, err = f.Health(t.Context(), f.id) })
			} else {
				f.run()

				record, err = f.Health(t.Context(), f.id)
			}

			rpccode.Require(t, err, test.code)

			if err == nil {
				require.Equal(t, test.isNil, record == nil, "want: a volume that is being staged is healthy")
			}

			if record != nil {
				require.ElementsMatch(t, test.want, reasons(record.Entries))
			}
		})
	}
}

// TestHealthDoesNotWaitForAHangingProbe, but for ResponseTimeout, and has the last record then.
func TestHealthDoesNotWaitForAHangingProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		hang := make(chan struct{})
		f.node.meanwhile = func() { <-hang }
		f.node.inUse[f.id] = f.raw()
		f.run()
		t.Cleanup(sync.OnceFunc(func() { close(hang) }))

		ended, cancel := context.WithCancel(t.Context())
		cancel()

		_, err := f.Health(ended, f.id)
		require.ErrorIs(t, err, context.Canceled)

		began := time.Now()
		record, err := f.Health(t.Context(), f.id)
		require.NoError(t, err)
		require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(record.Entries))
		require.Equal(t, ResponseTimeout, time.Since(began), "want: it waits for the probe until then")

		entry := health.NewEntry(health.IOErrors, "errors")
		require.True(t, f.monitor.Set(f.id, health.Observation{Entries: []health.Entry{entry}}, time.Now()), "want: the record is new")
		time.Sleep(time.Nanosecond) // of the bubble: the record is older than the next probe

		record, err = f.ProbeNow(t.Context(), f.id)
		require.NoError(t, err)
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(record.Entries), "want: the last record")

		began = time.Now()
		record, err = f.Health(t.Context(), f.id)
		require.NoError(t, err)
		require.Equal(t, []health.Reason{health.IOErrors}, reasons(record.Entries))
		require.Zero(t, time.Since(began), "want: it answers from the record")

		_, err = f.ProbeNow(ended, f.id)
		require.ErrorIs(t, err, context.Canceled)
	})
}

package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestVolumesWithAReasonAreProbed(t *testing.T) {
	t.Parallel()

	ioErrorAt := func(f *fixture, at time.Time) {
		f.observations.set(f.id, attached(1))
		f.observations.recordIOError(health.Event{Device: unix.Mkdev(loop.Major, 3), At: at})
	}

	for name, test := range map[string]struct {
		prepare func(f *fixture)
		want    bool
		pool    string
	}{
		"unknown":        {func(*fixture) {}, false, ""},
		"in use":         {func(f *fixture) { f.node.inUse[f.id] = f.image() }, true, "first"},
		"clean":          {func(f *fixture) { f.checked(fsck.Result{}) }, false, "first"},
		"damaged":        {func(f *fixture) { f.checked(fsck.Result{Verdict: fsck.VerdictDamaged}) }, true, "first"},
		"suspected":      {func(f *fixture) { f.checked(fsck.Result{Suspicion: suspected()}) }, true, "first"},
		"not staged":     {func(f *fixture) { f.StagingFailed(f.image(), errors.New("broken")) }, true, ""},
		"mounted still":  {func(f *fixture) { f.MountBusy(f.image(), "/target") }, true, ""},
		"attached still": {func(f *fixture) { f.DeviceBusy(f.image(), 7, 1) }, true, ""},
		"detached": {func(f *fixture) {
			f.busy.add(f.id, busyVolume{released: true})
		}, false, ""},
		"I/O error":                {func(f *fixture) { ioErrorAt(f, time.Now()) }, true, ""},
		"I/O error that is over":   {func(f *fixture) { ioErrorAt(f, time.Now().Add(-time.Minute)) }, false, ""},
		"I/O error that ends soon": {func(f *fixture) { ioErrorAt(f, time.Now().Add(-50*time.Second)) }, true, ""},
		"all of it": {func(f *fixture) {
			f.node.inUse[f.id] = f.image()
			f.checked(fsck.Result{Verdict: fsck.VerdictDamaged})
			f.MountBusy(f.image(), "/target")
			ioErrorAt(f, time.Now())
		}, true, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			test.prepare(f)

			view, ok := f.view(f.id)
			require.Equal(t, test.want, ok, "want: there is a reason to probe the volume")
			require.Equal(t, test.pool, view.poolName())

			want := []string(nil)
			if test.want {
				want = []string{f.id}
			}

			require.ElementsMatch(t, want, f.relist(), "want: a relist has each volume once")

			// A probe of what there is no reason for drops what is remembered.
			f.observations.SetUsage(f.id, health.Usage{Bytes: health.Amount{Total: 7}})
			f.forgetUnneeded(f.id)
			require.Equal(t, test.want, f.observations.LastUsage(f.id).Bytes.Total == 7, "want: only what is needed is remembered")
		})
	}
}

func TestUnexpectedFailuresAreRemembered(t *testing.T) {
	t.Parallel()

	for code, want := range map[codes.Code]bool{
		codes.InvalidArgument: false, codes.AlreadyExists: false, codes.Aborted: false, codes.Canceled: false,
		codes.DeadlineExceeded: false, codes.Unavailable: false,
		codes.Internal: true, codes.FailedPrecondition: true, codes.NotFound: true,
	} {
		f := newFixture(t)
		f.StagingFailed(f.image(), rpc.Errorf(code, "broken"))

		_, remembered := f.failures.get(f.id)
		require.Equal(t, want, remembered, "want: a failure with the code %s is remembered if it is of the volume", code)
	}
}

func TestAnEventConcernsTheVolumesOfItsDevice(t *testing.T) {
	t.Parallel()

	device := unix.Mkdev(loop.Major, 3)

	for name, test := range map[string]struct {
		event health.Event
		want  bool
	}{
		"I/O error":                      {health.Event{Kind: health.IOError, Device: device}, true},
		"I/O error of another device":    {health.Event{Kind: health.IOError, Device: device + 1}, false},
		"device":                         {health.Event{Kind: health.DeviceChanged, Device: device}, true},
		"shutdown":                       {health.Event{Kind: health.FilesystemShutdown, Device: device}, true},
		"error of its filesystem":        {health.Event{Kind: health.FilesystemError, Filesystem: [2]int32{1, 2}}, true},
		"error of another filesystem":    {health.Event{Kind: health.FilesystemError, Filesystem: [2]int32{1, 3}}, false},
		"mounts":                         {health.Event{Kind: health.MountsChanged}, true},
		"file":                           {health.Event{Kind: health.FileChanged, Path: "/pool/%s.img"}, true},
		"directory":                      {health.Event{Kind: health.FileChanged, Path: "/pool/%s"}, true},
		"another file":                   {health.Event{Kind: health.FileChanged, Path: "/pool/another.img"}, false},
		"written":                        {health.Event{Kind: health.FileWritten, Path: "/pool/%s.img"}, true},
		"another file that was written":  {health.Event{Kind: health.FileWritten, Path: "/pool/another.img"}, false},
		"lost, which the monitor serves": {health.Event{Kind: health.Lost}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			f.node.inUse[f.id] = f.image()
			f.observations.set(f.id, observation{
				attached: &Attachment{Number: 3, Sequence: 1}, filesystem: [2]int32{1, 2}, mounts: map[string]observedMount{"/staged": {}},
			})

			test.event.At = time.Now()
			if directory, name := filepath.Split(test.event.Path); name != "" {
				test.event.Path = directory + map[string]string{"%s.img": f.id + ".img", "%s": f.id}[name]
			}

			var want []string
			if test.want {
				want = []string{f.id}
			}

			require.Equal(t, want, f.volumesAffectedBy(test.event))
			require.Equal(t, name == "I/O error", !f.observations.last(f.id).ioErrorAt.IsZero(), "want: the I/O error is remembered")
			require.Equal(t, name == "written", len(f.observations.takeUnexplainedWrites(f.id)) == 1, "want: the write is remembered")
		})
	}
}

func TestWritesOfAnOperationAreNotForeign(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.node.inUse[f.id] = f.image()
	f.observations.set(f.id, attached(1))

	_, err := operation.Do(t.Context(), f.config.Operations, operation.Call{Key: OperationKey(f.id), Method: "grow"},
		func(context.Context) (struct{}, error) {
			require.Equal(t, []string{f.id}, f.volumesAffectedBy(health.Event{Kind: health.FileWritten, Path: "/" + f.id + ".img", At: time.Now()}))
			f.forgetUnneeded(f.id)

			return struct{}{}, nil
		})
	require.NoError(t, err)
	require.Empty(t, f.observations.takeUnexplainedWrites(f.id), "want: the operation's write needs no explanation")
}

func TestACheckedVolumeIsReported(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.Empty(t, f.Reports(), "want: without a volume the reports are empty")

	f.checked(fsck.Result{})
	f.observations.Attach(f.id, Attachment{Number: 3, deviceBytes: 1 << 20}, 1<<20, false)

	found := f.Reports()
	require.Len(t, found, 1, "want: a volume that was checked is reported")
	require.Equal(t, health.VolumeReport{
		ID: f.id, Pool: "first", FSType: filesystem.Ext4, Backing: volume.BackingImage, CapacityBytes: 1 << 20,
		Conditions: []health.ConditionReport{}, Check: f.config.Checker.Report(f.config.Checker.Get(f.id)),
	}, found[0])

	used := f.image()
	used.Parameters.Pool, used.Capability.FSType = "second", filesystem.XFS
	used.Publications = []staged.Publication{{TargetPath: "/one"}, {TargetPath: "/two"}}
	f.node.inUse[f.id] = used

	measured, probed := health.Usage{Bytes: health.Amount{Total: 7}}, &health.Usage{Bytes: health.Amount{Total: 8}}
	f.observations.SetUsage(f.id, measured)

	found = f.Reports()
	require.Len(t, found, 1, "want: a volume is reported once")
	require.Equal(t, "second", found[0].Pool)
	require.Equal(t, filesystem.XFS, found[0].FSType)
	require.Equal(t, "/staged", found[0].Staged)
	require.Equal(t, []string{"/one", "/two"}, found[0].Published)
	require.Empty(t, found[0].Persistent, "want: no target is mounted by each start")
	require.Equal(t, "SINGLE_NODE_WRITER", found[0].AccessMode)

	used.Persistent = []staged.Publication{{TargetPath: "/two"}, {TargetPath: "/three", ReadOnly: true}}
	used.Capability.MountFlags = []string{"noatime"}
	found = f.Reports()
	require.Equal(t, []string{"/three"}, found[0].ReadOnly)
	require.Equal(t, 1, found[0].MountFlags, "want: the number of the mount flags, not the flags")
	require.Equal(t, []string{"/two", "/three"}, found[0].Persistent)
	require.Equal(t, []string{"/one", "/two", "/three"}, found[0].Published, "want: each target once")

	used.Persistent = nil
	found = f.Reports()
	require.Equal(t, &measured, found[0].Usage)

	entry := health.NewEntry(health.IOErrors, "errors")
	require.True(t, f.monitor.Set(f.id, health.Observation{Entries: []health.Entry{entry}}, time.Now()), "want: the record is new")

	found = f.Reports()
	require.Equal(t, entry, found[0].Conditions[0].Entry)
	require.Equal(t, &measured, found[0].Usage, "want: a probe that measured nothing replaces nothing")

	require.True(t, f.monitor.Set(f.id, health.Observation{Usage: probed}, time.Now()), "want: the record is newer")
	require.Equal(t, probed, f.Reports()[0].Usage)

	measured.At = time.Now()
	f.observations.SetUsage(f.id, measured)
	require.Equal(t, &measured, f.Reports()[0].Usage, "want: the newer measurement is reported")

	used.Capability.Block, f.node.inUse["another"] = true, used
	require.NoError(t, f.records.PutLazily(&fsck.Result{
		VolumeID: "another", Pool: "first", FSType: filesystem.Ext4, Verdict: fsck.VerdictClean, How: fsck.HowStage,
	}))

	found = f.Reports()
	require.Len(t, found, 2, "want: each volume is reported once")
	require.Equal(t, []string{f.id, "another"}, []string{found[0].ID, found[1].ID})
	require.Equal(t, filesystem.Ext4, found[0].FSType, "want: a raw device has the filesystem that was checked, if any")
}

func TestHealthOfVolumesThatAreNotInUse(t *testing.T) {
	t.Parallel()

	const size = 1 << 20

	registered := func(backing volume.Backing, capacity int64) func(*Config) {
		return func(c *Config) {
			c.Registered = func(string) (volume.Registered, bool) {
				return volume.Registered{Pool: "first", Backing: backing, CapacityBytes: capacity}, true
			}
		}
	}
	image := func(f *fixture) { require.NoError(f.t, f.first.Images.Create(f.id, size, false)) }
	formatted := func(f *fixture) {
		image(f)

		output, err := child.Command(f.t, "mkfs.ext4", "-q", "-F", "-b", "1024", f.path()).CombinedOutput()
		require.NoError(f.t, err, string(output))
	}
	unregistered := func(c *Config) {
		c.Registered = func(string) (volume.Registered, bool) { return volume.Registered{}, false }
	}
	deletedMeanwhile := func(c *Config) {
		var read atomic.Bool

		c.Registered = func(string) (volume.Registered, bool) {
			if read.Swap(true) {
				return volume.Registered{}, false
			}

			return volume.Registered{Pool: "first", Backing: volume.BackingDirectory}, true
		}
	}
	fails := func(f *fixture) { require.NoError(f.t, f.config.Pools.Fail("first", errors.New("broken"))) }

	for name, test := range map[string]struct {
		option  func(*Config)
		prepare func(f *fixture)
		code    codes.Code
		want    []health.Reason
	}{
		"an image":           {nil, image, codes.OK, nil},
		"a directory":        {nil, func(f *fixture) { require.NoError(f.t, f.second.Directories.Create(f.id, 0, false)) }, codes.OK, nil},
		"in the second pool": {nil, func(f *fixture) { require.NoError(f.t, f.second.Images.Create(f.id, size, false)) }, codes.OK, nil},
		"unknown":            {nil, func(*fixture) {}, codes.NotFound, nil},
		"no id":              {nil, func(f *fixture) { f.id = "another"; require.NoError(f.t, os.WriteFile(f.path(), nil, 0o600)) }, codes.NotFound, nil},
		"not registered":     {unregistered, func(*fixture) {}, codes.NotFound, nil},
		"registered":         {registered(volume.BackingImage, size), image, codes.OK, nil},
		"registered directory": {registered(volume.BackingDirectory, size), func(f *fixture) {
			require.NoError(f.t, f.first.Directories.Create(f.id, 0, false))
		}, codes.OK, nil},
		"too short":              {registered(volume.BackingImage, size+1), image, codes.OK, []health.Reason{health.BackingFileTruncated}},
		"missing":                {registered(volume.BackingImage, size), func(*fixture) {}, codes.OK, []health.Reason{health.BackingFileMissing}},
		"missing directory":      {registered(volume.BackingDirectory, size), func(*fixture) {}, codes.OK, []health.Reason{health.VolumeNotFound}},
		"deleted meanwhile":      {deletedMeanwhile, func(*fixture) {}, codes.NotFound, nil},
		"in another pool":        {registered(volume.BackingImage, size), func(f *fixture) { require.NoError(f.t, f.second.Images.Create(f.id, size, false)) }, codes.OK, []health.Reason{health.BackingFileMissing}},
		"unknown, a pool failed": {nil, fails, codes.Unavailable, nil},
		"known, its pool failed": {registered(volume.BackingImage, size), fails, codes.OK, []health.Reason{health.ProbeTimedOut}},
		"checked, a pool failed": {nil, func(f *fixture) { f.checked(fsck.Result{}); fails(f) }, codes.OK, []health.Reason{health.ProbeTimedOut}},
		"found, though a pool failed": {nil, func(f *fixture) {
			require.NoError(f.t, f.second.Images.Create(f.id, size, false))
			fails(f)
		}, codes.OK, nil},
		"suspected": {nil, func(f *fixture) { image(f); f.checked(fsck.Result{Suspicion: suspected()}) }, codes.OK, []health.Reason{health.FilesystemErrors}},
		"damaged, and suspected": {nil, func(f *fixture) {
			image(f)
			f.checked(fsck.Result{Verdict: fsck.VerdictDamaged, Suspicion: suspected()})
		}, codes.OK, []health.Reason{health.FilesystemCorrupted}},
		"not checked for long": {nil, func(f *fixture) {
			image(f)
			f.checked(fsck.Result{CleanAt: time.Now().Add(-3 * time.Hour)})
		}, codes.OK, []health.Reason{health.CheckOverdue}},
		"a whole image":     {nil, func(f *fixture) { formatted(f); f.checked(fsck.Result{}) }, codes.OK, nil},
		"a blank image":     {nil, func(f *fixture) { image(f); f.checked(fsck.Result{}) }, codes.OK, nil},
		"a truncated image": {nil, func(f *fixture) { formatted(f); f.checked(fsck.Result{}); f.truncate(size - 1) }, codes.OK, []health.Reason{health.BackingFileTruncated}},
		"truncated, but used by another": {nil, func(f *fixture) {
			formatted(f)
			f.checked(fsck.Result{})
			f.truncate(size - 1)
			f.lock()
		}, codes.OK, nil},
		"truncated, and never staged": {nil, func(f *fixture) { formatted(f); f.truncate(size - 1) }, codes.OK, nil},
		"truncated, so not staged": {nil, func(f *fixture) {
			formatted(f)
			f.truncate(size - 1)
			f.StagingFailed(f.image(), filesystem.ErrTruncated)
		}, codes.OK, []health.Reason{health.BackingFileTruncated}},
		"missing, so not staged": {nil, func(f *fixture) { f.StagingFailed(f.image(), pool.ErrMissing) }, codes.OK, []health.Reason{health.BackingFileMissing}},
		"of no pool, so not staged": {nil, func(f *fixture) {
			other := f.image()
			other.Parameters.Pool = "third"
			f.StagingFailed(other, pool.ErrMissing)
		}, codes.NotFound, nil},
		"raw, and not staged": {nil, func(f *fixture) {
			formatted(f)
			f.truncate(size - 1)
			raw := f.image()
			raw.Capability.Block = true
			f.StagingFailed(raw, errors.New("broken"))
		}, codes.OK, []health.Reason{health.StagingFailed}},
		"injected": {func(c *Config) {
			c.Monitoring.Health.Inject = func(view, _ string) []health.Entry { return []health.Entry{health.NewEntry(health.IOErrors, view)} }
		}, image, codes.OK, []health.Reason{health.IOErrors}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if test.option == nil {
				test.option = func(*Config) {}
			}

			f := newFixture(t, test.option)
			test.prepare(f)

			record, err := f.healthNotInUse(t.Context(), f.id)
			rpccode.Require(t, err, test.code)

			if err == nil {
				require.ElementsMatch(t, test.want, reasons(record.Entries))
			}
		})
	}
}

func (f *fixture) path() string { return f.first.ObjectPath(f.image().Object()) }

func (f *fixture) truncate(size int64) {
	f.t.Helper()
	require.NoError(f.t, os.Truncate(f.path(), size))
}

// lock locks the image as an attachment does.
func (f *fixture) lock() {
	f.t.Helper()

	file, err := os.Open(f.path())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { file.Close() })
	require.NoError(f.t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
}

func TestAVolumeIsFoundInAnyPool(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	stored := func() (bool, error) { return f.IsStored(t.Context(), f.id) }

	found, err := stored()
	require.NoError(t, err)
	require.False(t, found, "want: no pool has the volume")

	require.NoError(t, f.second.Images.Create(f.id, 1<<20, false))
	found, err = stored()
	require.NoError(t, err)
	require.True(t, found, "want: the second pool has the volume")

	f.node.unreachable = pool.ErrUnreachable
	_, err = stored()
	require.ErrorIs(t, err, pool.ErrUnreachable, "want: what is in a pool that is not reachable is unknown")

	f.node.unreachable = nil

	require.NoError(t, f.config.Pools.Fail("second", errors.New("broken")))
	_, err = stored()
	require.ErrorIs(t, err, pool.ErrUnavailable)

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	for range pool.MaxInPool {
		_, err := f.pools.Acquire(t.Context(), "first")
		require.NoError(t, err)
	}

	_, err = f.IsStored(ended, f.id)
	require.ErrorIs(t, err, pool.ErrUnreachable)
}

// TestAnUnreachablePoolIsNotProbed has the monitor of the pools report the first one.
func TestAnUnreachablePoolIsNotProbed(t *testing.T) {
	t.Parallel()

	storage := health.New(health.Config{Name: "storage", List: func() []string { return nil }})
	stored := staged.Pools{Storage: storage}
	f := newFixture(t, func(c *Config) { c.Stored = stored })
	require.NoError(t, stored.CheckReachable("first"), "want: without a record a pool is reachable")

	set := func(reason health.Reason) {
		observed := health.Observation{Entries: []health.Entry{health.NewEntry(reason, "it is so")}}
		require.True(t, storage.Set(health.PoolSubject("first"), observed, time.Now()), "want: the record is newer")
	}

	set(health.PoolNearlyFull)
	require.NoError(t, stored.CheckReachable("first"), "want: a full pool is reachable")
	set(health.PoolUnreachable)
	require.ErrorIs(t, stored.CheckReachable("first"), pool.ErrUnreachable)
	require.NoError(t, stored.CheckReachable("second"))

	require.NoError(t, f.second.Images.Create(f.id, 1<<20, false))

	found, err := f.IsStored(t.Context(), f.id)
	require.NoError(t, err)
	require.True(t, found, "want: the reachable pool is probed")

	f.node.inUse[f.id] = f.image()
	require.ErrorIs(t, f.state().run(t.Context()), pool.ErrUnreachable)
	require.NoError(t, staged.Pools{}.CheckReachable("first"), "want: without a monitor a pool is reachable")
}

// TestProbesAfterAnOperation: what the operation has ended is forgotten.
func TestProbesAfterAnOperation(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.busy.add(f.id, busyVolume{released: true})
	f.observations.SetUsage(f.id, health.Usage{Bytes: health.Amount{Total: 7}})
	require.True(t, f.monitor.Set(f.id, health.Observation{}, time.Now()), "want: the record is new")

	f.node.inUse[f.id] = f.image()
	f.ProbeAfterOperation(f.id)
	require.NotNil(t, f.busy.get(f.id), "want: a volume in use is remembered")

	delete(f.node.inUse, f.id)
	f.ProbeAfterOperation(f.id)
	require.Nil(t, f.busy.get(f.id), "want: nothing of the volume is busy")
	require.Zero(t, f.observations.LastUsage(f.id), "want: its observation is forgotten")

	_, ok := f.monitor.Get(f.id)
	require.False(t, ok, "want: its condition is forgotten")

	_, err := f.probe(t.Context(), f.id)
	require.ErrorIs(t, err, health.ErrGone)
}

// TestProbesOfUnusedVolumes end the reason for the probe where the volume is gone.
func TestProbesOfUnusedVolumes(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.checked(fsck.Result{Verdict: fsck.VerdictDamaged})
	require.NoError(t, f.first.Images.Create(f.id, 1<<20, false))

	observed, err := f.probe(t.Context(), f.id)
	require.NoError(t, err)
	require.Equal(t, []health.Reason{health.FilesystemCorrupted}, reasons(observed.Entries))

	f.MountBusy(f.image(), "/target of no mount")
	require.NoError(t, os.Remove(f.path()))

	_, err = f.probe(t.Context(), f.id)
	require.ErrorIs(t, err, health.ErrGone)
	require.False(t, f.busy.isHeld(f.id), "want: a deleted volume is not busy")

	require.NoError(t, f.config.Pools.Fail("first", errors.New("broken")))

	_, err = f.probe(t.Context(), f.id)
	require.ErrorIs(t, err, pool.ErrUnavailable)
	require.NotErrorIs(t, err, health.ErrGone, "want: unknown is not gone")
}

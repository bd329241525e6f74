package access_test

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/direct"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const size = 32 << 20

// firstLoop is beyond the loop devices of the machine, of other tests, and of these in another process.
var firstLoop = 795_000 + os.Getpid()%40*100

func TestMain(m *testing.M) { os.Exit(namespace.Main(m)) }

// TestAccessContract shows that the four ways of access satisfy the contract of Access.
func TestAccessContract(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	directAssign := image
	directAssign.DirectAssign = true

	ways := map[string]staged.Volume{
		"mounted image": {Parameters: image},
		"raw block":     {Parameters: image, Capability: volume.Capability{Block: true}},
		"directory":     {Parameters: parametersOf(t, volume.BackingDirectory)},
		"direct volume": {Parameters: directAssign},
	}

	for name, v := range ways {
		t.Run(name, func(t *testing.T) { testContract(t, v) })
	}
}

func parametersOf(t *testing.T, backing volume.Backing) volume.Parameters {
	t.Helper()

	parameters, err := volume.ParseParameters(map[string]string{volume.KeyBacking: string(backing)})
	require.NoError(t, err)

	return parameters
}

func testContract(t *testing.T, template staged.Volume) {
	t.Helper()

	f := newFixture(t, template)

	isStaged := func(want bool) {
		t.Helper()

		got, err := f.way.IsStaged(f.v)
		require.NoError(t, err)
		require.Equal(t, want, got, "staged")

		got, err = f.way.IsInUse(f.v)
		require.NoError(t, err)
		require.Equal(t, want, got, "in use")
	}
	isPublished := func(want bool) {
		t.Helper()

		got, err := f.way.IsPublished(f.v, f.publication)
		require.NoError(t, err)
		require.Equal(t, want, got, "published")
	}

	require.ErrorIs(t, f.way.CheckStored(f.v), pool.ErrMissing)
	f.store(t)
	require.NoError(t, f.way.CheckStored(f.v))

	isStaged(false)
	require.NoError(t, f.way.Unstage(t.Context(), f.v), "a volume that is not staged can be unstaged")

	require.NoError(t, f.stage(t))
	isStaged(true)
	isPublished(false)

	require.NoError(t, f.publish(t))
	isPublished(true)
	require.NoError(t, f.way.Republish(t.Context(), f.v, f.publication))
	isPublished(true)

	f.checkStats(t)
	f.checkFrozen(t)

	got, err := f.way.Expand(t.Context(), f.v, f.v.StagingPath, &csi.CapacityRange{RequiredBytes: size})
	require.NoError(t, err)
	require.EqualValues(t, size, got, "want: Expand returns the new size")

	require.NoError(t, f.unpublish(t))
	isPublished(false)
	require.NoFileExists(t, f.publication.TargetPath)
	require.NoDirExists(t, f.publication.TargetPath)
	require.NoError(t, f.unpublish(t), "a volume that is not published can be unpublished")
	isStaged(true)

	require.NoError(t, f.way.Unstage(t.Context(), f.v))
	isStaged(false)

	numbers, err := f.way.Devices(f.v)
	require.NoError(t, err)
	require.Empty(t, numbers, "no device is left")

	require.NoError(t, f.stage(t), "it can be staged again")
	require.NoError(t, f.way.Unstage(t.Context(), f.v))
}

type fixture struct {
	dirs     *mount.AllowedDirs
	pool     *pool.Pool
	records  *staged.Records[*staged.Volume]
	ways     *access.Ways
	direct   *direct.Access
	devices  *device.Devices
	observer *observe.Observer
	freezer  *freeze.Freezer
	tuner    *tuning.Tuner
	spy      *spy
	loops    *loop.Loops
	stored   staged.Pools
	runtimes kata.Runtimes
	way      access.Access
	// ioMax has the limits of a pod.
	ioMax       string
	v           *staged.Volume
	publication staged.Publication
}

func newFixture(t *testing.T, v staged.Volume) *fixture {
	t.Helper()
	namespace.NeedRoot(t)

	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	t.Cleanup(func() {
		harness.CheckNothingIsLeft(t, dir)
		requireNoneOpen(t, dir)
	})

	for _, each := range []string{"pool", "kubelet", "kata"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, each), 0o700))
	}

	pools, err := pool.OpenSet(map[string]string{"default": filepath.Join(dir, "pool")})
	require.NoError(t, err)

	f := &fixture{spy: &spy{}, ioMax: filepath.Join(dir, "cgroup", "kubepods", "pod"+podUID, "io.max")}
	require.NoError(t, os.MkdirAll(filepath.Dir(f.ioMax), 0o700))
	require.NoError(t, os.WriteFile(f.ioMax, nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup", "cgroup.controllers"), []byte("io\n"), 0o600))

	f.pool, err = pools.Get("default")
	require.NoError(t, err)
	f.dirs, err = mount.NewAllowedDirs(filepath.Join(dir, "kubelet"))
	require.NoError(t, err)

	f.loops = loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	store := state.New(filepath.Join(dir, "state"), state.Options{Owner: t.Name(), Log: log})
	f.records = staged.NewVolumes(store)
	f.freezer = freeze.New(freeze.Config{Loops: f.loops, Log: log}, store)
	f.tuner = tuning.New(queue.New(queue.DefaultSysBlock), cgroup.NewLimiter(filepath.Join(dir, "cgroup"), log), store, log)
	f.stored = staged.Pools{Volumes: pools, Ephemeral: pools.Ephemeral()}
	f.observer = observe.New(f.dirs, f.loops)
	f.runtimes = kata.Runtimes{Root: kata.NewRoot(filepath.Join(dir, "kata")), Guest: kata.NewGuest(kata.GuestConfig{})}
	f.devices = f.newDevices()
	f.ways = access.New(access.Config{
		Pools: f.stored, Dirs: f.dirs, Loops: f.loops, Observer: f.observer, Devices: f.devices, Tuner: f.tuner, Freezer: f.freezer,
		Checker: f.spy, Gate: f.spy, Events: f.spy, Log: log,
	})
	f.direct = direct.New(direct.Config{
		Runtimes: f.runtimes, Pools: f.stored, Dirs: f.dirs, Loops: f.loops, Observer: f.observer, Devices: f.devices, Volumes: f.records,
		Ways: f.ways, Checker: f.spy, Log: log,
	})
	f.ways.Direct = f.direct

	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() {
		f.freezer.Close()
		require.NoError(t, f.tuner.Close())
		require.NoError(t, store.Close())
		require.NoError(t, pools.Close())
	})

	v.VolumeID, err = volume.NewID()
	require.NoError(t, err)

	v.Capability.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER.String()
	v.Slot, v.StagingPath = staged.NoSlot, filepath.Join(dir, "kubelet", "staging")
	f.publication = staged.Publication{
		TargetPath: filepath.Join(dir, "kubelet", "target"), Capability: v.Capability, Made: true,
	}
	f.v, f.way = &v, f.ways.For(&v)

	return f
}

// newDevices returns devices as a driver has them after its start, before it has found any.
func (f *fixture) newDevices() *device.Devices {
	return device.New(device.Config{
		Pools: f.stored, Loops: f.loops, Volumes: f.records, Observer: f.observer, Tuner: f.tuner, Freezer: f.freezer,
		Assigned: direct.AssignedBy(f.runtimes.Root), Events: f.spy, Log: slog.New(slog.DiscardHandler),
	})
}

// requireNoneOpen requires that no file beneath the directory is open, and no loop device.
func requireNoneOpen(t *testing.T, dir string) {
	t.Helper()

	links, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)

	for _, link := range links {
		// A descriptor of the search itself is gone.
		if path, err := os.Readlink(link); err == nil {
			require.False(t, strings.HasPrefix(path, dir+"/") || strings.HasPrefix(path, "/dev/loop"), "%s is still open", path)
		}
	}
}

// store makes the volume's object in the pool.
func (f *fixture) store(t *testing.T) {
	t.Helper()

	if f.v.IsImage() {
		require.NoError(t, f.pool.EnsureImage(f.v.VolumeID, size, false))
	} else {
		require.NoError(t, f.pool.EnsureDirectory(f.v.VolumeID, 1<<30))
	}
}

func (f *fixture) at(t *testing.T, path string) *mount.Target {
	t.Helper()

	found, err := f.dirs.Target(path)
	require.NoError(t, err)
	t.Cleanup(found.Close)

	return found
}

// stage stores the record first, as the node does.
func (f *fixture) stage(t *testing.T) error {
	t.Helper()
	require.NoError(t, f.records.Put(t.Context(), f.v))

	err := f.way.Stage(t.Context(), f.v, f.at(t, f.v.StagingPath))
	if newest, ok := f.records.Get(f.v.VolumeID); ok {
		f.v = newest
	}

	return err
}

func (f *fixture) publish(t *testing.T) error {
	t.Helper()

	published := f.v.Clone()
	published.Publications = []staged.Publication{f.publication}
	require.NoError(t, f.records.Put(t.Context(), published))
	f.v = published

	return f.way.Publish(t.Context(), f.v, f.publication, f.at(t, f.publication.TargetPath))
}

func (f *fixture) unpublish(t *testing.T) error {
	t.Helper()

	if err := f.way.Unpublish(f.v, f.publication, f.at(t, f.publication.TargetPath)); err != nil {
		return err
	}

	f.v = f.v.WithoutPublication(f.publication.TargetPath)

	return f.records.PutLazily(f.v)
}

func (f *fixture) checkStats(t *testing.T) {
	t.Helper()

	var at *mount.Target
	if !f.v.ExposesRawDevice() {
		at = f.at(t, f.publication.TargetPath)
	}

	stats, err := f.way.Stats(t.Context(), f.v, at)
	require.NoError(t, err)
	require.Positive(t, stats.Usage.Bytes.Total, "want: the filesystem has a size")
	require.Equal(t, f.v.ExposesRawDevice(), stats.Filesystem == nil, "only a raw device has no filesystem here")
}

// checkFrozen shows that a volume is frozen, synced, or refused before a copy.
func (f *fixture) checkFrozen(t *testing.T) {
	t.Helper()

	targets := freeze.Targets{}
	require.NoError(t, f.way.AddFreezeTargets(f.v, &targets))

	numbers, err := f.way.Devices(f.v)
	require.NoError(t, err)

	switch {
	case !f.v.IsImage():
		require.Empty(t, numbers, "want: a directory has no device")
		require.Equal(t, freeze.Targets{}, targets)
	case f.v.ExposesRawDevice():
		require.Len(t, numbers, 1, "want: a raw volume has one device")
		require.Equal(t, freeze.Targets{Devices: numbers}, targets)
	default:
		require.Len(t, numbers, 1, "want: an image has one device")
		require.Len(t, targets.Filesystems, 1, "want: the filesystem of the image is frozen")
	}

	require.Equal(t, f.v.IsMountedImage(), len(targets.Filesystems) > 0, "want: the filesystem of a mounted image is frozen")
	require.NoError(t, targets.Close())
}

// TestAStagingIsRecordedBeforeItsMount covers a kill between the mount and the answer: the retry
// finds the volume staged, and records nothing.
func TestAStagingIsRecordedBeforeItsMount(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingImage)})
	f.store(t)

	var recorded []string

	f.spy.recorded = func(what string) {
		recorded = append(recorded, what)

		isStaged, err := f.way.IsStaged(f.v)
		require.NoError(t, err)
		require.False(t, isStaged, "it is recorded before it is staged")
	}

	for range 2 {
		require.NoError(t, f.stage(t))
		require.NoError(t, f.way.Unstage(t.Context(), f.v))
	}

	require.Equal(t, []string{"formatted", "error count"}, recorded)
}

// TestAForeignMountIsNotUnmounted covers all ways of access with a target that has a mount.
func TestAForeignMountIsNotUnmounted(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)})
	f.store(t)

	require.NoError(t, os.Mkdir(f.publication.TargetPath, 0o700))

	tree, err := mount.NewReadOnlyTmpfs("foreign", map[string][]byte{"file": []byte("content")})
	require.NoError(t, err)

	defer tree.Close()

	target := f.at(t, f.publication.TargetPath)
	require.NoError(t, tree.Attach(target))

	defer func() { require.NoError(t, target.Unmount()) }()

	require.ErrorContains(t, f.ways.Image.UnmountAllLayers(f.v, target), "foreign is mounted there")

	_, err = fs.Stat(os.DirFS(f.publication.TargetPath), "file")
	require.NoError(t, err, "it is still mounted")
}

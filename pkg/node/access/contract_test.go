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
	"github.com/touchstone-csi/touchstone/test/accesscontract"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/poolset"
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
		t.Run(name, func(t *testing.T) { accesscontract.Run(t, newFixture(t, v).Volume) })
	}
}

func parametersOf(t *testing.T, backing volume.Backing) volume.Parameters {
	t.Helper()

	parameters, err := volume.ParseParameters(map[string]string{volume.KeyBacking: string(backing)})
	require.NoError(t, err)

	return parameters
}

type fixture struct {
	*accesscontract.Volume

	pool     *pool.Pool
	ways     *access.Ways
	direct   *direct.Access
	devices  *device.Devices
	observer *observe.Observer
	freezer  *freeze.Freezer
	tuner    *tuning.Tuner
	spy      *spy
	loops    *loop.Loops
	runtimes kata.Runtimes
	// ioMax has the limits of a pod.
	ioMax string
}

func newFixture(t *testing.T, v staged.Volume) *fixture {
	t.Helper()
	namespace.NeedRoot(t)

	return newFixtureOf(t, v, loop.NewLoops(loop.LoopsOptions{First: firstLoop}))
}

// newFixtureOf returns a fixture with these loop devices. It needs no root.
func newFixtureOf(t *testing.T, v staged.Volume, loops *loop.Loops) *fixture {
	t.Helper()

	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	t.Cleanup(func() {
		harness.CheckNothingIsLeft(t, dir)
		requireNoneOpen(t, dir)
	})

	for _, each := range []string{"pool", "kubelet", "kata"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, each), 0o700))
	}

	pools, err := poolset.Open(map[string]string{"default": filepath.Join(dir, "pool")})
	require.NoError(t, err)

	f := &fixture{Volume: &accesscontract.Volume{SizeBytes: size}, spy: &spy{}, ioMax: filepath.Join(dir, "cgroup", "kubepods", "pod"+podUID, "io.max")}
	require.NoError(t, os.MkdirAll(filepath.Dir(f.ioMax), 0o700))
	require.NoError(t, os.WriteFile(f.ioMax, nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup", "cgroup.controllers"), []byte("io\n"), 0o600))

	f.pool, err = pools.Get("default")
	require.NoError(t, err)
	f.Dirs, err = mount.NewAllowedDirs(filepath.Join(dir, "kubelet"))
	require.NoError(t, err)

	f.loops = loops
	store := state.New(filepath.Join(dir, "state"), state.Options{Owner: t.Name(), Log: log})
	f.Records = staged.NewVolumes(store)
	f.freezer = freeze.New(freeze.Config{Loops: f.loops, Log: log}, store)
	f.tuner = tuning.New(queue.New(queue.DefaultSysBlock), cgroup.NewLimiter(filepath.Join(dir, "cgroup"), log), store, log)
	f.Pools = staged.Pools{Volumes: pools, Ephemeral: pools.Ephemeral()}
	f.observer = observe.New(f.Dirs, f.loops)
	f.runtimes = kata.Runtimes{Root: kata.NewRoot(filepath.Join(dir, "kata")), Guest: kata.NewGuest(kata.GuestConfig{})}
	f.devices = f.newDevices()
	config := access.Config{
		Config: f.deviceConfig(), Devices: f.devices, Dirs: f.Dirs, Checker: f.spy, Gate: f.spy, MountEvents: f.spy,
	}
	shared := access.NewShared(config)
	f.direct = direct.New(direct.Config{Config: config, Runtimes: f.runtimes, Shared: shared})
	f.ways = access.New(shared, f.direct)

	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() {
		f.freezer.Close()
		require.NoError(t, f.tuner.Close())
		require.NoError(t, store.Close())
		require.NoError(t, pools.Close())
	})

	v.VolumeID = volume.NewID()

	v.Capability.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER.String()
	v.Slot, v.StagingPath = staged.NoSlot, filepath.Join(dir, "kubelet", "staging")
	f.Publication = staged.Publication{
		TargetPath: filepath.Join(dir, "kubelet", "target"), Capability: v.Capability, Made: true,
	}
	f.V, f.Way = &v, f.ways.For(&v)
	f.Store = f.makeObject

	return f
}

// newDevices returns devices as a driver has them after its start, before it has found any.
func (f *fixture) newDevices() *device.Devices { return device.New(f.deviceConfig()) }

func (f *fixture) deviceConfig() device.Config {
	return device.Config{
		Pools: f.Pools, Loops: f.loops, Volumes: f.Records, Observer: f.observer, Tuner: f.tuner, Freezer: f.freezer,
		Assigned: device.AssignedBy(f.runtimes.Root), Events: f.spy, Log: slog.New(slog.DiscardHandler),
	}
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

// makeObject makes the volume's object in the pool.
func (f *fixture) makeObject(t *testing.T) {
	t.Helper()

	if f.V.Parameters.Backing.HasFilesystem() {
		require.NoError(t, f.pool.Images.Create(f.V.VolumeID, size, false))
	} else {
		require.NoError(t, f.pool.Directories.Create(f.V.VolumeID, 1<<30, false))
	}
}

// TestAStagingIsRecordedBeforeItsMount covers a kill between the mount and the answer: the retry
// finds the volume staged, and records nothing.
func TestAStagingIsRecordedBeforeItsMount(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingImage)})
	f.Store(t)

	var recorded []string

	f.spy.recorded = func(what string) {
		recorded = append(recorded, what)

		isStaged, err := f.Way.IsStaged(f.V)
		require.NoError(t, err)
		require.False(t, isStaged, "it is recorded before it is staged")
	}

	for range 2 {
		require.NoError(t, f.Stage(t))
		require.NoError(t, f.Way.Unstage(t.Context(), f.V))
	}

	require.Equal(t, []string{"formatted", "error count"}, recorded)
}

// TestAForeignMountIsNotUnmounted covers all ways of access with a target that has a mount.
func TestAForeignMountIsNotUnmounted(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)})
	f.Store(t)

	require.NoError(t, os.Mkdir(f.Publication.TargetPath, 0o700))

	tree, err := mount.NewReadOnlyTmpfs("foreign", map[string][]byte{"file": []byte("content")})
	require.NoError(t, err)

	defer tree.Close()

	target := f.At(t, f.Publication.TargetPath)
	require.NoError(t, tree.Attach(target))

	defer func() { require.NoError(t, target.Unmount()) }()

	errtext.Require(t, f.ways.Targets.UnmountAllLayers(f.V, target), "foreign is mounted there")

	_, err = fs.Stat(os.DirFS(f.Publication.TargetPath), "file")
	require.NoError(t, err, "it is still mounted")
}

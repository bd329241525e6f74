package driver_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/node"
	nodeaccess "github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// soon is how long an event is awaited that comes at once or never.
const soon = time.Minute

// frozenNode is the node service of a driver, without its socket.
type frozenNode struct {
	*node.Service

	close func() error
}

// nodeConfig is what a process needs of a harness.Driver to be its node.
type nodeConfig struct {
	StateDir    string        `json:"stateDir"`
	Pool        string        `json:"pool"`
	KubeletDir  string        `json:"kubeletDir"`
	DirectRoot  string        `json:"directRoot"`
	FreezeLimit time.Duration `json:"freezeLimit"`
	VolumeIDs   []string      `json:"volumeIds"`
	// Run starts the tools of the filesystems; nil means the real ones.
	Run filesystem.Runner `json:"-"`
}

func openNode(ctx context.Context, config nodeConfig, log *slog.Logger) (*frozenNode, error) {
	pools, err := pool.OpenSet(map[string]string{"default": config.Pool})
	if err != nil {
		return nil, err
	}

	ephemeral := pools.Ephemeral()

	places, err := mount.NewAllowedDirs(config.KubeletDir)
	if err != nil {
		return nil, errors.Join(err, pools.Close())
	}

	store := state.New(config.StateDir, state.Options{Owner: "the freeze tests", Log: log})
	// The driver wrote them; a store refuses collections that are not registered.
	state.Register[*pool.IdentityRecord](store, pool.IdentitiesCollection)

	end := func() error {
		places.Close()

		return errors.Join(store.Close(), pools.Close())
	}

	served, err := node.New(node.Config{
		NodeID: harness.NodeID, Ephemeral: ephemeral, Admission: &pool.Admission{Overcommit: 1}, Log: log, FreezeLimit: config.FreezeLimit,
		StagingDir: filepath.Join(config.KubeletDir, "own"), CgroupRoot: "/sys/fs/cgroup", Run: config.Run,
		Direct: nodeaccess.DirectConfig{
			Root: kata.NewRoot(config.DirectRoot), Guest: kata.NewGuest(kata.GuestConfig{}),
		},
	}, store, pools, operation.NewGroup(), places, loop.NewLoops(loop.LoopsOptions{}))
	if err == nil {
		err = store.Open(ctx)
	}

	if err == nil {
		err = served.Recover(ctx)
	}

	if err != nil {
		return nil, errors.Join(err, end())
	}

	return &frozenNode{Service: served, close: func() error { return errors.Join(served.Close(), end()) }}, nil
}

func configOf(d *harness.Driver) nodeConfig {
	return nodeConfig{
		StateDir: d.Config.StateDir, Pool: d.Pool(), KubeletDir: d.Config.KubeletDir, DirectRoot: d.Config.DirectVolumeRoot,
	}
}

// takeOver stops the driver, whose volumes stay mounted, and returns its node.
// At the end of the test the driver is back.
func takeOver(t *testing.T, d *harness.Driver, limit time.Duration) *frozenNode {
	t.Helper()

	return takeOverWith(t, d, limit, nil)
}

func takeOverWith(t *testing.T, d *harness.Driver, limit time.Duration, run filesystem.Runner) *frozenNode {
	t.Helper()
	d.Stop()

	config := configOf(d)
	config.FreezeLimit, config.Run = limit, run

	taken, err := openNode(t.Context(), config, d.Config.Log)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, taken.close())
		d.Restart(t)
	})

	return taken
}

// startNode starts a driver that is a node and nothing else, so that its state
// can be opened by a node service alone.
func startNode(t *testing.T) *harness.Driver {
	t.Helper()

	return harness.Start(t, inMode(driver.ModeNode))
}

// given puts a volume into the pool as a controller elsewhere would.
func given(t *testing.T, d *harness.Driver, capability *csi.VolumeCapability, parameters map[string]string) *csiclient.Publication {
	t.Helper()

	id, err := volume.NewID()
	require.NoError(t, err)

	if parameters[volume.KeyBacking] == string(volume.BackingDirectory) {
		require.NoError(t, os.Mkdir(filepath.Join(d.Pool(), "directories", id), 0o700))
	} else {
		require.NoError(t, os.WriteFile(imageOf(d, id), nil, 0o600))
		require.NoError(t, os.Truncate(imageOf(d, id), sizeFor(capability.GetMount().GetFsType())))
	}

	claim := d.Claim(t, id)
	claim.VolumeContext, claim.Capability = parameters, capability

	return claim
}

// stage has the volume staged for the rest of the test.
func stage(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, os.MkdirAll(claim.StagingPath, 0o750))
	require.NoError(t, d.Stage(t.Context(), claim))
	t.Cleanup(func() {
		// Should the test have failed, no process waits for ever.
		_ = thaw(claim.StagingPath)

		require.NoError(t, d.Unstage(context.WithoutCancel(t.Context()), claim))
	})
}

// stagedFor returns a volume with the filesystem, staged.
func stagedFor(t *testing.T, d *harness.Driver, fsType string) *csiclient.Publication {
	t.Helper()

	claim := given(t, d, csiclient.MountCapability(writer, fsType), nil)
	stage(t, d, claim)

	return claim
}

func sizeFor(fsType string) int64 {
	for _, k := range kinds() {
		if k.name == fsType {
			return k.bytes
		}
	}

	return 64 * mib
}

func thaw(path string) error { return atRoot(path, filesystem.Thaw) }

// requireFrozen and requireThawed find out by doing it once more.
func requireFrozen(t *testing.T, path string) {
	t.Helper()
	require.ErrorIs(t, atRoot(path, filesystem.Freeze), filesystem.ErrFrozen)
}

func requireThawed(t *testing.T, path string) {
	t.Helper()
	require.ErrorIs(t, thaw(path), filesystem.ErrNotFrozen)
}

func atRoot(path string, do func(*os.File) error) error {
	root, err := os.Open(path)
	if err != nil {
		return err
	}
	defer root.Close()

	return do(root)
}

// held is a write that a frozen filesystem keeps waiting.
type held struct {
	thread atomic.Int64
	done   chan error
}

// write begins to write a file and returns when the kernel has it wait.
func write(t *testing.T, path string) *held {
	t.Helper()

	w := &held{done: make(chan error, 1)}

	go func() {
		runtime.LockOSThread()
		w.thread.Store(int64(unix.Gettid()))

		w.done <- os.WriteFile(path, []byte("written"), 0o600)
	}()

	require.Eventually(t, w.waits, soon, time.Millisecond, "the write does not wait")

	return w
}

// waits says whether the thread sleeps without being interruptible.
func (w *held) waits() bool {
	stat, err := os.ReadFile("/proc/self/task/" + strconv.FormatInt(w.thread.Load(), 10) + "/stat")
	if err != nil {
		return false
	}

	_, after, _ := strings.Cut(string(stat), ") ")

	return strings.HasPrefix(after, "D")
}

func (w *held) pending() bool { return len(w.done) == 0 }

func (w *held) requireDone(t *testing.T) {
	t.Helper()

	select {
	case err := <-w.done:
		require.NoError(t, err)
	case <-time.After(soon):
		require.FailNow(t, "the write still waits")
	}
}

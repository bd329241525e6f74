package driver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/node"
	nodeaccess "github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
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
		// Should the test have failed, nobody has to wait for ever.
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

func TestFreezeHoldsWritersBack(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := startNode(t)
			claim := stagedFor(t, d, fsType)
			taken := takeOver(t, d, 0)
			require.True(t, taken.CanFreeze(claim.VolumeID), "want: the volume can be frozen")

			var waiting *held

			require.NoError(t, taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(context.Context) error {
				requireFrozen(t, claim.StagingPath)

				waiting = write(t, filepath.Join(claim.StagingPath, "file"))
				require.True(t, waiting.pending(), "want: the write still waits")

				return nil
			}))
			waiting.requireDone(t)
			fileHolds(t, filepath.Join(claim.StagingPath, "file"), "written")
			requireThawed(t, claim.StagingPath)
		})
	}
}

// TestFreezeWindowIsTold lets whoever measures read how long writers waited.
func TestFreezeWindowIsTold(t *testing.T) {
	namespace.NeedRoot(t)

	var said bytes.Buffer

	d := startNode(t)
	claim := stagedFor(t, d, "ext4")
	d.Config.Log = slog.New(slog.NewJSONHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	taken := takeOver(t, d, 0)

	said.Reset()
	require.NoError(t, taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(context.Context) error { return nil }))

	var told struct {
		Volumes int           `json:"volumes"`
		First   string        `json:"first"`
		Window  time.Duration `json:"window"`
	}

	require.NoError(t, json.Unmarshal(said.Bytes(), &told), "%s", said.String())
	require.Equal(t, 1, told.Volumes)
	require.Equal(t, claim.VolumeID, told.First)
	require.Positive(t, told.Window)
	t.Log(told.Window)
}

var errWithin = errors.New("what was to be done failed")

func TestFreezeEndsHoweverItEnds(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)
	claim := stagedFor(t, d, "ext4")
	taken := takeOver(t, d, 0)
	ids := []string{claim.VolumeID}

	t.Run("error", func(t *testing.T) {
		require.ErrorIs(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error { return errWithin }), errWithin)
		requireThawed(t, claim.StagingPath)
	})
	t.Run("panic", func(t *testing.T) {
		require.PanicsWithError(t, errWithin.Error(), func() {
			_ = taken.WithFrozen(t.Context(), ids, func(context.Context) error {
				requireFrozen(t, claim.StagingPath)
				panic(errWithin)
			})
		})
		requireThawed(t, claim.StagingPath)
	})
	t.Run("caller gone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := taken.WithFrozen(ctx, ids, func(ctx context.Context) error {
			waiting := write(t, filepath.Join(claim.StagingPath, "file"))

			cancel()
			<-ctx.Done()
			// It is thawed although this goes on.
			waiting.requireDone(t)

			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		requireThawed(t, claim.StagingPath)
	})
	t.Run("thawed by another", func(t *testing.T) {
		err := taken.WithFrozen(t.Context(), ids, func(context.Context) error { return thaw(claim.StagingPath) })
		fails(t, rpc.Status(err), codes.Aborted, claim.VolumeID, "thawed by another program")
	})
	t.Run("frozen by another", func(t *testing.T) {
		require.NoError(t, atRoot(claim.StagingPath, filesystem.Freeze))
		fails(t, rpc.Status(taken.WithFrozen(t.Context(), ids, neverCalled)), codes.FailedPrecondition, claim.VolumeID, "fsfreeze")
		requireFrozen(t, claim.StagingPath)
		require.NoError(t, thaw(claim.StagingPath))
	})
	t.Run("not begun", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, taken.WithFrozen(ctx, ids, neverCalled), context.Canceled)
		requireThawed(t, claim.StagingPath)
	})
	t.Run("and once more", func(t *testing.T) {
		require.NoError(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error { return nil }))
	})
}

func neverCalled(context.Context) error { panic("this must not be called") }

func TestFreezeIsLimited(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)
	claim := stagedFor(t, d, "xfs")
	taken := takeOver(t, d, 3*time.Second)

	err := taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(ctx context.Context) error {
		waiting := write(t, filepath.Join(claim.StagingPath, "file"))
		<-ctx.Done()
		waiting.requireDone(t)

		return nil
	})
	require.ErrorIs(t, err, freeze.ErrLimit)
	fails(t, rpc.Status(err), codes.FailedPrecondition, "3s")
	requireThawed(t, claim.StagingPath)
}

// TestFreezeThatIsGivenUp has a write begun that does not end, so that no freeze
// comes about: neither the caller nor the other volumes wait for it.
func TestFreezeThatIsGivenUp(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)
	well, stuck := stagedFor(t, d, "ext4"), stagedFor(t, d, "ext4")
	// Enough for the one that can be frozen, on a busy machine, too.
	taken := takeOver(t, d, 2*time.Second)
	memory := newPendingMemory(t)
	ended := make(chan error, 1)
	ids := []string{well.VolumeID, stuck.VolumeID}

	file, err := os.Create(filepath.Join(stuck.StagingPath, "file"))
	require.NoError(t, err)

	go func() {
		_, err := file.Write(memory.page)
		ended <- errors.Join(err, file.Close())
	}()

	memory.awaitFault(t)

	err = taken.WithFrozen(t.Context(), ids, neverCalled)
	require.ErrorIs(t, err, freeze.ErrLimit)
	require.ErrorContains(t, err, stuck.VolumeID)
	requireThawed(t, well.StagingPath)

	memory.fill(t)
	require.NoError(t, await.Receive(t, ended, "the write to return once its page is filled"))
	require.Eventually(t, func() bool {
		return taken.WithFrozen(t.Context(), ids, func(context.Context) error { return nil }) == nil
	}, soon, 10*time.Millisecond)
	requireThawed(t, stuck.StagingPath)
}

// pendingMemory is a page that the kernel waits for, as userfaultfd(2) has it:
// a write of it has begun and can't end.
type pendingMemory struct {
	page  []byte
	fault int
}

// uffdRange and those after it are the structures of linux/userfaultfd.h.
type uffdRange struct{ start, length uint64 }

func newPendingMemory(t *testing.T) *pendingMemory {
	t.Helper()

	const (
		api      = 0xaa
		missing  = 1
		setAPI   = 0xc018aa3f
		register = 0xc020aa00
	)

	fault, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Skipf("userfaultfd: %v", errno)
	}

	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)

	// With the descriptor, the waiting ends.
	t.Cleanup(func() { require.NoError(t, errors.Join(unix.Close(int(fault)), unix.Munmap(page))) })

	memory := &pendingMemory{page: page, fault: int(fault)}
	memory.ioctl(t, setAPI, unsafe.Pointer(&struct{ api, features, ioctls uint64 }{api: api}))
	memory.ioctl(t, register, unsafe.Pointer(&struct {
		uffdRange

		mode, ioctls uint64
	}{uffdRange: memory.all(), mode: missing}))

	return memory
}

func (m *pendingMemory) all() uffdRange {
	return uffdRange{start: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.page)))), length: uint64(len(m.page))}
}

// awaitFault returns once somebody waits for the page.
func (m *pendingMemory) awaitFault(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(m.fault), Events: unix.POLLIN}}, 0)

		return err == nil && ready == 1
	}, soon, time.Millisecond)
}

// fill gives the page to whoever waits for it.
func (m *pendingMemory) fill(t *testing.T) {
	t.Helper()

	const zeroPage = 0xc020aa04

	m.ioctl(t, zeroPage, unsafe.Pointer(&struct {
		uffdRange

		mode   uint64
		filled int64
	}{uffdRange: m.all()}))
}

func (m *pendingMemory) ioctl(t *testing.T, request uintptr, argument unsafe.Pointer) {
	t.Helper()

	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.fault), request, uintptr(argument))
	require.Zero(t, errno)
}

// TestFreezeOfSeveral has one volume of each kind, and freezes what there is to
// freeze of them.
func TestFreezeOfSeveral(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)

	var ids []string

	var frozen []string

	for _, fsType := range filesystem.Names() {
		claim := stagedFor(t, d, fsType)
		ids, frozen = append(ids, claim.VolumeID), append(frozen, claim.StagingPath)
	}

	others := map[string]*csiclient.Publication{
		"block":     given(t, d, csiclient.BlockCapability(writer), nil),
		"directory": given(t, d, csiclient.MountCapability(writer, ""), directoryBacked()),
		"unstaged":  given(t, d, csiclient.MountCapability(writer, ""), nil),
		"read-only": given(t, d, csiclient.MountCapability(readerOnly, ""), nil),
		"ro":        given(t, d, csiclient.MountCapability(writer, "", "ro"), nil),
	}

	for name, claim := range others {
		ids = append(ids, claim.VolumeID)

		if name != "unstaged" {
			stage(t, d, claim)
		}
	}

	ids = append(ids, ids[0], "nobody-knows-this")
	taken := takeOver(t, d, 0)

	for name, can := range map[string]bool{"block": false, "directory": false, "unstaged": true, "read-only": true, "ro": true} {
		require.Equal(t, can, taken.CanFreeze(others[name].VolumeID), name)
	}

	require.NoError(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error {
		for _, path := range frozen {
			requireFrozen(t, path)
		}

		for _, name := range []string{"read-only", "ro"} {
			requireThawed(t, others[name].StagingPath)
		}

		return nil
	}))

	for _, path := range frozen {
		requireThawed(t, path)
	}
}

// TestFreezeOfTheSick has the filesystem give up writing.
func TestFreezeOfTheSick(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			d := startNode(t)
			well, sick := stagedFor(t, d, "btrfs"), stagedFor(t, d, fsType)
			taken := takeOver(t, d, 0)

			require.NoError(t, atRoot(sick.StagingPath, shutDown))

			err := taken.WithFrozen(t.Context(), []string{well.VolumeID, sick.VolumeID}, neverCalled)
			fails(t, rpc.Status(err), codes.FailedPrecondition, sick.VolumeID, "unstage")
			require.NotContains(t, err.Error(), well.VolumeID)
			requireThawed(t, well.StagingPath)
		})
	}
}

// shutDown is XFS's ioctl, which ext4 took over: _IOR of X, 125, a __u32.
func shutDown(root *os.File) error {
	const (
		goingDown = 0x8004587d
		noLog     = 2
	)

	return unix.IoctlSetPointerInt(int(root.Fd()), goingDown, noLog)
}

// freezer hands a nodeConfig to the process that freezes.
const freezer = "TOUCHSTONE_TEST_FREEZER"

// freezeIfAsked is for the begin of TestMain: in a process that killFrozen
// starts, it freezes volumes, says so and waits to be killed.
func freezeIfAsked() {
	encoded := os.Getenv(freezer)
	if encoded == "" {
		return
	}

	var config nodeConfig

	err := json.Unmarshal([]byte(encoded), &config)
	if err == nil {
		var opened *frozenNode
		if opened, err = openNode(context.Background(), config, slog.Default()); err == nil {
			err = opened.WithFrozen(context.Background(), config.VolumeIDs, func(context.Context) error {
				_, said := os.Stdout.WriteString("frozen\n")
				_, err := io.Copy(io.Discard, os.Stdin)

				return errors.Join(said, err)
			})
		}
	}

	fmt.Fprintln(os.Stderr, "freeze:", err)
	os.Exit(1)
}

// killFrozen stops the driver, and has a process freeze its volumes and be
// killed meanwhile.
func killFrozen(t *testing.T, d *harness.Driver, volumeIDs ...string) {
	t.Helper()
	d.Stop()
	t.Cleanup(func() { d.Restart(t) })

	config := configOf(d)
	config.VolumeIDs = volumeIDs
	encoded, err := json.Marshal(config)
	require.NoError(t, err)

	command := child.Command(t, "/proc/self/exe")
	command.Env = append(os.Environ(), freezer+"="+string(encoded))
	command.Stderr = t.Output()

	hold, err := command.StdinPipe()
	require.NoError(t, err)

	defer hold.Close()

	said, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(command))

	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "frozen\n", line)
	require.NoError(t, command.Process.Kill())
	require.Error(t, command.Wait(), "the exit of a process that was killed")
}

func TestFreezeEndsWithTheNextStart(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := startNode(t)
			claim, second := stagedFor(t, d, fsType), stagedFor(t, d, "ext4")
			killFrozen(t, d, claim.VolumeID, second.VolumeID)
			requireFrozen(t, claim.StagingPath)
			requireFrozen(t, second.StagingPath)

			waiting := write(t, filepath.Join(claim.StagingPath, "file"))

			d.Restart(t)
			waiting.requireDone(t)
			requireThawed(t, claim.StagingPath)
			requireThawed(t, second.StagingPath)
		})
	}
}

// TestFreezeEndsWithoutAMount has somebody unmount what was left frozen: the
// kernel keeps it, and its device.
func TestFreezeEndsWithoutAMount(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := startNode(t)
			claim := stagedFor(t, d, fsType)
			killFrozen(t, d, claim.VolumeID)
			unmount(t, claim.StagingPath)

			d.Restart(t)
			require.NoError(t, d.Stage(t.Context(), claim))
			requireThawed(t, claim.StagingPath)
			writeFile(t, filepath.Join(claim.StagingPath, "file"), "written")
		})
	}
}

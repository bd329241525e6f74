package fsck_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

// node is the node of a fixture. Its fields are the same for each volume.
type node struct {
	ephemeral, registered, hanging bool
	// staged is nil for no record, and path empty for a volume that is not in use.
	staged *staged.Volume
	path   string
	// inUse, guest, counting and unreachable are the errors of the methods.
	inUse, guest, counting, unreachable error
	errorCount                          uint64
	period                              time.Duration
	// thawed means that the volume is not mounted for writing.
	thawed, frozen bool
	// meanwhile runs at the begin of an operation.
	meanwhile func()

	mu     sync.Mutex
	probed []string
}

// change changes the fields while checks run.
func (n *node) change(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()

	change()
}

// read returns a field, which a test may change meanwhile.
func read[T any](n *node, field *T) T {
	n.mu.Lock()
	defer n.mu.Unlock()

	return *field
}

func (n *node) Staged(string) (*staged.Volume, bool) {
	record := read(n, &n.staged)

	return record, record != nil
}

func (n *node) InUse(string) (path string, used bool, err error) {
	path = read(n, &n.path)

	return path, path != "", read(n, &n.inUse)
}

func (n *node) IsRegistered(string) bool          { return read(n, &n.registered) }
func (n *node) IsEphemeral(string) bool           { return read(n, &n.ephemeral) }
func (n *node) CheckNoGuest(*staged.Volume) error { return read(n, &n.guest) }
func (n *node) ErrorCount(string) (uint64, error) {
	return read(n, &n.errorCount), read(n, &n.counting)
}
func (n *node) IsFrozen(string) bool            { return read(n, &n.frozen) }
func (n *node) CheckReachable(string) error     { return read(n, &n.unreachable) }
func (n *node) IsHanging(string) bool           { return read(n, &n.hanging) }
func (n *node) LastPeriod(string) time.Duration { return read(n, &n.period) }

func (n *node) Do(ctx context.Context, _, _ string, do func(context.Context) error) error {
	if n.meanwhile != nil {
		n.change(n.meanwhile)
	}

	return do(ctx)
}

func (n *node) WithFrozen(ctx context.Context, _ []string, do func(context.Context) error) error {
	n.change(func() { n.frozen = !n.thawed })
	defer n.change(func() { n.frozen = false })

	return do(ctx)
}

func (n *node) ProbeAfterOperation(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.probed = append(n.probed, id)
}

// takeProbed returns the volumes of which a probe was requested since the last call.
func (n *node) takeProbed() []string {
	n.mu.Lock()
	defer n.mu.Unlock()

	defer func() { n.probed = nil }()

	return n.probed
}

// started is a tool that was started: with the volume frozen or not, and urgent or not.
type started struct {
	tool           string
	frozen, urgent bool
}

// fixture is a Checker of a volume in the second of two pools. Its image holds an ext4.
type fixture struct {
	*fsck.Checker

	t          *testing.T
	node       *node
	first      *pool.Pool
	pool       *pool.Pool
	pools      *pool.Set
	records    *staged.Records[*fsck.Result]
	registry   *prometheus.Registry
	stateDir   string
	closeStore func()
	id         string
	// tool is what a tool does; nil finds nothing wrong.
	tool func(ctx context.Context, command filesystem.Command) (filesystem.Result, error)

	mu      sync.Mutex
	started []started
}

// runTool is the Runner of the tools.
func (f *fixture) runTool(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	f.mu.Lock()
	f.started = append(f.started, started{command.Tool, f.node.IsFrozen(f.id), !command.Idle})
	tool := f.tool
	f.mu.Unlock()

	if tool != nil {
		return tool(ctx, command)
	}

	return filesystem.Result{}, nil
}

type runner func(context.Context, filesystem.Command) (filesystem.Result, error)

func (r runner) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	return r(ctx, command)
}

// newChecker returns a checker of the node's volumes.
func newChecker(n *node, config fsck.Config) *fsck.Checker {
	config.Volumes, config.Do = n, n.Do
	config.Known = fsck.Known{
		Registered: n.IsRegistered, Ephemeral: n.IsEphemeral, CheckNoGuest: n.CheckNoGuest, CheckReachable: n.CheckReachable,
		LastPeriod: n.LastPeriod, IsHanging: n.IsHanging,
	}
	config.Results.OnChange(n.ProbeAfterOperation)

	return fsck.New(config)
}

func newFixture(t *testing.T, period time.Duration) *fixture {
	t.Helper()

	f := &fixture{t: t, node: &node{}, registry: prometheus.NewRegistry(), stateDir: t.TempDir()}
	pools, err := poolset.Open(map[string]string{"first": t.TempDir(), "second": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	f.pools = pools
	f.first, err = pools.Get("first")
	require.NoError(t, err)
	f.pool, err = pools.Get("second")
	require.NoError(t, err)

	// Nothing is flushed by itself: only what is stored durably is on the disk before Close.
	store := state.New(f.stateDir, state.Options{LazyFlush: time.Hour, Log: slog.New(slog.DiscardHandler)})
	f.records = fsck.NewRecords(store)
	results := fsck.NewResults(f.records, health.NewMetrics(f.registry), slog.New(slog.DiscardHandler))
	f.Checker = newChecker(f.node, fsck.Config{
		Results: results, Pools: pools, Loops: loop.NewLoops(loop.LoopsOptions{}), Period: period,
		Run: runner(f.runTool),
	})

	require.NoError(t, store.Open(t.Context()))
	f.Load()

	f.closeStore = sync.OnceFunc(func() { require.NoError(t, store.Close()) })
	t.Cleanup(f.closeStore)

	f.id = f.newVolume()

	return f
}

func (f *fixture) newVolume() string {
	f.t.Helper()

	id := volume.NewID()
	require.NoError(f.t, f.pool.Images.Create(id, 1<<20, false))

	output, err := child.Command(f.t, "mkfs.ext4", "-q", "-F", "-b", "1024", f.imageOf(id)).CombinedOutput()
	require.NoError(f.t, err, string(output))

	return id
}

func (f *fixture) imageOf(id string) string {
	return f.pool.ObjectPath(pool.Object{ID: id, Backing: volume.BackingImage})
}

func (f *fixture) image() string { return f.imageOf(f.id) }

// record returns the record of the volume, staged for writing.
func (f *fixture) record() *staged.Volume {
	return &staged.Volume{
		VolumeID: f.id, StagingPath: "/staged",
		Capability: volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: filesystem.Ext4},
		Parameters: volume.Parameters{Pool: "second", Backing: volume.BackingImage},
	}
}

// stage has the node use the volume.
func (f *fixture) stage() {
	f.node.staged, f.node.path = f.record(), "/staged"
}

func (f *fixture) takeStarted() []started {
	f.mu.Lock()
	defer f.mu.Unlock()

	defer func() { f.started = nil }()

	return slices.Clone(f.started)
}

// durable returns the volume's record as a driver finds it that starts now, nil for none.
func (f *fixture) durable() *fsck.Result {
	f.t.Helper()

	copied := filepath.Join(f.t.TempDir(), "state")
	require.NoError(f.t, os.CopyFS(copied, os.DirFS(f.stateDir)))

	store := state.New(copied, state.Options{})
	records := fsck.NewRecords(store)

	require.NoError(f.t, store.Open(context.Background()))
	records.Load()

	found, _ := records.Get(f.id)
	require.NoError(f.t, store.Close())

	return found
}

// requireNoScratch requires that no copy is left.
func (f *fixture) requireNoScratch() {
	f.t.Helper()

	left, err := os.ReadDir(filepath.Join(f.pool.Path(), "scratch"))
	require.NoError(f.t, err)
	require.Empty(f.t, left, "want: the check leaves no scratch file")
}

// setDirty has the superblock say that the journal holds changes, or not.
func setDirty(t *testing.T, image string, dirty bool) {
	t.Helper()

	const at, flag = 1024 + 0x60, 4

	file, err := os.OpenFile(image, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	var flags [1]byte

	_, err = file.ReadAt(flags[:], at)
	require.NoError(t, err)

	if flags[0] &^= flag; dirty {
		flags[0] |= flag
	}

	_, err = file.WriteAt(flags[:], at)
	require.NoError(t, err)
}

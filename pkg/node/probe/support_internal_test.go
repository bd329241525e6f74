package probe

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

// node has the volumes in use, of which it knows no device.
type node struct {
	inUse    map[string]*staged.Volume
	usage    mount.Usage
	guest    error
	attached bool
	// pool is that of each volume, nil for an unknown one. meanwhile runs in each probe.
	pool      *pool.Pool
	meanwhile func()
	revoking  error
	// unreachable is of each pool.
	unreachable error
}

func (n *node) Get(id string) (*staged.Volume, staged.Record, bool) {
	found, ok := n.inUse[id]

	return found, found, ok
}

func (n *node) OfObject(name string) string { return name }

func (n *node) IDs() []string {
	var ids []string
	for id := range n.inUse {
		ids = append(ids, id)
	}

	return ids
}

func (n *node) Found(string) (device.Attachments, error) {
	return device.Attachments{Numbers: device.Numbers{Staged: device.None, ReadOnly: device.None}}, nil
}
func (n *node) Had(string, int) bool { return n.attached }

func (n *node) GuestUsage(context.Context, *staged.Volume, int64) (mount.Usage, error) {
	return n.usage, n.guest
}

func (n *node) HasLost(*staged.Volume) (bool, error)     { return true, nil }
func (n *node) revokeLost(context.Context, string) error { return n.revoking }
func (n *node) CheckReachable(string) error              { return n.unreachable }

func (n *node) Of(*staged.Volume) (*pool.Pool, error) {
	if n.meanwhile != nil {
		n.meanwhile()
	}

	if n.pool == nil {
		return nil, pool.ErrUnknown
	}

	return n.pool, nil
}

// fixture is a Prober of a node with two pools.
type fixture struct {
	*Prober

	t             *testing.T
	node          *node
	first, second *pool.Pool
	records       *staged.Records[*fsck.Result]
	id            string
	// planned receives the ids of the volumes whose checks are planned.
	planned chan string
}

// newChecker returns a checker that checks nothing. It asks registered about each volume whose check it plans.
func newChecker(records *staged.Records[*fsck.Result], pools *pool.Set, log *slog.Logger, registered func(id string) bool) *fsck.Checker {
	return fsck.New(fsck.Config{
		Results: fsck.NewResults(records, nil, log), Pools: pools, Period: time.Hour,
		Known: fsck.Known{
			Registered: registered, CheckReachable: func(string) error { return nil }, LastPeriod: func(string) time.Duration { return 0 },
		},
	})
}

func newFixture(t *testing.T, options ...func(*Config)) *fixture {
	t.Helper()

	pools, err := poolset.Open(map[string]string{"first": t.TempDir(), "second": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	f, log := &fixture{t: t, node: &node{inUse: map[string]*staged.Volume{}}, planned: make(chan string, 10)}, slog.New(slog.DiscardHandler)
	store := state.New(t.TempDir(), state.Options{Log: log})
	f.records = fsck.NewRecords(store)

	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	f.first, err = pools.Get("first")
	require.NoError(t, err)
	f.second, err = pools.Get("second")
	require.NoError(t, err)
	f.id = volume.NewID()

	config := Config{
		Host:    Host{Loops: loop.NewLoops(loop.LoopsOptions{}), Raw: f.node},
		Volumes: f.node, Stored: f.node, Assignments: f.node, Revoke: f.node.revokeLost, Pools: pools, Memory: NewMemory(),
		Operations: operation.NewGroup(), Monitoring: Monitoring{IOErrorHold: time.Minute}, Log: log,
		Checker: newChecker(f.records, pools, log, func(id string) bool { f.planned <- id; return true }),
	}
	for _, option := range options {
		option(&config)
	}

	f.Prober = New(config)

	return f
}

// image returns the record of an image in the first pool, staged for writing.
func (f *fixture) image() *staged.Volume {
	return &staged.Volume{
		VolumeID: f.id, StagingPath: "/staged",
		Capability: volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: filesystem.Ext4},
		Parameters: volume.Parameters{Pool: "first", Backing: volume.BackingImage},
	}
}

// checked records a check of the volume.
func (f *fixture) checked(result fsck.Result) {
	f.t.Helper()

	result.VolumeID, result.Pool, result.FSType = f.id, "first", filesystem.Ext4
	result.How = fsck.HowStage

	if result.Verdict == "" {
		result.Verdict = fsck.VerdictClean
	}

	require.NoError(f.t, f.records.PutLazily(&result))
}

// state returns the state of a probe of the volume, as it begins.
func (f *fixture) state() *probeState {
	view, _ := f.view(f.id)

	return f.newState(view)
}

func suspected() *fsck.Suspicion {
	return &fsck.Suspicion{Reason: health.FilesystemErrors, Message: "suspected", At: time.Now()}
}

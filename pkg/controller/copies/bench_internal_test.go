package copies

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

var errBroken = errors.New("broken")

// bench is a machine with one pool, a state of its own, and a node that uses what the test says.
type bench struct {
	*Machine

	t     *testing.T
	store *state.Store
	pools *pool.Set
	node  *fakeNode
}

func newBench(t *testing.T) *bench {
	t.Helper()

	log, directory := slog.New(slog.DiscardHandler), t.TempDir()
	b := &bench{t: t, node: &fakeNode{used: map[string]bool{}, canFreeze: true}}
	b.store = state.New(filepath.Join(directory, "state"), state.Options{Log: log, LazyFlush: time.Hour})

	var err error
	b.pools, err = poolset.Open(map[string]string{"default": filepath.Join(directory, "default")})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.pools.Close() })

	records := catalog.New(b.store, b.pools, &pool.Admission{Overcommit: 1})
	b.Machine = New(Config{
		Catalog: records, Node: b.node, Use: &objects.Use{Node: b.node, NodeID: "node", Attaches: true},
		Remover:    &objects.Remover{Catalog: records, Queue: removal.New(log), Forgotten: func(string) {}},
		Operations: operation.NewGroup(), Grace: time.Minute, Progress: progress.NewRegistry(log), Point: b.node.at, Log: log,
	})

	require.NoError(t, b.store.Open(t.Context()))
	t.Cleanup(func() { _ = b.store.Close() })

	return b
}

func (b *bench) served() *pool.Pool { return b.pools.Served()[0] }

func (b *bench) newID() string {
	id := volume.NewID()

	return id
}

// describe returns the record of a volume that is about to be made.
func (b *bench) describe(name string) *record.Volume {
	parameters, err := volume.ParseParameters(map[string]string{volume.KeyPool: "default"})
	require.NoError(b.t, err)

	return &record.Volume{
		ID: b.newID(), Name: name, CapacityBytes: 1 << 20, Phase: record.PhaseReady, Properties: &record.Properties{
			Parameters: parameters, Capabilities: []volume.Capability{{Mode: "SINGLE_NODE_WRITER"}},
		},
	}
}

// create makes a volume.
func (b *bench) create(name string) *record.Volume {
	b.t.Helper()

	v := b.describe(name)
	require.NoError(b.t, objects.AllocateDurably(v, b.served()))
	require.NoError(b.t, b.Catalog.RecordVolume(b.t.Context(), v, b.served()))

	return v
}

// wanted returns the record of a snapshot that is about to be taken.
func (b *bench) wanted(name string, source *record.Volume) *record.Snapshot {
	b.t.Helper()

	fresh, err := b.NewSnapshot(b.t.Context(), source, volume.ConsistencyFilesystem)
	require.NoError(b.t, err)

	fresh.Name = name

	return fresh
}

// snapshot takes a snapshot and records it in a phase.
func (b *bench) snapshot(name string, source *record.Volume, phase record.Phase) *record.Snapshot {
	b.t.Helper()

	fresh := b.wanted(name, source)
	require.NoError(b.t, b.TakeSnapshot(b.t.Context(), source, fresh))

	taken := fresh.InPhase(phase)
	require.NoError(b.t, b.store.Update(b.t.Context(), func(tx *state.Tx) error {
		return b.Catalog.Snapshots.In(tx).Put(taken.ID, taken)
	}))

	return taken
}

// taking returns the taking of snapshots.
func (b *bench) taking(group *record.Group, fresh ...*record.Snapshot) *snapshots {
	return &snapshots{taking: taking{Machine: b.Machine, pool: b.Catalog.Pool}, group: group, fresh: fresh}
}

// phases describes the records of volumes, snapshots and groups by their names.
func (b *bench) phases() map[string]record.Phase {
	b.t.Helper()
	require.NoError(b.t, b.Catalog.Flush(b.t.Context()))

	found := map[string]record.Phase{}

	for _, v := range b.Catalog.Volumes.Ascend("") {
		found["volume "+v.Name] = v.Phase
	}

	for _, each := range b.Catalog.Snapshots.Ascend("") {
		found["snapshot "+each.Name] = each.Phase
	}

	for _, g := range b.Catalog.Groups.Ascend("") {
		found["group "+g.Name] = g.Phase
	}

	return found
}

// stored returns the names in a directory of the pool.
func (b *bench) stored(directory string) (names []string) {
	b.t.Helper()

	entries, err := os.ReadDir(filepath.Join(b.served().Path(), directory))
	require.NoError(b.t, err)

	for _, each := range entries {
		names = append(names, each.Name())
	}

	return names
}

// fakeNode uses and answers what the test says.
type fakeNode struct {
	used      map[string]bool
	canFreeze bool
	// copying is called when the sources are frozen; nil is no call.
	copying func(context.Context)
	// committing is called when a copy has its name; nil is no call.
	committing func(context.Context)
	// The errors of its methods, and of the points of operations.
	useErr, freezeErr, pointErr error
}

func (*fakeNode) Serves(string) bool { return true }

func (n *fakeNode) InUse(id string) (path string, used bool, err error) {
	return "/target", n.used[id], n.useErr
}

func (n *fakeNode) CanFreeze(string) bool { return n.canFreeze }

func (n *fakeNode) WithFrozen(ctx context.Context, _ []string, within func(context.Context) error) error {
	if n.copying != nil {
		n.copying(ctx)
	}

	return errors.Join(within(ctx), n.freezeErr)
}

func (n *fakeNode) at(ctx context.Context, point operation.Point, _ ...string) error {
	if n.committing != nil && point == operation.SnapshotCopied {
		n.committing(ctx)
	}

	return n.pointErr
}

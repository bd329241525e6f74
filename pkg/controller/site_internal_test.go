package controller

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

const (
	mib      = 1 << 20
	ownNode  = "node-1"
	nextNode = "node-2"
)

var errBroken = errors.New("broken")

// site is a controller with pools and a state of its own, and a node that does what the test says.
type site struct {
	*Service

	groups    *Groups
	t         *testing.T
	directory string
	change    []func(*Config)
	disk      *disk
	node      *scriptedNode
	// failing is the point that fails once, with codes.OutOfRange.
	failing operation.Point
	// held is the point at which a call waits, once: it sends to reached and waits for released.
	held              operation.Point
	reached, released chan struct{}
	end               func()
}

// newSite starts a controller with the pools default and fast, whose configuration is changed before.
func newSite(t *testing.T, change ...func(*Config)) *site {
	t.Helper()

	s := &site{
		t: t, directory: t.TempDir(), change: change, disk: &disk{},
		node: &scriptedNode{served: map[string]bool{ownNode: true}, used: map[string]string{}, canFreeze: true},
	}
	s.start()
	t.Cleanup(func() { s.end() })

	return s
}

// without has the controller not have a capability.
func without(names ...string) func(*Config) {
	return func(c *Config) {
		set, err := capability.Without(names...)
		if err == nil {
			c.Capabilities = set
		}
	}
}

// at fails or holds the call at the point that is chosen, once.
func (s *site) at(_ context.Context, point operation.Point, _ ...string) error {
	if point == s.held {
		s.held = ""
		s.reached <- struct{}{}
		<-s.released
	}

	if point != s.failing {
		return nil
	}

	s.failing = ""

	return rpc.Errorf(codes.OutOfRange, "at %s", point)
}

func (s *site) pool(name string) string { return filepath.Join(s.directory, name) }

func (s *site) start() {
	s.t.Helper()

	log := slog.New(slog.DiscardHandler)
	store := state.New(filepath.Join(s.directory, "state"), state.Options{Log: log, LazyFlush: time.Hour, FS: s.disk})
	pools, err := poolset.Open(map[string]string{"default": s.pool("default"), "fast": s.pool("fast")})
	require.NoError(s.t, err)

	config := Config{
		NodeID: ownNode, Store: store, Pools: pools, Operations: operation.NewGroup(),
		Admission: &pool.Admission{Overcommit: 1, Capacities: map[string]int64{}}, Point: s.at, Log: log,
		Settings: Settings{Nodes: []string{nextNode}, CopyGrace: time.Minute}, LocalNode: s.node, Removals: removal.New(log),
	}
	for _, each := range s.change {
		each(&config)
	}

	s.Service, err = New(config)
	require.NoError(s.t, err)
	require.NoError(s.t, store.Open(s.t.Context()))
	require.NoError(s.t, s.Recover(s.t.Context()))

	for _, each := range pools.Served() {
		require.NoError(s.t, s.RecoverPool(s.t.Context(), each))
	}

	s.groups = NewGroups(s.Service)
	running, stop := context.WithCancel(context.Background())

	var removing sync.WaitGroup

	removing.Go(func() { config.Removals.Run(running) })

	s.end = func() {
		stop()
		removing.Wait()
		require.NoError(s.t, config.Operations.Drain(context.Background()))

		_ = store.Close() // of a test whose state has failed

		require.NoError(s.t, pools.Close())
	}
}

// restart ends the controller and starts it again, with a state that takes changes.
func (s *site) restart(change ...func(*Config)) {
	s.t.Helper()

	s.end()
	s.disk.failAt(0)

	s.change = append(s.change, change...)
	s.start()
}

// failPool makes a pool unavailable.
func (s *site) failPool(name string) {
	s.t.Helper()

	_ = s.config.Pools.Fail(name, errBroken) // of a pool that is closed
}

// settle waits until all that is removed in the background is gone.
func (s *site) settle() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.config.Removals.Len() == 0 }, await.Limit, time.Millisecond,
		"want: the removals succeed")
}

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func createRequestOf(name string, change ...func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 4 * mib},
		VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}, Parameters: map[string]string{},
	}
	for _, each := range change {
		each(request)
	}

	return request
}

func with(key, value string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.Parameters[key] = value }
}

func withMutable(r *csi.CreateVolumeRequest) {
	r.MutableParameters = map[string]string{"readIOPS": "100"}
}

func ofVolume(id string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) {
		r.VolumeContentSource = &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}},
		}
	}
}

func ofSnapshot(id string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) {
		r.VolumeContentSource = &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}},
		}
	}
}

// create makes a volume and returns its id.
func (s *site) create(name string, change ...func(*csi.CreateVolumeRequest)) string {
	s.t.Helper()

	made, err := s.CreateVolume(s.t.Context(), createRequestOf(name, change...))
	require.NoError(s.t, err)

	return made.GetVolume().GetVolumeId()
}

// snapshot takes a snapshot and returns its id.
func (s *site) snapshot(name, sourceID string) string {
	s.t.Helper()

	made, err := s.CreateSnapshot(s.t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: sourceID})
	require.NoError(s.t, err)

	return made.GetSnapshot().GetSnapshotId()
}

// group takes a group snapshot.
func (s *site) group(name string, sourceIDs ...string) *csi.VolumeGroupSnapshot {
	s.t.Helper()

	made, err := s.groups.CreateVolumeGroupSnapshot(s.t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: name, SourceVolumeIds: sourceIDs,
	})
	require.NoError(s.t, err)

	return made.GetGroupSnapshot()
}

func (s *site) publish(ctx context.Context, id, nodeID string) error {
	_, err := s.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: nodeID, VolumeCapability: mountCapability(),
	})

	return err
}

func (s *site) unpublish(ctx context.Context, id, nodeID string) error {
	_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: nodeID})

	return err
}

func (s *site) remove(ctx context.Context, id string) error {
	_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

	return err
}

func (s *site) expand(ctx context.Context, id string, bytes int64) error {
	_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})

	return err
}

func (s *site) modify(ctx context.Context, id, key, value string) error {
	_, err := s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: map[string]string{key: value},
	})

	return err
}

// inPool returns the names in a directory of a pool.
func (s *site) inPool(name, directory string) []string {
	s.t.Helper()

	entries, err := os.ReadDir(filepath.Join(s.pool(name), directory))
	require.NoError(s.t, err)

	names := make([]string, 0, len(entries))
	for _, each := range entries {
		names = append(names, each.Name())
	}

	return names
}

// spoil removes a directory of a pool, which has it open, until restore is called.
func (s *site) spoil(name, directory string) (restore func()) {
	s.t.Helper()

	path := filepath.Join(s.pool(name), directory)
	aside := path + ".aside"
	require.NoError(s.t, os.Mkdir(aside, 0o750))

	for _, each := range s.inPool(name, directory) {
		require.NoError(s.t, os.Rename(filepath.Join(path, each), filepath.Join(aside, each)))
	}

	require.NoError(s.t, os.Remove(path))

	return func() {
		s.t.Helper()
		require.NoError(s.t, os.Rename(aside, path))
		s.restart()
	}
}

// scriptedNode is a local node that uses and answers what the test says.
type scriptedNode struct {
	NoLocalNode

	served map[string]bool
	// known are ids of volumes, used those in use with their paths.
	known     []string
	used      map[string]string
	canFreeze bool
	// usedFrom is the question from which on each volume is in use; 0 is none.
	usedFrom, asked int
	// The errors of its methods.
	useErr, supportErr, applyErr, freezeErr error

	// whileFrozen, if set, is called before the copies are taken.
	whileFrozen func()

	mu sync.Mutex
	// What it was asked for.
	frozen             [][]string
	deleted, truncated []string
}

// inUse has the known volumes be in use.
func (n *scriptedNode) inUse() {
	for _, id := range n.known {
		n.used[id] = "/target"
	}
}

func (n *scriptedNode) Serves(nodeID string) bool { return n.served[nodeID] }

func (n *scriptedNode) InUse(id string) (path string, used bool, err error) {
	n.mu.Lock()
	n.asked++
	now := n.usedFrom > 0 && n.asked >= n.usedFrom
	n.mu.Unlock()

	path, used = n.used[id]

	return path, used || now, n.useErr
}

func (n *scriptedNode) CheckSupported(volume.Mutable) error { return n.supportErr }

func (n *scriptedNode) ApplyMutable(context.Context, string) error { return n.applyErr }

func (n *scriptedNode) CanFreeze(string) bool { return n.canFreeze }

func (n *scriptedNode) WithFrozen(ctx context.Context, ids []string, within func(context.Context) error) error {
	n.mu.Lock()
	n.frozen = append(n.frozen, ids)
	n.mu.Unlock()

	if n.whileFrozen != nil {
		n.whileFrozen()
	}

	return errors.Join(within(ctx), n.freezeErr)
}

func (n *scriptedNode) Deleted(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.deleted = append(n.deleted, id)
}

func (n *scriptedNode) Truncated(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.truncated = append(n.truncated, id)
}

// disk is a filesystem of a state of which one sync fails.
type disk struct {
	mu sync.Mutex
	// left counts down to the sync that fails; 0 is none.
	left   int
	failed bool
}

// failAt has the nth sync from now on fail; 0 is none.
func (d *disk) failAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.left, d.failed = n, false
}

func (d *disk) hasFailed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.failed
}

func (d *disk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.left == 0 {
		return nil
	}

	d.left--
	if d.left > 0 {
		return nil
	}

	d.failed = true

	return errBroken
}

func (d *disk) OpenFile(name string, flag int, perm fs.FileMode) (state.File, error) {
	file, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}

	return &diskFile{file, d}, nil
}

func (d *disk) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }
func (d *disk) Remove(name string) error             { return os.Remove(name) }
func (d *disk) SyncDir(string) error                 { return nil }

type diskFile struct {
	*os.File

	disk *disk
}

func (f *diskFile) Sync() error   { return f.disk.sync() }
func (f *diskFile) Forget() error { return nil }

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	all := map[string]syscallfault.Operation{}
	for _, each := range onceCalls() {
		all[each.name] = each.begin
	}

	syscallfault.ServeIfAsked(all)
	os.Exit(m.Run())
}

var errOnce = errors.New("the controller is wrong")

// onceController is a controller with one pool, in which nothing runs in the background.
type onceController struct {
	*Service

	pools *pool.Set
	store *state.Store
	// source and snapshots are the ids of what was made before the call.
	source    string
	snapshots []string
	group     string
}

func openOnce(ctx context.Context, directory string) (*onceController, error) {
	log := slog.New(slog.DiscardHandler)
	c := &onceController{store: state.New(filepath.Join(directory, "state"), state.Options{Log: log, LazyFlush: time.Hour})}

	var err error
	if c.pools, err = poolset.Open(map[string]string{"default": filepath.Join(directory, "pool")}); err != nil {
		return nil, err
	}

	c.Service, err = New(Config{
		NodeID: ownNode, Store: c.store, Pools: c.pools, Operations: operation.NewGroup(), Admission: &pool.Admission{Overcommit: 1},
		Log: log, Settings: Settings{CopyGrace: time.Hour}, Removals: removal.New(log),
	})
	if err != nil {
		return nil, err
	}

	if err := c.store.Open(ctx); err != nil {
		return nil, err
	}

	err = c.Recover(ctx)
	for _, each := range c.pools.Served() {
		err = errors.Join(err, c.RecoverPool(ctx, each))
	}

	return c, err
}

// create makes the volume, with content.
func (c *onceController) create(ctx context.Context, change ...func(*csi.CreateVolumeRequest)) error {
	made, err := c.CreateVolume(ctx, createRequestOf("source", change...))
	if err != nil {
		return err
	}

	c.source = made.GetVolume().GetVolumeId()

	path := filepath.Join(c.pools.Served()[0].Path(), "images", c.source+".img")
	if made.GetVolume().GetVolumeContext()["backing"] == "directory" {
		path = filepath.Join(c.pools.Served()[0].Path(), "directories", c.source, "file")
	}

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}

	_, err = file.WriteString("content")

	return errors.Join(err, file.Close())
}

func (c *onceController) takeSnapshot(ctx context.Context) error {
	made, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: c.source})
	if err == nil {
		c.snapshots = []string{made.GetSnapshot().GetSnapshotId()}
	}

	return err
}

func (c *onceController) takeGroup(ctx context.Context) error {
	made, err := NewGroups(c.Service).CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{c.source}})
	if err == nil {
		c.group, c.snapshots = made.GetGroupSnapshot().GetGroupSnapshotId(), []string{made.GetGroupSnapshot().GetSnapshots()[0].GetSnapshotId()}
	}

	return err
}

func (c *onceController) deleteVolume(ctx context.Context) error {
	_, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: c.source})

	return err
}

func (c *onceController) deleteSnapshot(ctx context.Context) error {
	_, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: c.snapshots[0]})

	return err
}

func (c *onceController) deleteGroup(ctx context.Context) error {
	_, err := NewGroups(c.Service).DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: c.group, SnapshotIds: c.snapshots})

	return err
}

func (c *onceController) copyVolume(ctx context.Context) error {
	_, err := c.CreateVolume(ctx, createRequestOf("copy", ofVolume(c.source)))

	return err
}

func (c *onceController) restoreSnapshot(ctx context.Context) error {
	_, err := c.CreateVolume(ctx, createRequestOf("copy", ofSnapshot(c.snapshots[0])))

	return err
}

func (c *onceController) expand(ctx context.Context) error {
	_, err := c.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: c.source, CapacityRange: &csi.CapacityRange{RequiredBytes: 8 * mib},
	})

	return err
}

func (c *onceController) modify(ctx context.Context) error {
	_, err := c.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: c.source, MutableParameters: map[string]string{"readIOPS": "7"}})

	return err
}

func (c *onceController) attach(ctx context.Context) error {
	_, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: c.source, NodeId: ownNode, VolumeCapability: mountCapability()})

	return err
}

// end requires that the pool has what is recorded, and nothing else, and ends the controller.
func (c *onceController) end() error {
	served := c.pools.Served()[0]
	wanted := []string{}

	var err error

	for id, v := range c.catalog.Volumes.Ascend("") {
		if v.Phase != record.PhaseReady {
			continue // its removal is repeated
		}

		wanted = append(wanted, id)

		size, sizeErr := served.Size(v.Object())
		if v.Parameters.Backing == volume.BackingImage && sizeErr == nil && size != v.CapacityBytes {
			sizeErr = fmt.Errorf("%w: the image has %d bytes, not %d", errOnce, size, v.CapacityBytes)
		}

		err = errors.Join(err, sizeErr)
	}

	for id, each := range c.catalog.Snapshots.Ascend("") {
		if each.Phase == record.PhaseReady {
			wanted = append(wanted, id)
		}
	}

	var stored []string

	for _, directory := range []string{"images", "directories", "snapshots"} {
		found, readErr := os.ReadDir(filepath.Join(served.Path(), directory))
		err = errors.Join(err, readErr)

		for _, each := range found {
			stored = append(stored, strings.TrimSuffix(each.Name(), ".img"))
		}
	}

	slices.Sort(wanted)
	slices.Sort(stored)

	if !slices.Equal(wanted, stored) {
		err = errors.Join(err, fmt.Errorf("%w: the pool has %v, not %v", errOnce, stored, wanted))
	}

	return errors.Join(err, c.config.Operations.Drain(context.Background()), c.store.Close(), c.pools.Close())
}

type onceCall struct {
	name   string
	before []func(c *onceController, ctx context.Context) error
	run    func(c *onceController, ctx context.Context) error
}

func onceCalls() []onceCall {
	type call = func(c *onceController, ctx context.Context) error

	made := func(change ...func(*csi.CreateVolumeRequest)) call {
		return func(c *onceController, ctx context.Context) error { return c.create(ctx, change...) }
	}
	image, directory := made(), made(with("backing", "directory"))
	snapshot, group := (*onceController).takeSnapshot, (*onceController).takeGroup

	return []onceCall{
		{"create with limits", nil, made(withMutable)},
		{"create a thick image", nil, made(with("provisioning", "thick"))},
		{"create a directory", nil, directory},
		{"clone", []call{image}, (*onceController).copyVolume},
		{"restore", []call{image, snapshot}, (*onceController).restoreSnapshot},
		{"snapshot", []call{image}, snapshot},
		{"group snapshot", []call{image}, group},
		{"publish", []call{image}, (*onceController).attach},
		{"expand", []call{image}, (*onceController).expand},
		{"expand after use", []call{image, (*onceController).attach}, (*onceController).expand},
		{"expand a directory after use", []call{directory, (*onceController).attach}, (*onceController).expand},
		{"modify", []call{image}, (*onceController).modify},
		{"delete", []call{image}, (*onceController).deleteVolume},
		{"delete a directory", []call{directory}, (*onceController).deleteVolume},
		{"delete a snapshot", []call{image, snapshot}, (*onceController).deleteSnapshot},
		{"delete group snapshot", []call{image, group}, (*onceController).deleteGroup},
	}
}

func (o *onceCall) begin(directory string) (run, end func() error, err error) {
	ctx := context.Background()

	c, err := openOnce(ctx, directory)
	if err != nil {
		return nil, nil, err
	}

	for _, each := range o.before {
		if err == nil {
			err = each(c, ctx)
		}
	}

	return func() error { return o.run(c, ctx) }, c.end, err
}

// onceTolerated are calls that may fail without a report: those on the state, which other tests have fail, on
// parameters that are read and then written again, and on leftovers, which the next start removes, and on locks
// that end with their file.
var onceTolerated = regexp.MustCompile(" state/|^(fstatat|openat.0xa0000|unlinkat) pool/attributes(/|#1\\b)|" +
	"^unlinkat pool/scratch/|^flock pool/images/|^readlinkat pool/directories/|^getdents64 pool/removing/")

// TestEachCallFailsOnce has each system call in the pool fail once: the call that makes it fails, and
// succeeds when it is repeated. The pool has what is recorded, then.
func TestEachCallFailsOnce(t *testing.T) {
	t.Parallel()

	for _, each := range onceCalls() {
		t.Run(each.name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Causes: true, Operation: each.name, Reported: []string{""}, Except: onceTolerated,
				Lossy: []string{"*", "*/*", "*/*/*", "*/*/*/*"}, Verify: func(*testing.T, string) {},
			})
		})
	}
}

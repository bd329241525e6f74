package conformance_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestAdvertisedRPCsSucceed asks which capabilities a driver has, and succeeds with each RPC that they
// are for.
func TestAdvertisedRPCsSucceed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.VolumeMountGroup = true })
	_, err := d.Capabilities(t.Context())
	require.NoError(t, err)

	f := &fixture{Driver: d, ctx: t.Context()}
	f.used = harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "used", CapacityRange: harness.RequiredBytes(size)})
	f.free = harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "free", CapacityRange: harness.RequiredBytes(size)})
	harness.BringUp(t, d, f.used)

	// The node first: a kernel may not permit that a mounted filesystem grows.
	require.NoError(t, f.node())
	require.NoError(t, f.volumes())
	require.NoError(t, f.health())
	require.NoError(t, f.copies(t))

	harness.TakeDown(t, d, f.used)
	harness.DeleteVolume(t, d, f.used.VolumeID)
}

// first returns the first error of calls, which end there.
func first(calls ...func() error) error {
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}

	return nil
}

// volumes calls what the controller has for a volume that is published.
func (f *fixture) volumes() error {
	return first(
		func() error { return f.validate(f.used.VolumeID, mounted) },
		func() error { return f.validate(f.used.VolumeID, mounted) },
		func() error { _, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{}); return err },
		func() error { _, err := f.GetCapacity(f.ctx, &csi.GetCapacityRequest{}); return err },
		func() error {
			_, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: f.used.VolumeID})
			return err
		},
		func() error { return f.expand(f.used.VolumeID, harness.RequiredBytes(2*size), nil) },
		func() error { return f.modify(f.used.VolumeID, map[string]string{"checkPeriod": "1h"}) },
	)
}

// node calls what the node has for it.
func (f *fixture) node() error {
	return first(
		func() error { _, err := f.NodeGetInfo(f.ctx, &csi.NodeGetInfoRequest{}); return err },
		func() error { return f.stats(f.used.VolumeID, f.used.TargetPath) },
		func() error { return f.nodeExpand(func(*csi.NodeExpandVolumeRequest) {}) },
	)
}

func (f *fixture) health() error {
	return first(
		func() error {
			_, err := f.ControllerGetVolumeHealth(f.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: f.used.VolumeID})
			return err
		},
		func() error {
			_, err := f.ControllerListVolumeHealth(f.ctx, &csi.ControllerListVolumeHealthRequest{})
			return err
		},
		func() error {
			_, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: f.used.VolumeID})
			return err
		},
		func() error {
			_, err := f.NodeGetStorageHealth(f.ctx, &csi.NodeGetStorageHealthRequest{})
			return err
		},
	)
}

// copies makes and removes copies of a volume that is not attached.
func (f *fixture) copies(t *testing.T) error {
	t.Helper()

	id := harness.TakeSnapshot(t, f.Driver, f.free.VolumeID, "snapshot")
	restored := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "restored", VolumeContentSource: harness.FromSnapshot(id)})
	cloned := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "cloned", VolumeContentSource: harness.FromVolume(f.free.VolumeID)})
	later := harness.TakeSnapshot(t, f.Driver, f.free.VolumeID, "later")

	grouped, err := f.CreateVolumeGroupSnapshot(f.ctx, &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{restored.VolumeID, cloned.VolumeID},
	})
	require.NoError(t, err)

	f.group = grouped.GetGroupSnapshot().GetGroupSnapshotId()
	for _, each := range grouped.GetGroupSnapshot().GetSnapshots() {
		f.members = append(f.members, each.GetSnapshotId())
	}

	return first(
		func() error { _, err := f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{}); return err },
		func() error { _, err := f.GetSnapshot(f.ctx, &csi.GetSnapshotRequest{SnapshotId: id}); return err },
		func() error { return f.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id}) },
		func() error {
			return f.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: id, TargetSnapshotId: later})
		},
		func() error {
			_, err := f.GetVolumeGroupSnapshot(f.ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: f.group, SnapshotIds: f.members})
			return err
		},
		func() error {
			_, err := f.DeleteVolumeGroupSnapshot(f.ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: f.group, SnapshotIds: f.members})
			return err
		},
		func() error {
			_, err := f.DeleteSnapshot(f.ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
			return err
		},
	)
}

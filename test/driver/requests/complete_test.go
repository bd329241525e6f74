package requests_test

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// fixture is a driver with what complete requests need.
type fixture struct {
	*harness.Driver

	// used is published, without root only to its node; of idle and deletable are snapshots, and deletable may be deleted.
	used, idle, deletable *csiclient.Publication
	// snapshots are of idle, the older one first.
	snapshots [2]string
	// group and deletableGroup are groups of snapshots of idle.
	group, deletableGroup *csi.VolumeGroupSnapshot
}

const small = 16 * harness.MiB

func newFixture(t *testing.T, options ...harness.Option) *fixture {
	t.Helper()

	f := &fixture{Driver: harness.Start(t, append([]harness.Option{everyCapability, harness.EventsOnly}, options...)...)}
	volume := func(name string, parameters map[string]string, capability *csi.VolumeCapability) *csiclient.Publication {
		return harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{
			Name: name, CapacityRange: harness.RequiredBytes(small), Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
		})
	}

	f.used = volume("used", harness.DirectoryBacked(), csiclient.MountCapability(harness.MultiWriter, ""))
	f.idle = volume("idle", nil, csiclient.BlockCapability(harness.Writer))
	f.deletable = volume("deletable", nil, csiclient.BlockCapability(harness.Writer))

	if namespace.Rooted() {
		harness.BringUp(t, f.Driver, f.used)
	} else {
		require.NoError(t, f.Attach(t.Context(), f.used))
		require.NoError(t, os.MkdirAll(f.used.StagingPath, 0o750))
	}

	f.snapshots = [2]string{
		harness.TakeSnapshot(t, f.Driver, f.idle.VolumeID, "older"), harness.TakeSnapshot(t, f.Driver, f.idle.VolumeID, "newer"),
	}

	for name, group := range map[string]**csi.VolumeGroupSnapshot{"group": &f.group, "deletable": &f.deletableGroup} {
		made, err := f.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: name, SourceVolumeIds: []string{f.idle.VolumeID},
		})
		require.NoError(t, err)

		*group = made.GetGroupSnapshot()
	}

	return f
}

func membersOf(group *csi.VolumeGroupSnapshot) []string {
	ids := make([]string, 0, len(group.GetSnapshots()))
	for _, each := range group.GetSnapshots() {
		ids = append(ids, each.GetSnapshotId())
	}

	return ids
}

// complete returns a request of each RPC that has fields. It succeeds, and has what the RPC may have
// unless the driver would then do something else. All that generated tests send is derived from it.
func (f *fixture) complete() map[protoreflect.Name]proto.Message {
	all := f.ofController()
	maps.Copy(all, f.ofSnapshots())
	maps.Copy(all, f.ofNode())

	for _, request := range all {
		for _, field := range conformance.FieldsOf(request.ProtoReflect().Descriptor()) {
			if field.IsSecret() {
				field.SetText(request, "user", "u")
			}
		}
	}

	return all
}

func (f *fixture) ofController() map[protoreflect.Name]proto.Message {
	asBlock, size := csiclient.BlockCapability(harness.Writer), harness.Between(small, 2*small)

	return map[protoreflect.Name]proto.Message{
		"CreateVolume": &csi.CreateVolumeRequest{
			Name: "made", CapacityRange: size, VolumeCapabilities: []*csi.VolumeCapability{asBlock},
			Parameters: map[string]string{"provisioning": "thin"}, VolumeContentSource: harness.FromSnapshot(f.snapshots[0]),
			AccessibilityRequirements: harness.Topology(harness.NodeSegment, harness.NodeID),
			MutableParameters:         map[string]string{"readAheadKiB": "128"},
		},
		"DeleteVolume": &csi.DeleteVolumeRequest{VolumeId: f.deletable.VolumeID},
		"ControllerPublishVolume": &csi.ControllerPublishVolumeRequest{
			VolumeId: f.used.VolumeID, NodeId: harness.NodeID, VolumeCapability: f.used.Capability, VolumeContext: f.used.VolumeContext,
		},
		"ControllerUnpublishVolume": &csi.ControllerUnpublishVolumeRequest{VolumeId: f.idle.VolumeID, NodeId: harness.NodeID},
		"ValidateVolumeCapabilities": &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: f.used.VolumeID, VolumeContext: f.used.VolumeContext, VolumeCapabilities: []*csi.VolumeCapability{f.used.Capability},
			Parameters: harness.DirectoryBacked(),
		},
		"ListVolumes": &csi.ListVolumesRequest{MaxEntries: 1},
		"GetCapacity": &csi.GetCapacityRequest{
			VolumeCapabilities: []*csi.VolumeCapability{asBlock}, Parameters: map[string]string{"pool": "default"},
			AccessibleTopology: &csi.Topology{Segments: map[string]string{harness.NodeSegment: harness.NodeID}},
		},
		"ControllerExpandVolume": &csi.ControllerExpandVolumeRequest{
			VolumeId: f.used.VolumeID, CapacityRange: size, VolumeCapability: f.used.Capability,
		},
		"ControllerGetVolume": &csi.ControllerGetVolumeRequest{VolumeId: f.used.VolumeID},
		"ControllerModifyVolume": &csi.ControllerModifyVolumeRequest{
			VolumeId: f.idle.VolumeID, MutableParameters: map[string]string{"readAheadKiB": "128"},
		},
		"ControllerGetVolumeHealth":  &csi.ControllerGetVolumeHealthRequest{VolumeId: f.used.VolumeID},
		"ControllerListVolumeHealth": &csi.ControllerListVolumeHealthRequest{MaxEntries: 1},
	}
}

func (f *fixture) ofSnapshots() map[protoreflect.Name]proto.Message {
	return map[protoreflect.Name]proto.Message{
		"CreateSnapshot": &csi.CreateSnapshotRequest{Name: "made", SourceVolumeId: f.idle.VolumeID},
		"DeleteSnapshot": &csi.DeleteSnapshotRequest{SnapshotId: f.deletable.VolumeID},
		"ListSnapshots":  &csi.ListSnapshotsRequest{MaxEntries: 1, SourceVolumeId: f.idle.VolumeID},
		"GetSnapshot":    &csi.GetSnapshotRequest{SnapshotId: f.snapshots[0]},
		"CreateVolumeGroupSnapshot": &csi.CreateVolumeGroupSnapshotRequest{
			Name: "made", SourceVolumeIds: []string{f.idle.VolumeID},
		},
		"DeleteVolumeGroupSnapshot": &csi.DeleteVolumeGroupSnapshotRequest{
			GroupSnapshotId: f.deletableGroup.GetGroupSnapshotId(), SnapshotIds: membersOf(f.deletableGroup),
		},
		"GetVolumeGroupSnapshot": &csi.GetVolumeGroupSnapshotRequest{
			GroupSnapshotId: f.group.GetGroupSnapshotId(), SnapshotIds: membersOf(f.group),
		},
		"GetMetadataAllocated": &csi.GetMetadataAllocatedRequest{SnapshotId: f.snapshots[0], MaxResults: 1},
		"GetMetadataDelta": &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: f.snapshots[0], TargetSnapshotId: f.snapshots[1], MaxResults: 1,
		},
	}
}

func (f *fixture) ofNode() map[protoreflect.Name]proto.Message {
	return map[protoreflect.Name]proto.Message{
		"NodeStageVolume": &csi.NodeStageVolumeRequest{
			VolumeId: f.used.VolumeID, PublishContext: f.used.PublishContext, StagingTargetPath: f.used.StagingPath,
			VolumeCapability: f.used.Capability, VolumeContext: f.used.VolumeContext,
		},
		"NodeUnstageVolume": &csi.NodeUnstageVolumeRequest{VolumeId: f.idle.VolumeID, StagingTargetPath: f.idle.StagingPath},
		"NodePublishVolume": &csi.NodePublishVolumeRequest{
			VolumeId: f.used.VolumeID, PublishContext: f.used.PublishContext, StagingTargetPath: f.used.StagingPath,
			TargetPath: f.used.TargetPath, VolumeCapability: f.used.Capability, VolumeContext: f.used.VolumeContext,
		},
		"NodeUnpublishVolume": &csi.NodeUnpublishVolumeRequest{VolumeId: f.idle.VolumeID, TargetPath: f.idle.TargetPath},
		"NodeGetVolumeStats": &csi.NodeGetVolumeStatsRequest{
			VolumeId: f.used.VolumeID, VolumePath: f.used.TargetPath, StagingTargetPath: f.used.StagingPath,
		},
		"NodeExpandVolume": &csi.NodeExpandVolumeRequest{
			VolumeId: f.used.VolumeID, VolumePath: f.used.TargetPath, StagingTargetPath: f.used.StagingPath,
			CapacityRange: harness.Between(small, 2*small), VolumeCapability: f.used.Capability,
		},
		"NodeGetVolumeHealth": &csi.NodeGetVolumeHealthRequest{
			VolumeId: f.used.VolumeID, VolumePublishPath: f.used.TargetPath, StagingTargetPath: f.used.StagingPath,
		},
		"NodeGetStorageHealth": &csi.NodeGetStorageHealthRequest{},
	}
}

// request is an RPC with a complete request.
type request struct {
	method  protoreflect.MethodDescriptor
	message proto.Message
}

// name returns the RPC's name.
func (r request) name() string { return string(r.method.Name()) }

// requests returns the complete requests of all RPCs of CSI. It fails the test for an RPC that complete
// does not have, and for an entry without an RPC.
func (f *fixture) requests(t *testing.T) []request {
	t.Helper()

	var found []request

	table := f.complete()

	for _, method := range conformance.Methods() {
		message := table[method.Name()]
		delete(table, method.Name())

		if method.Input().Fields().Len() == 0 {
			var err error

			message, err = conformance.NewMessage(method.Input())
			require.NoError(t, err)
		}

		require.NotNil(t, message, "fixture.complete has no request of %s", method.FullName())
		found = append(found, request{method, message})
	}

	require.Empty(t, slices.Collect(maps.Keys(table)), "CSI has no such RPC")

	return found
}

// TestCompleteRequestsSucceed: the others are derived from them. A refusal of a derived one is for
// what was changed in it.
func TestCompleteRequestsSucceed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	f := newFixture(t)

	for _, each := range f.requests(t) {
		t.Run(each.name(), func(t *testing.T) {
			require.NoError(t, conformance.Call(t.Context(), f.Conn(), each.method, each.message))
		})
	}
}

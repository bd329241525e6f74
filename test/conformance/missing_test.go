package conformance_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// complete returns a request for each RPC that has fields that are REQUIRED. Nothing is missing in it.
func complete(f *fixture) []proto.Message {
	staging, target := filepath.Join(f.Config.KubeletDir, "staging-of-none"), filepath.Join(f.Config.KubeletDir, "target-of-none")
	writers := []*csi.VolumeCapability{mounted}

	return []proto.Message{
		&csi.CreateVolumeRequest{Name: "incomplete", VolumeCapabilities: writers},
		&csi.DeleteVolumeRequest{VolumeId: unknownID},
		&csi.ControllerPublishVolumeRequest{VolumeId: f.free.VolumeID, NodeId: harness.NodeID, VolumeCapability: mounted},
		&csi.ControllerUnpublishVolumeRequest{VolumeId: f.free.VolumeID},
		&csi.ValidateVolumeCapabilitiesRequest{VolumeId: f.free.VolumeID, VolumeCapabilities: writers},
		&csi.ControllerGetVolumeRequest{VolumeId: f.free.VolumeID},
		&csi.ControllerGetVolumeHealthRequest{VolumeId: f.free.VolumeID},
		&csi.ControllerExpandVolumeRequest{VolumeId: f.free.VolumeID, CapacityRange: harness.RequiredBytes(size)},
		&csi.ControllerModifyVolumeRequest{VolumeId: f.free.VolumeID, MutableParameters: map[string]string{"checkPeriod": "48h"}},
		&csi.CreateSnapshotRequest{SourceVolumeId: f.free.VolumeID, Name: "incomplete"},
		&csi.DeleteSnapshotRequest{SnapshotId: f.snapshot},
		&csi.GetSnapshotRequest{SnapshotId: f.snapshot},
		&csi.CreateVolumeGroupSnapshotRequest{Name: "incomplete", SourceVolumeIds: []string{f.free.VolumeID}},
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: f.group, SnapshotIds: f.members},
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: f.group, SnapshotIds: f.members},
		&csi.GetMetadataAllocatedRequest{SnapshotId: f.snapshot},
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: f.snapshot, TargetSnapshotId: f.members[0]},
		&csi.NodeStageVolumeRequest{VolumeId: f.free.VolumeID, StagingTargetPath: staging, VolumeCapability: mounted},
		&csi.NodeUnstageVolumeRequest{VolumeId: f.free.VolumeID, StagingTargetPath: staging},
		&csi.NodePublishVolumeRequest{VolumeId: f.used.VolumeID, StagingTargetPath: f.used.StagingPath, TargetPath: target, VolumeCapability: mounted},
		&csi.NodeUnpublishVolumeRequest{VolumeId: f.free.VolumeID, TargetPath: target},
		&csi.NodeGetVolumeStatsRequest{VolumeId: f.used.VolumeID, VolumePath: f.used.TargetPath},
		&csi.NodeGetVolumeHealthRequest{VolumeId: f.used.VolumeID},
		&csi.NodeExpandVolumeRequest{VolumeId: f.used.VolumeID, VolumePath: f.used.TargetPath},
	}
}

// TestEveryRequiredField leaves out each field of each request that csi.proto calls REQUIRED, one at a
// time: that is refused, with the field's name, and changes nothing.
func TestEveryRequiredField(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	f, requests := newFixture(t), map[protoreflect.FullName]proto.Message{}
	for _, each := range complete(f) {
		requests[each.ProtoReflect().Descriptor().FullName()] = each
	}

	before := harness.Everything(t, f.Driver)

	for method := range methods {
		name := method.Input().FullName()
		for _, field := range conformance.Required[name] {
			// A bool and a number have a default, which is not sent.
			descriptor := method.Input().Fields().ByName(field)
			if descriptor.Kind() == protoreflect.BoolKind || descriptor.Kind() == protoreflect.Int64Kind {
				continue
			}

			t.Run(string(method.Name())+" "+string(field), func(t *testing.T) {
				require.Contains(t, requests, name, "add a request for the RPC")

				request := proto.Clone(requests[name])
				require.True(t, request.ProtoReflect().Has(descriptor), "%s is missing before", field)
				request.ProtoReflect().Clear(descriptor)

				// Of what is repeated the message may name one.
				harness.RequireCode(t, invoke(f.plain, f.Conn(), method, request), codes.InvalidArgument, strings.TrimSuffix(string(field), "ies"))
			})
		}
	}

	require.Equal(t, before, harness.Everything(t, f.Driver))
}

// methods are the RPCs of all services.
func methods(yield func(protoreflect.MethodDescriptor) bool) {
	services := csi.File_csi_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			if !yield(services.Get(i).Methods().Get(j)) {
				return
			}
		}
	}
}

// invoke calls an RPC, and reads all messages of a stream.
func invoke(ctx context.Context, conn grpc.ClientConnInterface, method protoreflect.MethodDescriptor, request proto.Message) error {
	name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	if !method.IsStreamingServer() {
		return conn.Invoke(ctx, name, request, dynamicpb.NewMessage(method.Output()))
	}

	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err == nil {
		err = stream.SendMsg(request)
	}

	if err == nil {
		err = stream.CloseSend()
	}

	for err == nil {
		err = stream.RecvMsg(dynamicpb.NewMessage(method.Output()))
	}

	return exceptEnd(err)
}

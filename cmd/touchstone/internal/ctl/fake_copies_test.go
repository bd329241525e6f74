package ctl_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// cutAt is the creation time of all snapshots of the fake.
func cutAt() *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 11, 21, 9, 8, 7, 6_000_000, time.UTC))
}

// snapshotNumber is snapshot-0 of a size that is unknown, snapshot-1 of volume-1, or one of those of group-1.
func snapshotNumber(number int) *csi.Snapshot {
	snapshot := &csi.Snapshot{
		SnapshotId:         fmt.Sprintf("snapshot-%d", number),
		SourceVolumeId:     fmt.Sprintf("volume-%d", number),
		SizeBytes:          int64(number) * gibi,
		CreationTime:       cutAt(),
		ReadyToUse:         true,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}},
	}
	if number > 1 {
		snapshot.GroupSnapshotId = "group-1"
	}

	return snapshot
}

// copySlowly copies half of a GiB and then waits until progress was requested twice
// so that the first answer has been printed.
func (f *fake) copySlowly(ctx context.Context, object string) error {
	// It is listed only after it has copied something.
	f.beginning.Lock()

	task := f.tasks.Start("restore", object, "slow", gibi)
	defer task.End(nil)

	task.Set(gibi/2, gibi)

	asked := len(requests[*emptypb.Empty](f))

	f.beginning.Unlock()

	if f.release != nil {
		select {
		case <-f.release:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}

	const enough = 2
	for len(requests[*emptypb.Empty](f)) < asked+enough {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(time.Millisecond):
		}
	}

	return nil
}

// CreateSnapshot of the name "copied" is ready at the second call.
func (f *fake) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	snapshot := snapshotNumber(1)

	switch req.GetName() {
	case "mounted":
		return nil, status.Error(codes.FailedPrecondition, "volume-1 is in use")
	case "copied":
		snapshot.ReadyToUse = len(requests[*csi.CreateSnapshotRequest](f)) > 1
	case "lost":
		if len(requests[*csi.CreateSnapshotRequest](f)) > 1 {
			return nil, status.Error(codes.ResourceExhausted, "the pool is full")
		}

		snapshot.ReadyToUse = false
	}

	return &csi.CreateSnapshotResponse{Snapshot: snapshot}, nil
}

func (*fake) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if req.GetSnapshotId() == "snapshot-2" {
		return nil, status.Error(codes.InvalidArgument, "it is a member of group snapshot group-1 and goes with it; call DeleteVolumeGroupSnapshot")
	}

	return &csi.DeleteSnapshotResponse{}, nil
}

func (*fake) GetSnapshot(_ context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	for number := range 3 {
		if snapshot := snapshotNumber(number); snapshot.GetSnapshotId() == req.GetSnapshotId() {
			return &csi.GetSnapshotResponse{Snapshot: snapshot}, nil
		}
	}

	return nil, status.Errorf(codes.NotFound, "no snapshot %s", req.GetSnapshotId())
}

// ListSnapshots gives one snapshot a page.
func (*fake) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	const snapshots = 3

	number := 1

	if token := req.GetStartingToken(); token != "" {
		var err error
		if number, err = strconv.Atoi(token); err != nil {
			return nil, status.Error(codes.Aborted, "bad token")
		}
	}

	answer := &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshotNumber(number)}}}
	if number < snapshots && req.GetSourceVolumeId() == "" {
		answer.NextToken = strconv.Itoa(number + 1)
	}

	return answer, nil
}

func theGroup() *csi.VolumeGroupSnapshot {
	return &csi.VolumeGroupSnapshot{
		GroupSnapshotId: "group-1",
		Snapshots:       []*csi.Snapshot{snapshotNumber(2), snapshotNumber(3)},
		CreationTime:    cutAt(),
		ReadyToUse:      true,
	}
}

func (*fake) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot is ready at the second call.
func (f *fake) CreateVolumeGroupSnapshot(
	context.Context, *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	cut := theGroup()
	cut.ReadyToUse = len(requests[*csi.CreateVolumeGroupSnapshotRequest](f)) > 1

	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: cut}, nil
}

func (*fake) GetVolumeGroupSnapshot(
	context.Context, *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: theGroup()}, nil
}

func (*fake) DeleteVolumeGroupSnapshot(
	context.Context, *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// GetMetadataAllocated sends one range a message, and fails after the first for
// the snapshot "broken".
func (f *fake) GetMetadataAllocated(
	req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	f.keep(req)

	for _, offset := range []int64{0, mebi} {
		if err := stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType:   csi.BlockMetadataType_VARIABLE_LENGTH,
			VolumeCapacityBytes: gibi,
			BlockMetadata:       []*csi.BlockMetadata{{ByteOffset: offset, SizeBytes: offset/2 + 4096}},
		}); err != nil {
			return err
		}

		if req.GetSnapshotId() == "broken" {
			return status.Error(codes.Internal, "lost my place")
		}
	}

	return nil
}

func (f *fake) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	f.keep(req)

	return stream.Send(&csi.GetMetadataDeltaResponse{
		BlockMetadataType:   csi.BlockMetadataType_VARIABLE_LENGTH,
		VolumeCapacityBytes: gibi,
		BlockMetadata:       []*csi.BlockMetadata{{ByteOffset: 8192, SizeBytes: 4096}},
	})
}

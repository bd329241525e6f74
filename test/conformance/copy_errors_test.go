package conformance_test

import (
	"errors"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/test/conformance"
)

var snapshotRows = []row{
	{"CreateSnapshot", conformance.Is("other source_volume_id"), codes.AlreadyExists, func(f *fixture) error {
		_, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: f.other.VolumeID})
		return err
	}},
	{"CreateSnapshot", conformance.Is("source_volume_id unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{Name: "new", SourceVolumeId: unknownID})
		return err
	}},
	{"CreateSnapshot", conformance.Is("name missing"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{SourceVolumeId: f.free.VolumeID})
		return err
	}},
	{"DeleteSnapshot", conformance.Is("snapshot_id unknown"), codes.OK, func(f *fixture) error {
		_, err := f.DeleteSnapshot(f.ctx, &csi.DeleteSnapshotRequest{SnapshotId: unknownID})
		return err
	}},
	{"DeleteSnapshot", conformance.Is("snapshot_id of a member of a group"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.DeleteSnapshot(f.ctx, &csi.DeleteSnapshotRequest{SnapshotId: f.members[0]})
		return err
	}},
	{"GetSnapshot", conformance.Is("snapshot_id unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.GetSnapshot(f.ctx, &csi.GetSnapshotRequest{SnapshotId: unknownID})
		return err
	}},
}

var groupRows = []row{
	{"CreateVolumeGroupSnapshot", conformance.Is("other source_volume_ids"), codes.AlreadyExists, func(f *fixture) error {
		_, err := f.CreateVolumeGroupSnapshot(f.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{f.free.VolumeID}})
		return err
	}},
	{"CreateVolumeGroupSnapshot", conformance.Is("source_volume_ids unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.CreateVolumeGroupSnapshot(f.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "new", SourceVolumeIds: []string{unknownID}})
		return err
	}},
	{"DeleteVolumeGroupSnapshot", conformance.Where("snapshot_ids mismatch", func(r *csi.DeleteVolumeGroupSnapshotRequest) bool { return len(r.GetSnapshotIds()) == 1 }), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.DeleteVolumeGroupSnapshot(f.ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: f.group, SnapshotIds: f.members[:1]})
		return err
	}},
	{"DeleteVolumeGroupSnapshot", conformance.Is("group_snapshot_id unknown"), codes.OK, func(f *fixture) error {
		_, err := f.DeleteVolumeGroupSnapshot(f.ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: unknownID, SnapshotIds: f.members})
		return err
	}},
	{"GetVolumeGroupSnapshot", conformance.Where("snapshot_ids mismatch", func(r *csi.GetVolumeGroupSnapshotRequest) bool { return len(r.GetSnapshotIds()) == 1 }), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.GetVolumeGroupSnapshot(f.ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: f.group, SnapshotIds: f.members[:1]})
		return err
	}},
	{"GetVolumeGroupSnapshot", conformance.Is("group_snapshot_id unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.GetVolumeGroupSnapshot(f.ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: unknownID, SnapshotIds: f.members})
		return err
	}},
}

var listRows = []row{
	{"ListVolumes", conformance.Where("starting_token invalid", func(r *csi.ListVolumesRequest) bool { return r.GetStartingToken() == noToken }), codes.Aborted, func(f *fixture) error {
		_, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{StartingToken: noToken})
		return err
	}},
	{"ListVolumes", conformance.Is("max_entries negative"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{MaxEntries: -1})
		return err
	}},
	{"ListSnapshots", conformance.Where("starting_token invalid", func(r *csi.ListSnapshotsRequest) bool { return r.GetStartingToken() == noToken }), codes.Aborted, func(f *fixture) error {
		_, err := f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{StartingToken: noToken})
		return err
	}},
	{"ControllerListVolumeHealth", conformance.Where("starting_token invalid", func(r *csi.ControllerListVolumeHealthRequest) bool { return r.GetStartingToken() == noToken }), codes.Aborted, func(f *fixture) error {
		_, err := f.ControllerListVolumeHealth(f.ctx, &csi.ControllerListVolumeHealthRequest{StartingToken: noToken})
		return err
	}},
}

var metadataRows = []row{
	{"GetMetadataAllocated", conformance.Is("snapshot_id missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.allocated(&csi.GetMetadataAllocatedRequest{})
	}},
	{"GetMetadataAllocated", conformance.Is("snapshot_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: unknownID})
	}},
	{"GetMetadataAllocated", conformance.Is("starting_offset negative"), codes.OutOfRange, func(f *fixture) error {
		return f.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: f.snapshot, StartingOffset: -1})
	}},
	{"GetMetadataAllocated", conformance.Where("starting_offset beyond the volume", func(r *csi.GetMetadataAllocatedRequest) bool { return r.GetStartingOffset() > size }), codes.OutOfRange, func(f *fixture) error {
		return f.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: f.snapshot, StartingOffset: 2 * size})
	}},
	{"GetMetadataDelta", conformance.Is("base_snapshot_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: unknownID, TargetSnapshotId: f.snapshot})
	}},
	{"GetMetadataDelta", conformance.Is("target_snapshot_id missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: f.snapshot})
	}},
	{"GetMetadataDelta", conformance.Is("starting_offset negative"), codes.OutOfRange, func(f *fixture) error {
		return f.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: f.snapshot, TargetSnapshotId: f.members[0], StartingOffset: -1})
	}},
	{"GetMetadataDelta", conformance.Where("starting_offset beyond the volume", func(r *csi.GetMetadataDeltaRequest) bool { return r.GetStartingOffset() > size }), codes.OutOfRange, func(f *fixture) error {
		return f.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: f.snapshot, TargetSnapshotId: f.members[0], StartingOffset: 2 * size})
	}},
}

func (f *fixture) allocated(request *csi.GetMetadataAllocatedRequest) error {
	stream, err := f.GetMetadataAllocated(f.ctx, request)
	for err == nil {
		_, err = stream.Recv()
	}

	return exceptEnd(err)
}

func (f *fixture) delta(request *csi.GetMetadataDeltaRequest) error {
	stream, err := f.GetMetadataDelta(f.ctx, request)
	for err == nil {
		_, err = stream.Recv()
	}

	return exceptEnd(err)
}

func exceptEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}

	return err
}

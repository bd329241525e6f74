package conformance_test

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
)

func (f *fixture) stageLike(of *csiclient.Publication, change func(p *csiclient.Publication)) error {
	other := *of
	change(&other)

	return f.Stage(f.ctx, &other)
}

var stageRows = []row{
	{"NodeStageVolume", "volume does not exist", codes.NotFound, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.VolumeID = unknownID })
	}},
	{"NodeStageVolume", "volume does not exist, not an id of this driver", codes.NotFound, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.VolumeID = "unknown" })
	}},
	{"NodeStageVolume", "volume_capability missing", codes.InvalidArgument, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.Capability = nil })
	}},
	{"NodeStageVolume", "staging_target_path missing", codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeStageVolume(f.ctx, &csi.NodeStageVolumeRequest{VolumeId: f.free.VolumeID, VolumeCapability: mounted})
		return err
	}},
	{"NodeStageVolume", "staged but incompatible: fs_type", codes.AlreadyExists, func(f *fixture) error {
		return f.stageLike(f.used, func(p *csiclient.Publication) { p.Capability = asXFS })
	}},
	{"NodeStageVolume", "staged but incompatible: access type", codes.AlreadyExists, func(f *fixture) error {
		return f.stageLike(f.used, func(p *csiclient.Publication) { p.Capability = asBlock })
	}},
	{"NodeStageVolume", "staged, the default fs_type spelled out", codes.OK, func(f *fixture) error {
		return f.stageLike(f.used, func(p *csiclient.Publication) { p.Capability = csiclient.MountCapability(harness.Writer, "ext4") })
	}},
	{"NodeStageVolume", "exceeds capabilities: fs_type", codes.FailedPrecondition, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.Capability = asXFS })
	}},
	{"NodeStageVolume", "exceeds capabilities: access mode", codes.FailedPrecondition, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.Capability = onNodes })
	}},
	{"NodeUnstageVolume", "volume_id missing", codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeUnstageVolume(f.ctx, &csi.NodeUnstageVolumeRequest{StagingTargetPath: f.free.StagingPath})
		return err
	}},
	{"NodeUnstageVolume", "volume is not staged", codes.OK, func(f *fixture) error { return f.Unstage(f.ctx, f.free) }},
}

func (f *fixture) publishLike(of *csiclient.Publication, change func(p *csiclient.Publication)) error {
	other := *of
	change(&other)

	return f.Publish(f.ctx, &other)
}

var nodePublishRows = []row{
	{"NodePublishVolume", "volume does not exist", codes.NotFound, func(f *fixture) error {
		return f.publishLike(f.free, func(p *csiclient.Publication) { p.VolumeID = unknownID })
	}},
	{"NodePublishVolume", "volume exists and is not staged", codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.free, func(*csiclient.Publication) {})
	}},
	{"NodePublishVolume", "published but incompatible: fs_type", codes.AlreadyExists, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.Capability = asXFS })
	}},
	{"NodePublishVolume", "published but incompatible: access type", codes.AlreadyExists, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.Capability = asBlock })
	}},
	{"NodePublishVolume", "published but incompatible: readonly", codes.AlreadyExists, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.ReadOnly = true })
	}},
	{"NodePublishVolume", "published, compatible", codes.OK, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.Capability = csiclient.MountCapability(harness.Writer, "ext4") })
	}},
	{"NodePublishVolume", "exceeds capabilities: fs_type", codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.TargetPath, p.Capability = p.TargetPath+"-2", asXFS })
	}},
	{"NodePublishVolume", "exceeds capabilities: access mode", codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.TargetPath, p.Capability = p.TargetPath+"-2", onNodes })
	}},
	{"NodePublishVolume", "a second target of a single-node mode", codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.TargetPath += "-2" })
	}},
	{"NodePublishVolume", "staging target path not set", codes.FailedPrecondition, func(f *fixture) error {
		_, err := f.NodePublishVolume(f.ctx, &csi.NodePublishVolumeRequest{
			VolumeId: f.used.VolumeID, TargetPath: f.used.TargetPath, VolumeCapability: mounted,
		})
		return err
	}},
	{"NodePublishVolume", "target_path missing", codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodePublishVolume(f.ctx, &csi.NodePublishVolumeRequest{
			VolumeId: f.used.VolumeID, StagingTargetPath: f.used.StagingPath, VolumeCapability: mounted,
		})
		return err
	}},
	{"NodeUnpublishVolume", "volume is not published", codes.OK, func(f *fixture) error { return f.Unpublish(f.ctx, f.free) }},
	{"NodeUnpublishVolume", "target_path missing", codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeUnpublishVolume(f.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: f.used.VolumeID})
		return err
	}},
}

func (f *fixture) nodeExpand(change func(r *csi.NodeExpandVolumeRequest)) error {
	request := &csi.NodeExpandVolumeRequest{VolumeId: f.used.VolumeID, VolumePath: f.used.TargetPath}
	change(request)

	_, err := f.NodeExpandVolume(f.ctx, request)

	return err
}

var nodeRows = []row{
	{"NodeExpandVolume", "nothing to do", codes.OK, func(f *fixture) error {
		return f.nodeExpand(func(*csi.NodeExpandVolumeRequest) {})
	}},
	{"NodeExpandVolume", "exceeds capabilities: access type", codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = asBlock })
	}},
	{"NodeExpandVolume", "exceeds capabilities: fs_type", codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = asXFS })
	}},
	{"NodeExpandVolume", "exceeds capabilities: access mode", codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = onNodes })
	}},
	{"NodeExpandVolume", "volume does not exist", codes.NotFound, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = unknownID })
	}},
	{"NodeExpandVolume", "unsupported capacity_range: more than the device has", codes.OutOfRange, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = harness.RequiredBytes(2 * size) })
	}},
	{"NodeExpandVolume", "unsupported capacity_range: a limit below the size", codes.OutOfRange, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: size / 2} })
	}},
	{"NodeExpandVolume", "capacity_range empty", codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} })
	}},
	{"NodeExpandVolume", "volume_path relative", codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "relative" })
	}},
	{"NodeExpandVolume", "volume_path relative of an unknown volume", codes.NotFound, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeId, r.VolumePath = "unknown", "relative" })
	}},
	{"NodeExpandVolume", "staging_target_path relative", codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.StagingTargetPath = "relative" })
	}},
	{"NodeGetVolumeStats", "volume does not exist", codes.NotFound, func(f *fixture) error {
		return f.stats(unknownID, f.used.TargetPath)
	}},
	{"NodeGetVolumeStats", "volume does not exist on volume_path", codes.NotFound, func(f *fixture) error {
		return f.stats(f.used.VolumeID, f.used.TargetPath+"-2")
	}},
	{"NodeGetVolumeStats", "volume_path relative", codes.NotFound, func(f *fixture) error {
		return f.stats(f.used.VolumeID, "relative")
	}},
	{"NodeGetVolumeHealth", "volume does not exist", codes.NotFound, func(f *fixture) error {
		_, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: unknownID})
		return err
	}},
	{"NodeGetVolumeHealth", "volume_publish_path relative", codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: f.used.VolumeID, VolumePublishPath: "relative"})
		return err
	}},
}

func (f *fixture) stats(id, path string) error {
	_, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})

	return err
}

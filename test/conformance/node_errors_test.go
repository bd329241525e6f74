package conformance_test

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
)

func (f *fixture) stageLike(of *csiclient.Publication, change func(p *csiclient.Publication)) error {
	other := *of
	change(&other)

	return f.Stage(f.ctx, &other)
}

var stageRows = []row{
	{"NodeStageVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.VolumeID = unknownID })
	}},
	{"NodeStageVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.VolumeID = "unknown" })
	}},
	{"NodeStageVolume", conformance.Is("volume_capability missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.Capability = nil })
	}},
	{"NodeStageVolume", conformance.Is("staging_target_path missing"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeStageVolume(f.ctx, &csi.NodeStageVolumeRequest{VolumeId: f.free.VolumeID, VolumeCapability: mounted})
		return err
	}},
	{"NodeStageVolume", conformance.Is("other volume_capability"), codes.AlreadyExists, func(f *fixture) error {
		return f.stageLike(f.used, func(p *csiclient.Publication) { p.Capability = asXFS })
	}},
	{"NodeStageVolume", conformance.Is("other volume_capability"), codes.AlreadyExists, func(f *fixture) error {
		return f.stageLike(f.used, func(p *csiclient.Publication) { p.Capability = asBlock })
	}},
	{"NodeStageVolume", conformance.Is("other volume_capability"), codes.OK, func(f *fixture) error {
		return f.stageLike(f.used, func(p *csiclient.Publication) { p.Capability = csiclient.MountCapability(harness.Writer, "ext4") })
	}},
	{"NodeStageVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodeStageVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.FailedPrecondition, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.Capability = asXFS })
	}},
	{"NodeStageVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodeStageVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.FailedPrecondition, func(f *fixture) error {
		return f.stageLike(f.free, func(p *csiclient.Publication) { p.Capability = onNodes })
	}},
	{"NodeStageVolume", conformance.Where("staging_target_path is a file", func(r *csi.NodeStageVolumeRequest) bool { return isFile(r.GetStagingTargetPath()) }), codes.FailedPrecondition, func(f *fixture) error {
		path := filepath.Join(f.Config.KubeletDir, "file")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}

		_, err := f.NodeStageVolume(f.ctx, &csi.NodeStageVolumeRequest{VolumeId: f.free.VolumeID, StagingTargetPath: path, VolumeCapability: mounted})
		return err
	}},
	{"NodeUnstageVolume", conformance.Is("volume_id missing"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeUnstageVolume(f.ctx, &csi.NodeUnstageVolumeRequest{StagingTargetPath: f.free.StagingPath})
		return err
	}},
	{"NodeUnstageVolume", conformance.Is("volume_id unknown"), codes.OK, func(f *fixture) error {
		return f.Unstage(f.ctx, &csiclient.Publication{VolumeID: unknownID, StagingPath: f.free.StagingPath})
	}},
	{"NodeUnstageVolume", conformance.Is("not staged"), codes.OK, func(f *fixture) error { return f.Unstage(f.ctx, f.free) }},
}

func isFile(path string) bool {
	found, err := os.Stat(path)

	return err == nil && found.Mode().IsRegular()
}

func (f *fixture) publishLike(of *csiclient.Publication, change func(p *csiclient.Publication)) error {
	other := *of
	change(&other)

	return f.Publish(f.ctx, &other)
}

var nodePublishRows = []row{
	{"NodePublishVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.publishLike(f.free, func(p *csiclient.Publication) { p.VolumeID = unknownID })
	}},
	{"NodePublishVolume", conformance.Is("not staged"), codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.free, func(*csiclient.Publication) {})
	}},
	{"NodePublishVolume", conformance.Is("other volume_capability"), codes.AlreadyExists, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.Capability = asXFS })
	}},
	{"NodePublishVolume", conformance.Is("other volume_capability"), codes.AlreadyExists, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.Capability = asBlock })
	}},
	{"NodePublishVolume", conformance.Is("other readonly"), codes.AlreadyExists, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.ReadOnly = true })
	}},
	{"NodePublishVolume", conformance.Is("other volume_capability"), codes.OK, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.Capability = csiclient.MountCapability(harness.Writer, "ext4") })
	}},
	{"NodePublishVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodePublishVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.TargetPath, p.Capability = p.TargetPath+"-2", asXFS })
	}},
	{"NodePublishVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodePublishVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.TargetPath, p.Capability = p.TargetPath+"-2", onNodes })
	}},
	{"NodePublishVolume", conformance.Is("published at another path"), codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.TargetPath += "-2" })
	}},
	{"NodePublishVolume", conformance.Where("staging_target_path not given", func(r *csi.NodePublishVolumeRequest) bool { return r.GetStagingTargetPath() == "" }), codes.FailedPrecondition, func(f *fixture) error {
		_, err := f.NodePublishVolume(f.ctx, &csi.NodePublishVolumeRequest{
			VolumeId: f.used.VolumeID, TargetPath: f.used.TargetPath, VolumeCapability: mounted,
		})
		return err
	}},
	{"NodePublishVolume", conformance.Is("target_path missing"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodePublishVolume(f.ctx, &csi.NodePublishVolumeRequest{
			VolumeId: f.used.VolumeID, StagingTargetPath: f.used.StagingPath, VolumeCapability: mounted,
		})
		return err
	}},
	{"NodePublishVolume", conformance.Is("staging_target_path relative"), codes.FailedPrecondition, func(f *fixture) error {
		return f.publishLike(f.used, func(p *csiclient.Publication) { p.StagingPath = "relative" })
	}},
	{"NodeUnpublishVolume", conformance.Is("volume_id unknown"), codes.OK, func(f *fixture) error {
		return f.Unpublish(f.ctx, &csiclient.Publication{VolumeID: unknownID, TargetPath: f.free.TargetPath})
	}},
	{"NodeUnpublishVolume", conformance.Is("published at no path"), codes.OK, func(f *fixture) error { return f.Unpublish(f.ctx, f.free) }},
	{"NodeUnpublishVolume", conformance.Is("target_path missing"), codes.InvalidArgument, func(f *fixture) error {
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
	{"NodeExpandVolume", conformance.Is("plain"), codes.OK, func(f *fixture) error {
		return f.nodeExpand(func(*csi.NodeExpandVolumeRequest) {})
	}},
	{"NodeExpandVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodeExpandVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = asBlock })
	}},
	{"NodeExpandVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodeExpandVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = asXFS })
	}},
	{"NodeExpandVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.NodeExpandVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = onNodes })
	}},
	{"NodeExpandVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = unknownID })
	}},
	{"NodeExpandVolume", conformance.Where("capacity_range unsupported", func(r *csi.NodeExpandVolumeRequest) bool { return r.GetCapacityRange().GetRequiredBytes() > size }), codes.OutOfRange, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = harness.RequiredBytes(2 * size) })
	}},
	{"NodeExpandVolume", conformance.Where("capacity_range unsupported", func(r *csi.NodeExpandVolumeRequest) bool { return r.GetCapacityRange().GetLimitBytes() < size }), codes.OutOfRange, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: size / 2} })
	}},
	{"NodeExpandVolume", conformance.Is("capacity_range empty"), codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} })
	}},
	{"NodeExpandVolume", conformance.Is("volume_path relative"), codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "relative" })
	}},
	{"NodeExpandVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.VolumeId, r.VolumePath = "unknown", "relative" })
	}},
	{"NodeExpandVolume", conformance.Is("staging_target_path relative"), codes.InvalidArgument, func(f *fixture) error {
		return f.nodeExpand(func(r *csi.NodeExpandVolumeRequest) { r.StagingTargetPath = "relative" })
	}},
	{"NodeGetVolumeStats", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.stats(unknownID, f.used.TargetPath)
	}},
	{"NodeGetVolumeStats", conformance.Where("volume_path without the volume", func(r *csi.NodeGetVolumeStatsRequest) bool { return strings.HasSuffix(r.GetVolumePath(), "-2") }), codes.NotFound, func(f *fixture) error {
		return f.stats(f.used.VolumeID, f.used.TargetPath+"-2")
	}},
	{"NodeGetVolumeStats", conformance.Is("volume_path relative"), codes.NotFound, func(f *fixture) error {
		return f.stats(f.used.VolumeID, "relative")
	}},
	{"NodeGetVolumeStats", conformance.Is("staging_target_path relative"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId: f.used.VolumeID, VolumePath: f.used.TargetPath, StagingTargetPath: "relative",
		})
		return err
	}},
	{"NodeGetVolumeHealth", conformance.Is("staging_target_path relative"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: f.used.VolumeID, StagingTargetPath: "relative"})
		return err
	}},
	{"NodeGetVolumeHealth", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: unknownID})
		return err
	}},
	{"NodeGetVolumeHealth", conformance.Is("volume_publish_path relative"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: f.used.VolumeID, VolumePublishPath: "relative"})
		return err
	}},
}

func (f *fixture) stats(id, path string) error {
	_, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})

	return err
}

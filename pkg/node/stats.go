package node

import (
	"cmp"
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/health"
)

// NodeGetVolumeStats returns the bytes and inodes of the volume's filesystem, or the size of
// its device (CSI v1.13, NodeGetVolumeStats). For a directory it returns what its files take,
// and what is available in the pool. For an unhealthy volume it returns the last known usage
// with the condition.
func (s *Service) NodeGetVolumeStats(
	ctx context.Context, request *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	return s.config.volumeStats(ctx, request, s.stats.Read)
}

// volumeStats answers with what read returns of the volume at the path.
func (c *Common) volumeStats(
	ctx context.Context, request *csi.NodeGetVolumeStatsRequest,
	read func(ctx context.Context, id, path string) ([]*csi.VolumeUsage, *health.Record, error),
) (*csi.NodeGetVolumeStatsResponse, error) {
	id, path := request.GetVolumeId(), plain(request.GetVolumePath())
	if err := checkUse(id, path, request.GetStagingTargetPath()); err != nil {
		return nil, err
	}

	usages, record, err := read(ctx, id, path)
	if err != nil {
		return nil, err
	}

	answer := &csi.NodeGetVolumeStatsResponse{Usage: usages}
	if c.Capabilities.HasNode(capability.VolumeCondition) {
		health.PutCondition(answer, record)
	}

	return answer, nil
}

// checkUse refuses a request without volume_id or volume_path, or with a relative staging_target_path. A
// relative volume_path is left to the caller: no volume is at one, which is NOT_FOUND.
func checkUse(id, path, stagingPath string) error {
	return cmp.Or(rpc.CheckVolumeID(id), rpc.CheckPresent("volume_path", path), rpc.CheckAbsolute("staging_target_path", stagingPath))
}

package node

import (
	"cmp"
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/health"
)

// NodeGetVolumeHealth returns the condition of a volume that is in use here, is being staged,
// or is in a pool of this node (CSI v1.13, NodeGetVolumeHealth). The paths do not matter.
func (s *Service) NodeGetVolumeHealth(
	ctx context.Context, request *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	return volumeHealth(ctx, request, s.prober.Health)
}

// volumeHealth answers with the condition that read returns of the volume, nil if it is healthy.
func volumeHealth(
	ctx context.Context, request *csi.NodeGetVolumeHealthRequest, read func(ctx context.Context, id string) (*health.Record, error),
) (*csi.NodeGetVolumeHealthResponse, error) {
	id := request.GetVolumeId()

	err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckAbsolute("staging_target_path", request.GetStagingTargetPath()),
		rpc.CheckAbsolute("volume_publish_path", request.GetVolumePublishPath()))
	if err != nil {
		return nil, err
	}

	record, err := read(ctx, id)
	if err != nil {
		return nil, err
	}

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: record.VolumeHealth(id)}, nil
}

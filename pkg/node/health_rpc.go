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
func (h *handlers) NodeGetVolumeHealth(
	ctx context.Context, request *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	id := request.GetVolumeId()

	err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckAbsolute("staging_target_path", request.GetStagingTargetPath()),
		rpc.CheckAbsolute("volume_publish_path", request.GetVolumePublishPath()))
	if err != nil {
		return nil, err
	}

	record, err := h.node.health(ctx, id)
	if err != nil {
		return nil, err
	}

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: record.VolumeHealth(id)}, nil
}

// NodeGetStorageHealth returns the conditions of the pools and of the state store (CSI v1.13, NodeGetStorageHealth).
func (h *handlers) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	if h.config.Storage == nil {
		return &csi.NodeGetStorageHealthResponse{}, nil
	}

	return &csi.NodeGetStorageHealthResponse{BackendHealth: health.StorageHealth(h.config.Storage.All())}, nil
}

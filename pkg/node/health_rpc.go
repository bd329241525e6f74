package node

import (
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
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	for field, path := range map[string]string{
		"staging_target_path": request.GetStagingTargetPath(), "volume_publish_path": request.GetVolumePublishPath(),
	} {
		if err := rpc.CheckAbsolute(field, path); err != nil {
			return nil, err
		}
	}

	record, err := s.prober.Health(ctx, id)
	if err != nil {
		return nil, err
	}

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: record.VolumeHealth(id)}, nil
}

// NodeGetStorageHealth returns the conditions of the pools and of the state store (CSI v1.13, NodeGetStorageHealth).
func (s *Service) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	return storageHealth(s.config.Storage), nil
}

func storageHealth(storage *health.Monitor) *csi.NodeGetStorageHealthResponse {
	if storage == nil {
		return &csi.NodeGetStorageHealthResponse{}
	}

	return &csi.NodeGetStorageHealthResponse{BackendHealth: health.StorageHealth(storage.All())}
}

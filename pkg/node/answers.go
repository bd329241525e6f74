package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// answers has the RPCs that concern no volume: the node's id, its capabilities and the health of its storage.
type answers struct {
	csi.UnimplementedNodeServer

	config Common
}

// NodeGetInfo answers with the node's id, limit and topology (CSI v1.13,
// NodeGetInfo).
func (a *answers) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	info := &csi.NodeGetInfoResponse{NodeId: a.config.NodeID, MaxVolumesPerNode: a.config.MaxVolumesPerNode}
	if len(a.config.Segments) > 0 {
		info.AccessibleTopology = &csi.Topology{Segments: a.config.Segments}
	}

	return info, nil
}

// NodeGetCapabilities answers with what is not disabled (CSI v1.13,
// NodeGetCapabilities).
func (a *answers) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: a.config.Capabilities.Node()}, nil
}

// NodeGetStorageHealth returns the conditions of the pools and of the state store (CSI v1.13, NodeGetStorageHealth).
func (a *answers) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	if a.config.Storage == nil {
		return &csi.NodeGetStorageHealthResponse{}, nil
	}

	return &csi.NodeGetStorageHealthResponse{BackendHealth: health.StorageHealth(a.config.Storage.All())}, nil
}

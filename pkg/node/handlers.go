package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// handlers are the RPCs of Service and Simulated: each parses its request, runs an operation on the volume if it
// changes that, and answers.
type handlers struct {
	csi.UnimplementedNodeServer

	config Config
	node   volumes
}

// volumes are what the handlers do with volumes: Service mounts them, Simulated has their records alone. The paths
// are plain. The methods that have a context and an error but no answer are called in an operation on the volume,
// as expand is.
type volumes interface {
	// checkPath refuses the path of a request's field if no volume can be there in any state.
	checkPath(field, path string) error
	stage(ctx context.Context, wanted *staged.Volume) error
	unstage(ctx context.Context, id, path string) error
	publish(ctx context.Context, request *csi.NodePublishVolumeRequest, wanted staged.Publication) error
	unpublish(ctx context.Context, id, target string) error
	expand(ctx context.Context, id, path string, asked *csi.CapacityRange) (int64, error)
	// changed is called after each operation on a volume.
	changed(id string)

	// usedAt returns the volume that is staged or published at the path. Error: NOT_FOUND, with the volume if it is
	// in use elsewhere.
	usedAt(id, path string) (*staged.Volume, error)
	// usage and health return the condition of a volume, too: nil where it is healthy or not known.
	usage(ctx context.Context, id, path string) ([]*csi.VolumeUsage, *health.Record, error)
	health(ctx context.Context, id string) (*health.Record, error)
}

// run runs do as the operation of a call on the object of the volume, and returns its answer.
func run[T any](
	ctx context.Context, h *handlers, id, object, method string, request proto.Message, do func(context.Context) (T, error),
) (T, error) {
	defer h.node.changed(id)

	return operation.DoLogged(ctx, h.config.Log, h.config.Operations, operation.VolumeCall(id, object, method, request), do)
}

// Serves reports whether nodeID is the ID of this node.
func (h *handlers) Serves(nodeID string) bool { return nodeID == h.config.NodeID }

// NodeGetInfo answers with the node's id, limit and topology (CSI v1.13,
// NodeGetInfo).
func (h *handlers) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	info := &csi.NodeGetInfoResponse{NodeId: h.config.NodeID, MaxVolumesPerNode: h.config.MaxVolumesPerNode}
	if len(h.config.Segments) > 0 {
		info.AccessibleTopology = &csi.Topology{Segments: h.config.Segments}
	}

	return info, nil
}

// NodeGetCapabilities answers with what is not disabled (CSI v1.13,
// NodeGetCapabilities).
func (h *handlers) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: h.config.Capabilities.Node()}, nil
}

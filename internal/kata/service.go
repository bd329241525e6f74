package kata

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.DirectVolumes"
	listCall    = "List"
)

// AssignedVolume is a volume of this driver's that is assigned to a guest.
type AssignedVolume struct {
	VolumeID   string   `json:"volumeId"`
	TargetPath string   `json:"targetPath"`
	Device     string   `json:"device"`
	FSType     string   `json:"fsType"`
	Options    []string `json:"options"`
	ReadOnly   bool     `json:"readOnly"`
	SizeBytes  int64    `json:"sizeBytes"`
	// PendingBytes is the size that the filesystem is still to be given, or 0.
	PendingBytes int64 `json:"pendingBytes,omitempty"`
	// Sandbox is the id of the guest that has it, or "" while none does.
	Sandbox string `json:"sandbox,omitempty"`
}

// Service lists on the driver's socket the volumes that guests have, for which CSI has no RPC.
type Service struct {
	// List returns the assigned volumes, without asking a guest. Its errors carry
	// their gRPC code.
	List func(ctx context.Context) ([]AssignedVolume, error)
}

// Register puts the service behind server: List takes a google.protobuf.Empty and
// answers with a JSON array of AssignedVolume (internal/jsoncall).
func (s *Service) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName, jsoncall.Method(ServiceName, listCall,
		func(ctx context.Context, _ *emptypb.Empty) (any, error) {
			listed, err := s.List(ctx)

			return append([]AssignedVolume{}, listed...), err
		}))
}

// List returns the volumes that the driver at the other end has assigned to guests. A driver other than
// Touchstone answers UNIMPLEMENTED.
func List(ctx context.Context, connection grpc.ClientConnInterface) (listed []AssignedVolume, err error) {
	err = jsoncall.Ask(ctx, connection, jsoncall.FullMethod(ServiceName, listCall), &emptypb.Empty{}, &listed)

	return listed, err
}

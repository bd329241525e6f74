package directassign

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.DirectVolumes"
	listMethod  = "/" + ServiceName + "/List"
)

// Listed is a volume of this driver's that is assigned to a guest.
type Listed struct {
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

// Service tells people on the driver's socket which volumes guests have: CSI has
// no words for it.
type Service struct {
	// List returns the assigned volumes, without asking a guest. Its errors carry
	// their gRPC code.
	List func(ctx context.Context) ([]Listed, error)
}

// lister is what the service's handler is registered for.
type lister interface {
	list(ctx context.Context) (proto.Message, error)
}

// Register puts the service behind server. Its call needs no generated code: List
// takes a google.protobuf.Empty and answers with a BytesValue, in which there is
// an array of Listed as JSON.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*lister)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "List", Handler: handleList}},
	}, s)
}

func handleList(
	service any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor, //nolint:revive // grpc's order
) (any, error) {
	request := &emptypb.Empty{}
	if err := decode(request); err != nil {
		return nil, err
	}

	serve := func(ctx context.Context, _ any) (any, error) {
		service, _ := service.(lister)

		return service.list(ctx)
	}

	if intercept == nil {
		return serve(ctx, request)
	}

	return intercept(ctx, request, &grpc.UnaryServerInfo{Server: service, FullMethod: listMethod}, serve)
}

func (s *Service) list(ctx context.Context) (proto.Message, error) {
	listed, err := s.List(ctx)
	if err != nil {
		return nil, err
	}

	if listed == nil {
		listed = []Listed{}
	}

	encoded, err := json.Marshal(listed)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}

	return wrapperspb.Bytes(encoded), nil
}

// Client asks a driver of Touchstone's. Any other answers UNIMPLEMENTED.
type Client struct {
	connection grpc.ClientConnInterface
}

// NewClient returns a client of the driver at the other end.
func NewClient(connection grpc.ClientConnInterface) *Client { return &Client{connection: connection} }

// List returns the volumes that are assigned to guests.
func (c *Client) List(ctx context.Context, options ...grpc.CallOption) ([]Listed, error) {
	// Thousands of volumes are more than the 4 MiB that grpc allows by default.
	options = append(options, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	answer := &wrapperspb.BytesValue{}

	if err := c.connection.Invoke(ctx, listMethod, &emptypb.Empty{}, answer, options...); err != nil {
		return nil, err //nolint:wrapcheck // it carries the driver's status
	}

	var listed []Listed
	if err := json.Unmarshal(answer.GetValue(), &listed); err != nil {
		return nil, fmt.Errorf("decode the answer of %s: %w", listMethod, err)
	}

	return listed, nil
}

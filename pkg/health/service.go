package health

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Health"
	reportCall  = "Report"
	checkCall   = "Check"
)

// Service tells people on the driver's socket what CSI has no words for: all
// that is known about health at once, and what a check of a filesystem finds.
type Service struct {
	// Report returns all that is known, without waiting for anything sick.
	Report func() Report
	// Check checks the filesystem of a volume now. How is "offline", which leaves
	// a volume in use alone, or "online", which checks a copy of it. Its errors
	// carry their gRPC code. Nil where no node is served.
	Check func(ctx context.Context, volumeID, how string) (CheckReport, error)
}

// CheckRequest is what Check is asked.
type CheckRequest struct {
	VolumeID string `json:"volumeId"`
	// How is "offline" or "online"; see Service.
	How string `json:"how"`
}

// VolumeCheck is what a check of the volume has found.
type VolumeCheck struct {
	CheckReport

	VolumeID string `json:"volumeId"`
}

// Register puts the service behind server: Report takes a google.protobuf.Empty and
// answers with a Report, Check takes a google.protobuf.BytesValue with a
// CheckRequest as JSON and answers with a VolumeCheck (internal/jsoncall).
func (s *Service) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName,
		jsoncall.Method(ServiceName, reportCall, func(context.Context, *emptypb.Empty) (any, error) { return s.Report(), nil }),
		jsoncall.Method(ServiceName, checkCall, s.check))
}

func (s *Service) check(ctx context.Context, encoded *wrapperspb.BytesValue) (any, error) {
	if s.Check == nil {
		return nil, status.Error(codes.Unimplemented, "this process serves no node, and filesystems are checked where "+
			"their volumes are used: ask the driver on the node (--endpoint)")
	}

	var request CheckRequest
	if err := json.Unmarshal(encoded.GetValue(), &request); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request is no JSON of volumeId and how: %v", err)
	}

	found, err := s.Check(ctx, request.VolumeID, request.How)
	if err != nil {
		return nil, err
	}

	return VolumeCheck{VolumeID: request.VolumeID, CheckReport: found}, nil
}

// Client asks a driver of Touchstone's. Any other answers UNIMPLEMENTED.
type Client struct {
	connection grpc.ClientConnInterface
}

// NewClient returns a client of the driver at the other end.
func NewClient(connection grpc.ClientConnInterface) *Client { return &Client{connection: connection} }

// Report returns all that the driver knows about health.
func (c *Client) Report(ctx context.Context, options ...grpc.CallOption) (*Report, error) {
	report := &Report{}

	return report, jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, reportCall), &emptypb.Empty{}, report, options...)
}

// Check has the driver check the filesystem of a volume, and waits for what it
// finds. A process without a node answers UNIMPLEMENTED, what is no volume
// NOT_FOUND, and what can't be checked now FAILED_PRECONDITION.
func (c *Client) Check(ctx context.Context, request CheckRequest, options ...grpc.CallOption) (*VolumeCheck, error) {
	encoded, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}

	found := &VolumeCheck{}

	return found, jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, checkCall), wrapperspb.Bytes(encoded), found, options...)
}

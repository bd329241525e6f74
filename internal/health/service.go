package health

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Health"
	reportCall  = "Report"
	checkCall   = "Check"
)

// Service is a gRPC service of Touchstone's own on the CSI socket: the health report,
// and checks of filesystems.
type Service struct {
	// Report returns the cached health of all volumes and pools. It waits only for the
	// first probes after a start.
	Report func(ctx context.Context) (Report, error)
	// Check checks the filesystem of a volume now. How is "offline", which refuses a
	// volume in use, or "online", which checks a copy of it. Nil in a process without a
	// node service.
	Check func(ctx context.Context, volumeID, how string) (CheckReport, error)
}

// CheckRequest is the request of Check.
type CheckRequest struct {
	VolumeID string `json:"volumeId"`
	// How is "offline" or "online"; see Service.
	How string `json:"how"`
}

// VolumeCheck is the result of Check.
type VolumeCheck struct {
	CheckReport

	VolumeID string `json:"volumeId"`
}

// Register registers the service: Report takes a google.protobuf.Empty and returns a
// Report, Check takes a google.protobuf.BytesValue with a CheckRequest as JSON and
// returns a VolumeCheck (internal/jsoncall).
func (s *Service) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName,
		jsoncall.Method(ServiceName, reportCall, func(ctx context.Context, _ *emptypb.Empty) (any, error) { return s.Report(ctx) }),
		jsoncall.Method(ServiceName, checkCall, s.check))
}

func (s *Service) check(ctx context.Context, encoded *wrapperspb.BytesValue) (any, error) {
	if s.Check == nil {
		return nil, errdefs.Errorf(errdefs.ErrUnimplemented, "this process has no node service, and filesystems are checked "+
			"on the node of their volumes: use the endpoint of the node's driver (--endpoint)")
	}

	var request CheckRequest
	if err := json.Unmarshal(encoded.GetValue(), &request); err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalidArgument, "the request is not a JSON object of volumeId and how: %w", err)
	}

	found, err := s.Check(ctx, request.VolumeID, request.How)
	if err != nil {
		return nil, err
	}

	return VolumeCheck{VolumeID: request.VolumeID, CheckReport: found}, nil
}

// Client calls the Service of a Touchstone driver. Other drivers return UNIMPLEMENTED.
type Client struct {
	connection grpc.ClientConnInterface
}

// NewClient returns a client of the driver behind the connection.
func NewClient(connection grpc.ClientConnInterface) *Client { return &Client{connection: connection} }

// Report returns the driver's health report.
func (c *Client) Report(ctx context.Context, options ...grpc.CallOption) (*Report, error) {
	report := &Report{}

	return report, jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, reportCall), &emptypb.Empty{}, report, options...)
}

// Check has the driver check the filesystem of a volume, and waits for the result.
// Errors: UNIMPLEMENTED from a process without a node service, NOT_FOUND for an
// unknown volume, FAILED_PRECONDITION for one that cannot be checked now.
func (c *Client) Check(ctx context.Context, request CheckRequest, options ...grpc.CallOption) (*VolumeCheck, error) {
	encoded, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}

	found := &VolumeCheck{}

	return found, jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, checkCall), wrapperspb.Bytes(encoded), found, options...)
}

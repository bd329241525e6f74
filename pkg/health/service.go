package health

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName  = "touchstone.v1.Health"
	reportMethod = "/" + ServiceName + "/Report"
	checkMethod  = "/" + ServiceName + "/Check"
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

// answerer is what the service's handlers are registered for.
type answerer interface {
	report() (proto.Message, error)
	check(ctx context.Context, request []byte) (proto.Message, error)
}

// Register puts the service behind server. Its calls need no generated code:
// Report takes a google.protobuf.Empty, Check a google.protobuf.BytesValue with
// a CheckRequest as JSON. Both answer with a BytesValue: a Report, and a
// VolumeCheck, as JSON.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*answerer)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Report", Handler: handleReport}, {MethodName: "Check", Handler: handleCheck},
		},
	}, s)
}

func handleReport(
	service any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor, //nolint:revive // grpc's order
) (any, error) {
	return handle(ctx, call{service, reportMethod, decode, intercept}, &emptypb.Empty{},
		func(_ context.Context, s answerer, _ *emptypb.Empty) (proto.Message, error) { return s.report() })
}

func handleCheck(
	service any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor, //nolint:revive // grpc's order
) (any, error) {
	return handle(ctx, call{service, checkMethod, decode, intercept}, &wrapperspb.BytesValue{},
		func(ctx context.Context, s answerer, request *wrapperspb.BytesValue) (proto.Message, error) {
			return s.check(ctx, request.GetValue())
		})
}

// call is what grpc hands to the handler of a method.
type call struct {
	service   any
	method    string
	decode    func(any) error
	intercept grpc.UnaryServerInterceptor
}

func handle[T proto.Message](
	ctx context.Context, c call, request T, answer func(context.Context, answerer, T) (proto.Message, error),
) (any, error) {
	if err := c.decode(request); err != nil {
		return nil, err
	}

	serve := func(ctx context.Context, _ any) (any, error) {
		service, _ := c.service.(answerer)

		return answer(ctx, service, request)
	}

	if c.intercept == nil {
		return serve(ctx, request)
	}

	return c.intercept(ctx, request, &grpc.UnaryServerInfo{Server: c.service, FullMethod: c.method}, serve)
}

func (s *Service) report() (proto.Message, error) { return encode(s.Report()) }

func (s *Service) check(ctx context.Context, encoded []byte) (proto.Message, error) {
	if s.Check == nil {
		return nil, status.Error(codes.Unimplemented, "this process serves no node, and filesystems are checked where "+
			"their volumes are used: ask the driver on the node (--endpoint)")
	}

	var request CheckRequest
	if err := json.Unmarshal(encoded, &request); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request is no JSON of volumeId and how: %v", err)
	}

	found, err := s.Check(ctx, request.VolumeID, request.How)
	if err != nil {
		return nil, err
	}

	return encode(VolumeCheck{VolumeID: request.VolumeID, CheckReport: found})
}

func encode(answer any) (proto.Message, error) {
	encoded, err := json.Marshal(answer)
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

// Report returns all that the driver knows about health.
func (c *Client) Report(ctx context.Context, options ...grpc.CallOption) (*Report, error) {
	// Thousands of volumes are more than the 4 MiB that grpc allows by default.
	options = append(options, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	report := &Report{}

	return report, c.ask(ctx, reportMethod, &emptypb.Empty{}, report, options)
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

	return found, c.ask(ctx, checkMethod, wrapperspb.Bytes(encoded), found, options)
}

func (c *Client) ask(ctx context.Context, method string, request proto.Message, into any, options []grpc.CallOption) error {
	answer := &wrapperspb.BytesValue{}
	if err := c.connection.Invoke(ctx, method, request, answer, options...); err != nil {
		return err //nolint:wrapcheck // it carries the driver's status
	}

	if err := json.Unmarshal(answer.GetValue(), into); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", method, err)
	}

	return nil
}

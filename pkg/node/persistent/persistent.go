// Package persistent is a service of Touchstone's own that makes the mount of a volume persistent, for which
// CSI has no RPC: each start of the driver makes a persistent mount again.
//
// It contains the service and its client; package remount does what is requested.
package persistent

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.PersistentMounts"
	setCall     = "Set"
)

// Request is the request of Set.
type Request struct {
	VolumeID   string `json:"volumeId"`
	TargetPath string `json:"targetPath"`
	Persistent bool   `json:"persistent"`
}

// Service answers for a node.
type Service struct {
	// Set makes the publication of a volume persistent, or ends that.
	Set func(context.Context, Request) error
}

// Register registers the service: Set takes a google.protobuf.BytesValue with a Request as JSON, and
// returns an empty object (internal/jsoncall).
func (s *Service) Register(server grpc.ServiceRegistrar) {
	jsoncall.Register(server, ServiceName, jsoncall.Method(ServiceName, setCall,
		func(ctx context.Context, encoded *wrapperspb.BytesValue) (any, error) {
			var request Request
			if err := json.Unmarshal(encoded.GetValue(), &request); err != nil {
				return nil, errdefs.Errorf(errdefs.ErrInvalidArgument,
					"the request is not a JSON object of volumeId, targetPath and persistent: %w", err)
			}

			return struct{}{}, s.Set(ctx, request)
		}))
}

// Set makes the publication of a volume persistent, or ends that. A driver other than Touchstone, or a
// process without a node, answers UNIMPLEMENTED.
func Set(ctx context.Context, connection grpc.ClientConnInterface, request Request) error {
	encoded, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}

	return jsoncall.Ask(ctx, connection, jsoncall.FullMethod(ServiceName, setCall), wrapperspb.Bytes(encoded), &struct{}{})
}

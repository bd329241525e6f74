package sanity_test

import (
	"context"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// sized makes the suite's client remember the sizes of what it receives.
//
// csi-sanity v5.6.0 compares a topology that it has received with one that it
// has sent by reflect.DeepEqual. That also compares a field of the Go message
// which has nothing to do with what was said: the size that marshalling leaves
// in it. So every driver that returns the topology of a snapshot would fail
// "should succeed when creating a snapshot with accessibility requirements".
func sized(config *sanity.TestConfig) {
	measure := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, request, reply, conn, options...)
		if message, ok := reply.(proto.Message); ok && err == nil {
			_ = proto.Size(message)
		}

		return err
	})

	config.DialOptions = append(config.DialOptions, measure)
	config.ControllerDialOptions = append(config.ControllerDialOptions, measure)
}

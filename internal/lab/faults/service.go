package faults

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Faults"

	addCall     = "Add"
	listCall    = "List"
	clearCall   = "Clear"
	logCall     = "Log"
	releaseCall = "Release"
)

// Listed is the answer of List.
type Listed struct {
	Rules []Status `json:"rules"`
	// FileError is why the file of --faults is not applied, if it is not.
	FileError string `json:"fileError,omitempty"`
}

// Released is the answer of Release.
type Released struct {
	// Calls is the number of calls that were waiting.
	Calls int `json:"calls"`
}

// Register registers the service. Add takes a google.protobuf.BytesValue with a document of rules, as
// CSI limits texts to 128 bytes, Clear and Release a StringValue with a name, the others Empty. They
// return JSON (internal/jsoncall).
func (i *Injector) Register(server grpc.ServiceRegistrar) {
	named := func(name string, answer func(string) (any, error)) grpc.MethodDesc {
		return jsoncall.Method(ServiceName, name, func(_ context.Context, given *wrapperspb.StringValue) (any, error) {
			return answer(given.GetValue())
		})
	}
	plain := func(name string, answer func() any) grpc.MethodDesc {
		return jsoncall.Method(ServiceName, name, func(context.Context, *emptypb.Empty) (any, error) { return answer(), nil })
	}

	jsoncall.Register(server, ServiceName,
		jsoncall.Method(ServiceName, addCall, func(_ context.Context, given *wrapperspb.BytesValue) (any, error) {
			return i.Add(given.GetValue())
		}),
		plain(listCall, func() any {
			rules, fileError := i.List()

			return Listed{rules, fileError}
		}),
		named(clearCall, func(name string) (any, error) { return i.Clear(name) }),
		plain(logCall, func() any { return i.Log() }),
		named(releaseCall, func(name string) (any, error) {
			calls, err := i.Release(name)

			return Released{calls}, err
		}),
	)
}

// Client calls the service of a driver. A driver without --faults and --enable-faults answers
// UNIMPLEMENTED.
type Client struct{ Connection grpc.ClientConnInterface }

// Add adds rules and returns their names.
func (c Client) Add(ctx context.Context, document string) (names []string, err error) {
	err = c.ask(ctx, addCall, wrapperspb.Bytes([]byte(document)), &names)

	return names, err
}

// List returns the active rules.
func (c Client) List(ctx context.Context) (listed Listed, err error) {
	err = jsoncall.Ask(ctx, c.Connection, jsoncall.FullMethod(ServiceName, listCall), &emptypb.Empty{}, &listed)

	return listed, err
}

// Clear clears the rule of a name, or all for "", and returns their names.
func (c Client) Clear(ctx context.Context, name string) (names []string, err error) {
	err = c.ask(ctx, clearCall, wrapperspb.String(name), &names)

	return names, err
}

// Log returns the newest hits, the oldest first.
func (c Client) Log(ctx context.Context) (hits []Hit, err error) {
	err = jsoncall.Ask(ctx, c.Connection, jsoncall.FullMethod(ServiceName, logCall), &emptypb.Empty{}, &hits)

	return hits, err
}

// Release releases the calls that a hold keeps, and returns how many.
func (c Client) Release(ctx context.Context, name string) (int, error) {
	var released Released

	err := c.ask(ctx, releaseCall, wrapperspb.String(name), &released)

	return released.Calls, err
}

func (c Client) ask(ctx context.Context, call string, given proto.Message, into any) error {
	return jsoncall.Ask(ctx, c.Connection, jsoncall.FullMethod(ServiceName, call), given, into)
}

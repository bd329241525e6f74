package calls

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

// Client calls the service. A driver without --call-log answers UNIMPLEMENTED.
type Client struct{ connection grpc.ClientConnInterface }

// NewClient returns a client of the driver behind the connection.
func NewClient(connection grpc.ClientConnInterface) *Client { return &Client{connection} }

// List returns the recorded calls that the filter selects, in the order in which they ended.
func (c *Client) List(ctx context.Context, filter Filter) ([]*Call, error) {
	var found []*Call

	err := c.ask(ctx, listCall, filter, &found)

	return found, err
}

// Wait returns once as many calls have ended as wanted, or its timeout has passed.
func (c *Client) Wait(ctx context.Context, wanted WaitRequest) (*WaitResult, error) {
	result := &WaitResult{}
	err := c.ask(ctx, waitCall, wanted, result)

	return result, err
}

// Counts counts all calls by method and code.
func (c *Client) Counts(ctx context.Context) ([]Count, error) {
	var counts []Count

	err := jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, countsCall), &emptypb.Empty{}, &counts)

	return counts, err
}

// Clear forgets the recorded calls.
func (c *Client) Clear(ctx context.Context) error {
	return jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, clearCall), &emptypb.Empty{}, &struct{}{})
}

// Follow yields calls as they end, until ctx or the driver ends, or yield returns an error.
func (c *Client) Follow(ctx context.Context, wanted FollowRequest, yield func(Followed) error) error {
	request, err := encodeRequest(wanted)
	if err != nil {
		return err
	}

	return jsoncall.Follow(ctx, c.connection, jsoncall.FullMethod(ServiceName, followCall), request, yield)
}

func (c *Client) ask(ctx context.Context, name string, request, into any) error {
	encoded, err := encodeRequest(request)
	if err != nil {
		return err
	}

	return jsoncall.Ask(ctx, c.connection, jsoncall.FullMethod(ServiceName, name), encoded, into)
}

func encodeRequest(request any) (*structpb.Struct, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}

	encoded := &structpb.Struct{}
	if err := encoded.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}

	return encoded, nil
}

package calls

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/jsoncall"
)

const (
	// ServiceName is the service's name on the socket.
	ServiceName = "touchstone.v1.Calls"

	listCall   = "List"
	followCall = "Follow"
	waitCall   = "Wait"
	countsCall = "Counts"
	clearCall  = "Clear"
)

// WaitRequest is what Wait waits for.
type WaitRequest struct {
	Filter

	// Count is how many calls; 0 is one.
	Count int `json:"count,omitempty"`
	// Timeout is in seconds; 0 is as long as the caller waits.
	Timeout float64 `json:"timeout,omitempty"`
	// New counts only calls that end after the request. Without it those that are already
	// recorded count too, so that a call between the caller's action and its request is not missed.
	New bool `json:"new,omitempty"`
}

// WaitResult has the calls that the filter selected.
type WaitResult struct {
	// Reached reports that there are as many as wanted.
	Reached bool    `json:"reached"`
	Calls   []*Call `json:"calls"`
}

// Followed is one answer of Follow: a call, or how many calls ended in between that are not kept
// any more, because the reader is slower than the calls.
type Followed struct {
	Call   *Call  `json:"call,omitempty"`
	Missed uint64 `json:"missed,omitempty"`
}

// FollowRequest is what Follow returns.
type FollowRequest struct {
	Filter

	// New leaves out the calls that are already recorded.
	New bool `json:"new,omitempty"`
}

// Register registers the service (internal/jsoncall). Requests are a google.protobuf.Struct with the
// fields of Filter, FollowRequest or WaitRequest:
//
//	List    returns an array of Call
//	Follow  returns a stream of Followed, until the caller or the driver ends it
//	Wait    returns a WaitResult
//	Counts  returns an array of Count; its request is empty
//	Clear   forgets the recorded calls; its request is empty
func (r *Recorder) Register(server grpc.ServiceRegistrar) {
	jsoncall.RegisterStreams(server, ServiceName, []grpc.MethodDesc{
		jsoncall.Method(ServiceName, listCall, func(ctx context.Context, request *structpb.Struct) (any, error) {
			var filter Filter
			if err := decode(request, &filter); err != nil {
				return nil, err
			}

			return r.List(ctx, filter)
		}),
		jsoncall.Method(ServiceName, waitCall, func(ctx context.Context, request *structpb.Struct) (any, error) {
			var wanted WaitRequest
			if err := decode(request, &wanted); err != nil {
				return nil, err
			}

			return r.wait(ctx, wanted)
		}),
		jsoncall.Method(ServiceName, countsCall, func(context.Context, *emptypb.Empty) (any, error) { return r.Counts(), nil }),
		jsoncall.Method(ServiceName, clearCall, func(context.Context, *emptypb.Empty) (any, error) {
			r.Clear()

			return struct{}{}, nil
		}),
	}, jsoncall.Stream(ServiceName, followCall, func(ctx context.Context, request *structpb.Struct, send func(any) error) error {
		var wanted FollowRequest
		if err := decode(request, &wanted); err != nil {
			return err
		}

		return r.follow(ctx, wanted, send)
	}))
}

// errEnding ends the calls that wait for others when the driver ends.
var errEnding = errdefs.New(errdefs.ErrUnavailable, "the driver ends: call again when it is back")

func (r *Recorder) wait(ctx context.Context, wanted WaitRequest) (*WaitResult, error) {
	match, err := newMatcher(wanted.Filter)
	if err != nil {
		return nil, err
	}

	var expired <-chan time.Time
	if wanted.Timeout > 0 {
		timer := time.NewTimer(time.Duration(wanted.Timeout * float64(time.Second)))
		defer timer.Stop()

		expired = timer.C
	}

	position, result := uint64(0), &WaitResult{Calls: []*Call{}}
	if wanted.New {
		position = r.end()
	}

	for {
		found, next, _, changed := r.from(position)
		position = next

		selected, err := match.matching(ctx, found)
		if err != nil {
			return nil, err
		}

		result.Calls = append(result.Calls, selected...)

		if result.Reached = len(result.Calls) >= max(wanted.Count, 1); result.Reached {
			return result, nil
		}

		select {
		case <-changed:
		case <-expired:
			if err := match.mistake(); err != nil {
				return nil, err
			}

			return result, nil
		case <-r.ended:
			return nil, errEnding
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *Recorder) follow(ctx context.Context, wanted FollowRequest, send func(any) error) error {
	match, err := newMatcher(wanted.Filter)
	if err != nil {
		return err
	}

	// What was evicted before the request is not missed.
	position := uint64(0)
	if wanted.New {
		position = r.end()
	}

	for begun := wanted.New; ; begun = true {
		found, next, missed, changed := r.from(position)
		position = next

		if begun && missed > 0 {
			if err := send(Followed{Missed: missed}); err != nil {
				return err
			}
		}

		selected, err := match.matching(ctx, found)
		if err != nil {
			return err
		}

		for _, call := range selected {
			if err := send(Followed{Call: call}); err != nil {
				return err
			}
		}

		select {
		case <-changed:
		case <-r.ended:
			return errEnding
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// decode reads the JSON of a request, and refuses unknown fields.
func decode(request *structpb.Struct, into any) error {
	text, err := request.MarshalJSON()
	if err != nil {
		return errdefs.Errorf(errdefs.ErrInvalidArgument, "read the request: %w", err)
	}

	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()

	if err := decoder.Decode(into); err != nil {
		return errdefs.Errorf(errdefs.ErrInvalidArgument, "read the request: %w", err)
	}

	return nil
}

package faults

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// Unary is the interceptor of calls. Calls of other services than CSI's pass.
func (i *Injector) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method, message := methodOf(info.FullMethod), asMessage(request)
	if method == nil || message == nil {
		return next(ctx, request)
	}

	message = restoreToken(message)
	hits := i.decide(ctx, i.matcher.callOf(ctx, method, message))

	if err := i.effects.before(ctx, hits, message); err != nil {
		return nil, err
	}

	response, failure := next(ctx, message)

	answer := asMessage(response)
	if failure == nil && answer != nil {
		answer, failure = i.alter(ctx, hits, method, message, answer)
	}

	if err := i.effects.after(ctx, hits, failure); err != nil {
		return nil, err
	}

	return answer, nil
}

func asMessage(message any) proto.Message {
	made, _ := message.(proto.Message)

	return made
}

// before does what hits do before the effect.
func (e *effects) before(ctx context.Context, hits []hit, request proto.Message) error {
	for _, each := range hits {
		act := &each.Act

		if act.Socket != nil {
			return e.vanish(ctx, each)
		}

		if act.Delay != nil {
			if err := e.wait(ctx, each, act.Delay.Before); err != nil {
				return status.FromContextError(err).Err()
			}
		}

		if each.Match.At != AtResponse {
			if err := e.stop(ctx, each); err != nil {
				return err
			}
		}

		if err := each.refusal(request); err != nil {
			return err
		}
	}

	return nil
}

// stop holds the call, or ends the process.
func (e *effects) stop(ctx context.Context, of hit) error {
	if of.Act.Hold != "" {
		if err := e.hold(ctx, of); err != nil {
			return status.FromContextError(err).Err()
		}
	}

	if of.Act.Crash {
		e.end(of)
	}

	return nil
}

// refusal is the error before the effect, or nil.
func (h hit) refusal(request proto.Message) error {
	switch {
	case h.Act.Unimplemented:
		return status.Errorf(codes.Unimplemented, "fault rule %s: not implemented", h.Name)
	case h.Act.Before != nil:
		return h.fail(h.Act.Before)
	}

	for _, key := range h.Act.RequireSecrets {
		if !hasSecret(request, key) {
			return status.Errorf(codes.Unauthenticated, "fault rule %s: the secret %q is missing", h.Name, key)
		}
	}

	return nil
}

func hasSecret(request proto.Message, key string) bool {
	with, ok := request.(interface{ GetSecrets() map[string]string })

	return ok && with.GetSecrets()[key] != ""
}

// fail makes the error of a rule.
func (h hit) fail(with *Failure) error {
	message := with.Message
	if message == "" {
		message = fmt.Sprintf("fault rule %s, hit %d", h.Name, h.number)
	}

	made := status.New(codes.Code(with.Code), message)
	details := make([]protoadapt.MessageV1, 0, len(with.Details))

	for _, each := range with.Details {
		if detail, err := each.message.UnmarshalNew(); err == nil {
			details = append(details, protoadapt.MessageV1Of(detail))
		}
	}

	made, _ = made.WithDetails(details...) // only a success has none

	return made.Err()
}

// after does what hits do after the effect. The call's own failure is returned if no response is lost:
// an effect that did not happen is not reported as one that did.
func (e *effects) after(ctx context.Context, hits []hit, failure error) error {
	for _, each := range hits {
		act := &each.Act

		if act.Delay != nil {
			if err := e.wait(ctx, each, act.Delay.After); err != nil {
				return status.FromContextError(err).Err()
			}
		}

		if each.Match.At == AtResponse {
			if err := e.stop(ctx, each); err != nil {
				return err
			}
		}

		switch act.Lose {
		case Hang:
			return e.hang(ctx, each)
		case Reset:
			return e.reset(ctx, each)
		}

		if failure == nil && act.After != nil {
			failure = each.fail(act.After)
		}
	}

	return failure
}

// hang waits until the caller gives up.
func (e *effects) hang(ctx context.Context, of hit) error {
	if err := await[struct{}](ctx, e, of, nil); err != nil {
		return status.FromContextError(err).Err()
	}

	return status.Errorf(codes.Unavailable, "fault rule %s: the response was lost until the rule was cleared or the driver ended", of.Name)
}

// reset closes the caller's connection. The error is for a transport without one.
func (e *effects) reset(ctx context.Context, of hit) error {
	lost := status.Errorf(codes.Unavailable, "fault rule %s: the connection was reset", of.Name)

	if connection := connectionOf(ctx); connection != nil {
		_ = connection.Close()

		// Nothing may be written before the server has noticed.
		select {
		case <-ctx.Done():
		case <-e.closed:
		}
	}

	return lost
}

// vanish hides the socket, and closes the caller's connection.
func (e *effects) vanish(ctx context.Context, of hit) error {
	if e.vanishSocket == nil {
		return status.Errorf(codes.Unavailable, "fault rule %s: the socket cannot be hidden", of.Name)
	}

	restore, err := e.vanishSocket()
	if err != nil {
		return status.Errorf(codes.Unavailable, "fault rule %s: hide the socket: %v", of.Name, err)
	}

	go func() {
		defer restore()

		_ = e.wait(context.WithoutCancel(ctx), of, of.Act.Socket.Vanish)
	}()

	return e.reset(ctx, of)
}

// Stream is the interceptor of streams of messages for one request.
func (i *Injector) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	method := methodOf(info.FullMethod)
	if method == nil {
		return next(service, stream)
	}

	request := newMessage(method.Input()).Interface()
	if err := stream.RecvMsg(request); err != nil {
		return err
	}

	hits := i.decide(stream.Context(), i.matcher.callOf(stream.Context(), method, request))
	if err := i.effects.before(stream.Context(), hits, request); err != nil {
		return err
	}

	faulty := &faultyStream{ServerStream: stream, injector: i, method: method, request: request, hits: hits}
	failure := next(service, faulty)

	if err := faulty.cutOff(true); err != nil && (failure == nil || errors.Is(failure, errCut)) {
		return err
	}

	return i.effects.after(stream.Context(), hits, failure)
}

// errCut ends the handler of a stream that a rule ends early.
var errCut = status.Error(codes.Unavailable, "a fault rule has ended the stream")

// faultyStream returns the request that was read already, and alters and counts the messages.
type faultyStream struct {
	grpc.ServerStream

	injector *Injector
	method   protoreflect.MethodDescriptor
	request  proto.Message
	hits     []hit
	received bool
	sent     int
}

// RecvMsg implements grpc.ServerStream.
func (s *faultyStream) RecvMsg(into any) error {
	message := asMessage(into)
	if s.received || message == nil {
		return s.ServerStream.RecvMsg(into)
	}

	s.received = true
	proto.Merge(message, s.request)

	return nil
}

// SendMsg implements grpc.ServerStream.
func (s *faultyStream) SendMsg(message any) error {
	if s.cutOff(false) != nil {
		return errCut
	}

	s.sent++

	if sent := asMessage(message); sent != nil {
		altered, err := s.injector.alter(s.Context(), s.hits, s.method, s.request, sent)
		if err != nil {
			return err
		}

		message = altered
	}

	return s.ServerStream.SendMsg(message)
}

// cutOff returns the error of a stream that ends here by a rule: after the messages that were sent, or at its
// end.
func (s *faultyStream) cutOff(end bool) error {
	for _, each := range s.hits {
		if cut := each.Act.Cut; cut != nil && (end || s.sent >= *cut) {
			return status.Errorf(codes.Unavailable, "fault rule %s: the stream ends after %d messages", each.Name, s.sent)
		}
	}

	return nil
}

// At is called by operations at a point, about an object with its id and name. It returns the error
// with which a rule lets the operation fail, waits, or ends the process.
func (i *Injector) At(ctx context.Context, point operation.Point, objects ...string) error {
	hits := i.decide(ctx, i.matcher.pointOf(point, objects))

	for _, each := range hits {
		if each.Act.Delay != nil {
			if err := i.effects.wait(ctx, each, each.Act.Delay.Before); err != nil {
				return err
			}
		}

		if err := i.effects.stop(ctx, each); err != nil {
			return err
		}

		if each.Act.Before != nil {
			return each.fail(each.Act.Before)
		}
	}

	return nil
}

// Start waits as the rules of the file say for the start of the driver.
func (i *Injector) Start(ctx context.Context) error {
	for _, each := range i.decide(ctx, occurrence{
		method: "start", matches: func(a *active) bool { return a.Act.Start != nil },
	}) {
		if err := i.effects.wait(ctx, each, each.Act.Start.Delay); err != nil {
			return err
		}
	}

	return nil
}

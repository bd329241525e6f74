package driver

import (
	"log/slog"
	"runtime/debug"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// codec decodes requests. One that cannot be decoded, mostly because a string in it is not
// UTF-8, is INVALID_ARGUMENT; grpc-go answers INTERNAL before any interceptor runs. So the codec
// keeps the problem for takeProblem, which the outermost interceptor calls for each request.
type codec struct {
	encoding.CodecV2

	// problems are by request, from its decoding to takeProblem.
	problems sync.Map
	log      *slog.Logger
}

func newCodec(log *slog.Logger) *codec {
	return &codec{CodecV2: encoding.GetCodecV2(protocodec.Name), log: log}
}

// recovered makes a panic INTERNAL: grpc-go calls the codec outside of the interceptors.
func (c *codec) recovered(err *error) { //nolint:gocritic // a deferred call changes the result
	if value := recover(); value != nil {
		c.log.Error("panic in the encoding of a message", "panic", value, "stack", string(debug.Stack()))

		*err = status.Error(codes.Internal, "defect of the driver; see its log")
	}
}

// Marshal implements encoding.CodecV2.
func (c *codec) Marshal(message any) (data mem.BufferSlice, err error) {
	defer c.recovered(&err)

	return c.CodecV2.Marshal(message)
}

// Unmarshal implements encoding.CodecV2.
func (c *codec) Unmarshal(data mem.BufferSlice, into any) (err error) {
	defer c.recovered(&err)

	err = c.CodecV2.Unmarshal(data, into)
	if err == nil {
		return nil
	}

	problem := err.Error()

	if message, ok := into.(proto.Message); ok {
		if field := notUTF8(message.ProtoReflect().Descriptor(), data.Materialize()); field != "" {
			problem = field + " is not valid UTF-8"
		}
	}

	c.problems.Store(into, problem)

	return nil
}

// undecodedKey is the key of the error of takeProblem in a call's context.
type undecodedKey struct{}

// takeProblem returns an INVALID_ARGUMENT status for a request that could not be decoded, and forgets
// the request.
func (c *codec) takeProblem(request any) error {
	if problem, failed := c.problems.LoadAndDelete(request); failed {
		return status.Errorf(codes.InvalidArgument, "the request cannot be read: %s", problem)
	}

	return nil
}

// notUTF8 returns the path of the first string in an encoded message that is
// not UTF-8, or "".
func notUTF8(descriptor protoreflect.MessageDescriptor, wire []byte) string {
	for len(wire) > 0 {
		number, kind, length := protowire.ConsumeField(wire)
		if length < 0 {
			return ""
		}

		_, _, tag := protowire.ConsumeTag(wire)
		field := descriptor.Fields().ByNumber(number)

		if field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(wire[tag:length])

			switch {
			case field.Kind() == protoreflect.StringKind && !utf8.Valid(value):
				return field.TextName()
			case field.Kind() == protoreflect.MessageKind:
				if inner := notUTF8(field.Message(), value); inner != "" {
					return field.TextName() + "." + inner
				}
			}
		}

		wire = wire[length:]
	}

	return ""
}

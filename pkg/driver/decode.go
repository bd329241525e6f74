package driver

import (
	"context"
	"log/slog"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A request that cannot be decoded, mostly because a string in it is not UTF-8, is
// INVALID_ARGUMENT. grpc-go answers INTERNAL before any interceptor runs. So the codec
// stores the failure in the envelope that the registrar has put around the message.

// envelope is what a request is decoded into.
type envelope struct {
	message any
	problem string
}

type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protocodec.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, into any) error {
	e, ok := into.(*envelope)
	if !ok {
		return c.CodecV2.Unmarshal(data, into)
	}

	if err := c.CodecV2.Unmarshal(data, e.message); err != nil {
		e.problem = err.Error()

		if message, ok := e.message.(proto.Message); ok {
			if field := notUTF8(message.ProtoReflect().Descriptor(), data.Materialize()); field != "" {
				e.problem = field + " is not valid UTF-8"
			}
		}
	}

	return nil
}

// decode receives into a message, and gives what cannot be read its code.
func decode(receive func(any) error, into any) error {
	e := &envelope{message: into}
	if err := receive(e); err != nil {
		return err
	}

	if e.problem != "" {
		return status.Error(codes.InvalidArgument, "the request cannot be read: "+e.problem)
	}

	return nil
}

// registrar registers services so that their requests are decoded by decode.
type registrar struct {
	grpc.ServiceRegistrar

	log *slog.Logger
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(description *grpc.ServiceDesc, service any) {
	own := *description
	own.Methods = make([]grpc.MethodDesc, len(description.Methods))

	for i, method := range description.Methods {
		own.Methods[i] = grpc.MethodDesc{MethodName: method.MethodName, Handler: r.wrap(description.ServiceName, method)}
	}

	r.ServiceRegistrar.RegisterService(&own, service)
}

func (r registrar) wrap(service string, method grpc.MethodDesc) grpc.MethodHandler {
	return func(srv any, ctx context.Context, receive func(any) error, next grpc.UnaryServerInterceptor) (any, error) {
		return method.Handler(srv, ctx, func(into any) error {
			err := decode(receive, into)
			if err != nil {
				r.log.InfoContext(ctx, "unreadable request", "method", "/"+service+"/"+method.MethodName, "error", err)
			}

			return err
		}, next)
	}
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

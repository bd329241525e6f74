package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Methods returns the RPCs of all services of CSI, from the registered descriptors.
func Methods() []protoreflect.MethodDescriptor {
	var found []protoreflect.MethodDescriptor

	protoregistry.GlobalFiles.RangeFilesByPackage(csi.File_csi_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				found = append(found, methods.Get(j))
			}
		}

		return true
	})

	slices.SortFunc(found, func(a, b protoreflect.MethodDescriptor) int { return strings.Compare(PathOf(a), PathOf(b)) })

	return found
}

// PathOf returns the name by which gRPC calls a method.
func PathOf(method protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
}

// NewMessage returns an empty message of a kind of CSI.
func NewMessage(kind protoreflect.MessageDescriptor) (proto.Message, error) {
	found, err := protoregistry.GlobalTypes.FindMessageByName(kind.FullName())
	if err != nil {
		return nil, err
	}

	return found.New().Interface(), nil
}

// Call calls a method, and receives all messages of a stream. It returns the error of the call.
func Call(ctx context.Context, connection grpc.ClientConnInterface, method protoreflect.MethodDescriptor, request proto.Message,
	options ...grpc.CallOption,
) error {
	response, err := NewMessage(method.Output())
	if err != nil {
		return err
	}

	if !method.IsStreamingServer() {
		return connection.Invoke(ctx, PathOf(method), request, response, options...)
	}

	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, PathOf(method), options...)
	if err == nil {
		err = stream.SendMsg(request)
	}

	if err == nil {
		err = stream.CloseSend()
	}

	for err == nil {
		err = stream.RecvMsg(response)
	}

	if errors.Is(err, io.EOF) {
		return nil
	}

	return err
}

// Field is a field of a request, or of a message in it.
type Field struct {
	protoreflect.FieldDescriptor

	// Path is the field's name, below those of the messages in which it is:
	// volume_capabilities[0].mount.fs_type.
	Path string
	in   func(root protoreflect.Message) protoreflect.Message
}

// In returns the message of a request that has the field. It adds the messages to the request that
// it lacks.
func (f Field) In(request proto.Message) protoreflect.Message { return f.in(request.ProtoReflect()) }

// Condition returns the path without the numbers of elements, as conditions have it.
func (f Field) Condition() string { return strings.ReplaceAll(f.Path, "[0]", "") }

// IsRequired reports whether the field can be missing and is REQUIRED.
func (f Field) IsRequired() bool {
	return slices.Contains(Required[f.ContainingMessage().FullName()], f.Name()) && f.Kind() != protoreflect.BoolKind &&
		f.Kind() != protoreflect.Int64Kind
}

// IsText reports whether the field has a string, strings, or a map of strings.
func (f Field) IsText() bool {
	return f.Kind() == protoreflect.StringKind || f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind
}

// IsSecret reports whether the spec marks the field as secret.
func (f Field) IsSecret() bool {
	marked, _ := proto.GetExtension(f.Options(), csi.E_CsiSecret).(bool)

	return marked
}

// Limit returns how many bytes the spec allows the field, which is a text: the string, each string
// of a list, all mount flags together, or all keys and values of a map.
func (f Field) Limit() int { return limitOf(f.FieldDescriptor) }

// SetText has the field hold the text alone; that of a map has the key.
func (f Field) SetText(request proto.Message, key, text string) {
	message, value := f.In(request), protoreflect.ValueOfString(text)

	switch {
	case f.IsMap():
		message.Clear(f.FieldDescriptor)
		message.Mutable(f.FieldDescriptor).Map().Set(protoreflect.ValueOfString(key).MapKey(), value)
	case f.IsList():
		message.Clear(f.FieldDescriptor)
		message.Mutable(f.FieldDescriptor).List().Append(value)
	default:
		message.Set(f.FieldDescriptor, value)
	}
}

// FieldsOf returns the fields of a message, and those of the messages in it. Of a list there are those
// of its first message.
func FieldsOf(kind protoreflect.MessageDescriptor) []Field {
	return fieldsOf(kind, "", func(root protoreflect.Message) protoreflect.Message { return root })
}

func fieldsOf(kind protoreflect.MessageDescriptor, path string, in func(protoreflect.Message) protoreflect.Message) []Field {
	var found []Field

	for i := range kind.Fields().Len() {
		field := kind.Fields().Get(i)
		found = append(found, Field{FieldDescriptor: field, Path: path + field.TextName(), in: in})

		switch {
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			found = append(found, fieldsOf(field.Message(), path+field.TextName()+"[0].", func(root protoreflect.Message) protoreflect.Message {
				list := in(root).Mutable(field).List()
				if list.Len() == 0 {
					list.AppendMutable()
				}

				return list.Get(0).Message()
			})...)
		default:
			found = append(found, fieldsOf(field.Message(), path+field.TextName()+".", func(root protoreflect.Message) protoreflect.Message {
				return in(root).Mutable(field).Message()
			})...)
		}
	}

	return found
}

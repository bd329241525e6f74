package rpc_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// kinds are those that a field can have, with a value of each.
var kinds = map[descriptorpb.FieldDescriptorProto_Type]protoreflect.Value{
	descriptorpb.FieldDescriptorProto_TYPE_STRING:  protoreflect.ValueOfString("hunter2"),
	descriptorpb.FieldDescriptorProto_TYPE_BYTES:   protoreflect.ValueOfBytes([]byte("hunter2")),
	descriptorpb.FieldDescriptorProto_TYPE_INT32:   protoreflect.ValueOfInt32(4711),
	descriptorpb.FieldDescriptorProto_TYPE_UINT64:  protoreflect.ValueOfUint64(4711),
	descriptorpb.FieldDescriptorProto_TYPE_DOUBLE:  protoreflect.ValueOfFloat64(4711),
	descriptorpb.FieldDescriptorProto_TYPE_BOOL:    protoreflect.ValueOfBool(true),
	descriptorpb.FieldDescriptorProto_TYPE_MESSAGE: {},
}

// fileOf returns the messages Sample, which has a field of each kind, alone, in a list and as the
// values of a map, marked as secret and not; and Inner, which has a secret and an open string.
func fileOf(t *testing.T) protoreflect.FileDescriptor {
	t.Helper()

	sample := &descriptorpb.DescriptorProto{Name: new("Sample")}

	add := func(to *descriptorpb.DescriptorProto, name string, kind descriptorpb.FieldDescriptorProto_Type, list, marked bool) *descriptorpb.FieldDescriptorProto {
		field := &descriptorpb.FieldDescriptorProto{
			Name: new(name), Number: new(int32(len(to.GetField()) + 1)), Type: kind.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Options: &descriptorpb.FieldOptions{},
		}
		if kind == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE {
			field.TypeName = new(".sample.Inner")
		}

		if list {
			field.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}

		if marked {
			proto.SetExtension(field.GetOptions(), csi.E_CsiSecret, true)
		}

		to.Field = append(to.Field, field)

		return field
	}

	for kind := range kinds {
		for _, suffix := range []string{"secret", "open"} {
			name, marked := strings.ToLower(strings.TrimPrefix(kind.String(), "TYPE_"))+"_", suffix == "secret"

			add(sample, name+suffix, kind, false, marked)
			add(sample, name+"list_"+suffix, kind, true, marked)

			entry := &descriptorpb.DescriptorProto{
				Name: new(camel(name+"map_"+suffix) + "Entry"), Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
			}
			add(entry, "key", descriptorpb.FieldDescriptorProto_TYPE_INT32, false, false)
			add(entry, "value", kind, false, false)
			sample.NestedType = append(sample.NestedType, entry)
			add(sample, name+"map_"+suffix, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, true, marked).
				TypeName = new(".sample.Sample." + entry.GetName())
		}
	}

	inner := &descriptorpb.DescriptorProto{Name: new("Inner")}
	add(inner, "secret", descriptorpb.FieldDescriptorProto_TYPE_BYTES, false, true)
	add(inner, "open", descriptorpb.FieldDescriptorProto_TYPE_STRING, false, false)

	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("sample.proto"), Package: new("sample"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{sample, inner},
	}, nil)
	require.NoError(t, err)

	return file
}

func camel(name string) string {
	var camel strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		camel.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}

	return camel.String()
}

// TestHideSecretsOfEachKind also hides what only a later version of the spec may have: secrets of
// other kinds than maps of strings, and in messages that are the values of a map.
func TestHideSecretsOfEachKind(t *testing.T) {
	t.Parallel()

	file := fileOf(t)
	inner := dynamicpb.NewMessage(file.Messages().ByName("Inner"))
	inner.Set(inner.Descriptor().Fields().ByName("secret"), protoreflect.ValueOfBytes([]byte("hunter2")))
	inner.Set(inner.Descriptor().Fields().ByName("open"), protoreflect.ValueOfString("shown"))

	fields := file.Messages().ByName("Sample").Fields()
	require.Equal(t, len(kinds)*6, fields.Len(), "want: the message has a field of each kind")

	for i := range fields.Len() {
		field := fields.Get(i)

		t.Run(string(field.Name()), func(t *testing.T) {
			t.Parallel()

			message := dynamicpb.NewMessage(file.Messages().ByName("Sample"))
			set(message, field, inner)

			before := message.String()
			copied := rpc.HideSecrets(message)
			hidden, text := copied.ProtoReflect().Get(field), fmt.Sprint(copied)
			require.Equal(t, before, message.String(), "the message itself was changed")

			switch {
			case strings.HasSuffix(string(field.Name()), "_secret"):
				require.False(t, hidden.Equal(message.Get(field)), "%s is not hidden", before)
				require.NotContains(t, text, "hunter2")
				require.NotContains(t, text, "shown")
			case strings.HasPrefix(string(field.Name()), "message_"):
				require.Contains(t, before, "hunter2")
				require.NotContains(t, text, "hunter2")
				require.Contains(t, text, "shown")
			default:
				require.True(t, hidden.Equal(message.Get(field)), "%s is hidden", before)
			}
		})
	}
}

// TestHideSecretsOfAllFields: a field that is hidden does not end the search for others.
func TestHideSecretsOfAllFields(t *testing.T) {
	t.Parallel()

	file := fileOf(t)
	message := dynamicpb.NewMessage(file.Messages().ByName("Sample"))
	inner := dynamicpb.NewMessage(file.Messages().ByName("Inner"))
	inner.Set(inner.Descriptor().Fields().ByName("secret"), protoreflect.ValueOfBytes([]byte("hunter2")))

	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		set(message, fields.Get(i), inner)
	}

	hidden := rpc.HideSecrets(message).ProtoReflect()

	for i := range fields.Len() {
		field := fields.Get(i)
		isShown := strings.HasSuffix(string(field.Name()), "_open") && !strings.HasPrefix(string(field.Name()), "message")
		require.Equal(t, isShown, hidden.Get(field).Equal(message.Get(field)), "want: %s is shown or hidden", field.Name())
	}
}

// set sets the field to the value of its kind, which is inner of a message.
func set(message *dynamicpb.Message, field protoreflect.FieldDescriptor, inner *dynamicpb.Message) {
	valueOf := func(kind protoreflect.Kind) protoreflect.Value {
		if kind == protoreflect.MessageKind {
			return protoreflect.ValueOfMessage(proto.Clone(inner).ProtoReflect())
		}

		return kinds[descriptorpb.FieldDescriptorProto_Type(kind)]
	}

	switch {
	case field.IsMap():
		message.Mutable(field).Map().Set(protoreflect.ValueOfInt32(1).MapKey(), valueOf(field.MapValue().Kind()))
	case field.IsList():
		message.Mutable(field).List().Append(valueOf(field.Kind()))
	default:
		message.Set(field, valueOf(field.Kind()))
	}
}

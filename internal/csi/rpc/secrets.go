package rpc

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// Stripped replaces each value that HideSecrets hides.
	Stripped = "***stripped***"
	// KeyTokens is the key of a volume_context by which the kubelet passes the pod's
	// service account tokens (CSIDriver's tokenRequests).
	KeyTokens = "csi.storage.k8s.io/serviceAccount.tokens" //nolint:gosec // the name of a key, no credential
)

// HideSecrets returns a copy of the message without the values that are or may be credentials:
// fields that the spec marks as secret, of which only the keys of maps of strings remain; mount flags; and the pod's tokens in a
// volume_context.
func HideSecrets(message proto.Message) proto.Message {
	message = proto.Clone(message)
	hideSecrets(message.ProtoReflect())

	return message
}

func hideSecrets(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		marked, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)

		switch {
		case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
			hideEntries(value.Map(), marked)
		case field.Kind() == protoreflect.StringKind && (marked || field.Name() == "mount_flags"):
			hideStrings(message, field, value)
		case marked:
			message.Clear(field)
		case field.IsMap() && field.MapValue().Kind() == protoreflect.MessageKind:
			value.Map().Range(func(_ protoreflect.MapKey, entry protoreflect.Value) bool {
				hideSecrets(entry.Message())

				return true
			})
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				hideSecrets(value.List().Get(i).Message())
			}
		default:
			hideSecrets(value.Message())
		}

		return true
	})
}

func hideStrings(message protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) {
	hidden := protoreflect.ValueOfString(Stripped)

	if !field.IsList() {
		message.Set(field, hidden)

		return
	}

	for i := range value.List().Len() {
		value.List().Set(i, hidden)
	}
}

func hideEntries(entries protoreflect.Map, marked bool) {
	hidden := protoreflect.ValueOfString(Stripped)

	entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		if marked || key.String() == KeyTokens {
			entries.Set(key, hidden)
		}

		return true
	})
}

package rpc

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
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
	_ = protorange.Range(message.ProtoReflect(), hideSecrets) // which returns no error

	return message
}

// hideSecrets hides the values of a field. protorange calls it for each value of the message, and for that of a
// field before those that it contains. It always returns nil, so that the other fields of the message are visited:
// protorange.Break would skip those after this one.
func hideSecrets(at protopath.Values) error {
	last := at.Index(-1)
	if last.Step.Kind() != protopath.FieldAccessStep {
		return nil
	}

	message, field := at.Index(-2).Value.Message(), last.Step.FieldDescriptor()
	marked, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
	isText := field.Kind() == protoreflect.StringKind && (marked || field.Name() == "mount_flags")
	hidden := protoreflect.ValueOfString(Stripped)

	switch {
	case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
		last.Value.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
			if marked || key.String() == KeyTokens {
				last.Value.Map().Set(key, hidden)
			}

			return true
		})
	case isText && field.IsList():
		for i := range last.Value.List().Len() {
			last.Value.List().Set(i, hidden)
		}
	case isText:
		message.Set(field, hidden)
	case marked:
		message.Clear(field)
	}

	return nil
}

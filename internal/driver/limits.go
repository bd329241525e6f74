package driver

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// The size limits of the CSI spec ("Size Limits", and the fields that override
// them), in bytes.
const (
	maxString = 128
	maxMap    = 4096
	// maxFlags is for all mount flags of a capability together.
	maxFlags = 4096
	// maxPath is Linux' PATH_MAX: paths are as long as the system allows.
	maxPath = 4096
)

// checkLimits refuses requests with fields larger than the spec allows, or with a NUL. It returns
// an INVALID_ARGUMENT status that names the field and its limit. Values are never repeated: they
// are too long, or may be secret.
func checkLimits(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return nil
	}

	if problem := checkMessage("", message.ProtoReflect()); problem != "" {
		return status.Error(codes.InvalidArgument, problem)
	}

	return nil
}

// checkMessage returns what is wrong with the first such field, or "". The prefix is the path of
// the message, with a dot at its end.
func checkMessage(prefix string, message protoreflect.Message) string {
	fields := message.Descriptor().Fields()

	for i := range fields.Len() {
		field := fields.Get(i)
		if !message.Has(field) {
			continue
		}

		if problem := checkField(prefix, field, message.Get(field)); problem != "" {
			return problem
		}
	}

	return ""
}

func checkField(prefix string, field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	switch {
	case field.Kind() == protoreflect.StringKind, field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
		return checkTexts(prefix, field, value)
	case field.IsMap(), field.Kind() != protoreflect.MessageKind:
		return ""
	case !field.IsList():
		return checkMessage(prefix+field.TextName()+".", value.Message())
	}

	for i := range value.List().Len() {
		if problem := checkMessage(fmt.Sprintf("%s%s[%d].", prefix, field.TextName(), i), value.List().Get(i).Message()); problem != "" {
			return problem
		}
	}

	return ""
}

// checkTexts checks the strings of a field. Those of a map count together, and all mount flags.
func checkTexts(prefix string, field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	secret, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
	limit, total := limitOf(field), 0

	for _, text := range rpc.TextsOf(field, value) {
		if total += len(text); total > limit {
			return fmt.Sprintf("%s has %d bytes or more; the CSI spec allows %d", prefix+field.TextName(), total, limit)
		}

		// A secret is the CO's, byte for byte.
		if strings.IndexByte(text, 0) >= 0 && !secret {
			return prefix + field.TextName() + " holds a NUL byte"
		}

		if !field.IsMap() && limit != maxFlags {
			total = 0
		}
	}

	return ""
}

// limits are those of strings with certain names.
var limits = map[protoreflect.Name]int{
	"mount_flags": maxFlags, "node_id": maxNodeID,
	"target_path": maxPath, "staging_target_path": maxPath, "volume_path": maxPath, "volume_publish_path": maxPath,
}

func limitOf(field protoreflect.FieldDescriptor) int {
	if field.IsMap() {
		return maxMap
	}

	return cmp.Or(limits[field.Name()], maxString)
}

package driver

import (
	"cmp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
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

	return protorange.Options{Stable: true}.Range(message.ProtoReflect(), checkField, nil)
}

// checkField checks the strings of a field. Those of a map count together, and all mount flags. Messages in a map
// have no limits.
func checkField(at protopath.Values) error {
	isInMap := func(step protopath.Step) bool { return step.Kind() == protopath.MapIndexStep }

	last := at.Index(-1)
	if last.Step.Kind() != protopath.FieldAccessStep || slices.ContainsFunc(at.Path, isInMap) {
		return nil
	}

	field := last.Step.FieldDescriptor()
	isText := field.Kind() == protoreflect.StringKind || field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind

	if !isText {
		return nil
	}

	secret, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
	path := strings.TrimPrefix(at.Path[1:].String(), ".")
	limit, total := limitOf(field), 0

	for _, text := range rpc.TextsOf(field, last.Value) {
		if total += len(text); total > limit {
			return status.Errorf(codes.InvalidArgument, "%s has %d bytes or more; the CSI spec allows %d", path, total, limit)
		}

		// A secret is the CO's, byte for byte.
		if strings.IndexByte(text, 0) >= 0 && !secret {
			return status.Error(codes.InvalidArgument, path+" holds a NUL byte")
		}

		if !field.IsMap() && limit != maxFlags {
			total = 0
		}
	}

	return nil
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

package rpc

import (
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// Texts returns the texts of a field of a message, nil if it has no such field of texts, or it is not set.
func Texts(message proto.Message, name protoreflect.Name) []string {
	reflection := message.ProtoReflect()

	field := reflection.Descriptor().Fields().ByName(name)
	if field == nil || field.Kind() != protoreflect.StringKind || field.IsMap() || !reflection.Has(field) {
		return nil
	}

	return TextsOf(field, reflection.Get(field))
}

// TextsOf returns the texts of a field's value. The field is a string, a list of strings or a map of strings to
// strings, of which the texts are the keys and the values.
func TextsOf(field protoreflect.FieldDescriptor, value protoreflect.Value) (texts []string) {
	switch {
	case field.IsMap():
		value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			texts = append(texts, key.String(), value.String())

			return true
		})
	case field.IsList():
		for i := range value.List().Len() {
			texts = append(texts, value.List().Get(i).String())
		}
	default:
		texts = []string{value.String()}
	}

	return texts
}

// Created returns the kind and the id of what a call has made, which its request could not name; "" for other
// responses.
func Created(response any) (kind, id string) {
	switch made := response.(type) {
	case *csi.CreateVolumeResponse:
		return "volume", made.GetVolume().GetVolumeId()
	case *csi.CreateSnapshotResponse:
		return "snapshot", made.GetSnapshot().GetSnapshotId()
	case *csi.CreateVolumeGroupSnapshotResponse:
		return "group", made.GetGroupSnapshot().GetGroupSnapshotId()
	default:
		return "", ""
	}
}

// CheckVolumeID is CheckID for the field volume_id.
func CheckVolumeID(id string) error { return CheckID("volume_id", id) }

// CheckID refuses an id that is missing or impossible with INVALID_ARGUMENT; the message
// names the field of the request. An id that is only unknown passes.
func CheckID(field, id string) error {
	if err := CheckPresent(field, id); err != nil {
		return err
	}

	if err := volume.CheckID(id); err != nil {
		return Invalid("%s: %w", field, err)
	}

	return nil
}

// CheckPresent refuses an empty field with INVALID_ARGUMENT.
func CheckPresent(field, value string) error {
	if value == "" {
		return Invalid("%s is missing", field)
	}

	return nil
}

// CheckAbsolute refuses a path that is not absolute with INVALID_ARGUMENT. An empty one passes.
func CheckAbsolute(field, path string) error {
	if path != "" && !filepath.IsAbs(path) {
		return Invalid("%s: %q is not absolute", field, path)
	}

	return nil
}

// CheckCapacityRange refuses with INVALID_ARGUMENT a range that has no sizes (CSI v1.13,
// CapacityRange). None at all passes.
func CheckCapacityRange(given *csi.CapacityRange) error {
	required, limit := given.GetRequiredBytes(), given.GetLimitBytes()

	switch {
	case given == nil:
		return nil
	case required < 0 || limit < 0:
		return Invalid("capacity_range: required_bytes %d and limit_bytes %d must not be negative", required, limit)
	case required == 0 && limit == 0:
		return Invalid("capacity_range is empty; name required_bytes, limit_bytes or both")
	case limit > 0 && limit < required:
		return Invalid("capacity_range: limit_bytes %d is less than required_bytes %d", limit, required)
	default:
		return nil
	}
}

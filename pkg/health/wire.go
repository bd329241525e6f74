package health

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The fields of VolumeCondition, and its own field in each message that had one
// (CSI v1.12; later ones reserve its number).
const (
	fieldCondition protowire.Number = 2
	fieldAbnormal  protowire.Number = 1
	fieldMessage   protowire.Number = 2
)

const (
	// healthyMessage is short: a list says it of nearly every volume.
	healthyMessage = "healthy"
	// maxMessage is the spec's limit for a string, in bytes. It holds for what
	// plugins say too.
	maxMessage = 128
	ellipsis   = "…"
	separator  = "; "
)

// PutCondition adds to message the VolumeCondition that CSI had until v1.12, as
// field 2: message is a VolumeStatus of ListVolumes or ControllerGetVolume, or
// NodeGetVolumeStatsResponse. A record that is nil is that of a healthy volume.
func PutCondition(message proto.Message, r *Record) {
	reflected := message.ProtoReflect()
	condition := r.encoded()

	if before := reflected.GetUnknown(); len(before) > 0 {
		condition = slices.Concat(before, condition)
	}

	reflected.SetUnknown(condition)
}

func (r *Record) encoded() []byte {
	switch {
	case r == nil:
		return encodeCondition(nil)
	case r.condition == nil:
		return encodeCondition(r.Entries)
	default:
		return r.condition
	}
}

// encodeCondition returns the field with the condition that normalized entries
// make. What nobody changes any more is encoded once and used as often as asked
// for.
func encodeCondition(entries []Entry) []byte {
	text := healthyMessage

	var condition []byte

	if len(entries) > 0 {
		text = inOne(entries)
		condition = protowire.AppendTag(condition, fieldAbnormal, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}

	condition = protowire.AppendTag(condition, fieldMessage, protowire.BytesType)
	condition = protowire.AppendString(condition, text)

	return protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), condition)
}

// inOne names every entry, within the limit of one string: where all of them
// would be too long, each gets an equal part of what the reasons leave.
func inOne(entries []Entry) string {
	whole, room := make([]string, len(entries)), maxMessage+len(separator)

	for i, entry := range entries {
		whole[i] = string(entry.Reason) + ": " + entry.Message
		room -= len(entry.Reason) + len(": ") + len(separator)
	}

	text := strings.Join(whole, separator)
	if len(text) <= maxMessage {
		return text
	}

	for i, entry := range entries {
		whole[i] = string(entry.Reason)
		if part := room / len(entries); part > len(ellipsis) {
			whole[i] += ": " + cut(entry.Message, part)
		}
	}

	return cut(strings.Join(whole, separator), maxMessage)
}

// cut returns as much of text as limit bytes hold.
func cut(text string, limit int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text
	}

	end := limit - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}

	return text[:end] + ellipsis
}

// VolumeHealth tells the health of the volume of that id in the words of CSI
// v1.13. A record that is nil is that of a healthy volume.
func (r *Record) VolumeHealth(id string) *csi.VolumeHealth {
	told := &csi.VolumeHealth{VolumeId: id}
	if r == nil {
		return told
	}

	for _, entry := range r.Entries {
		told.HealthStatuses = append(told.GetHealthStatuses(), &csi.VolumeHealth_VolumeHealthEntry{
			Status: entry.Status.ofVolume(), Reason: string(entry.Reason), Message: cut(entry.Message, maxMessage),
		})
	}

	return told
}

func (s Status) ofVolume() csi.VolumeHealthErrorType {
	switch s {
	case DataLoss:
		return csi.VolumeHealthErrorType_DATA_LOSS
	case Inaccessible, StorageUnreachable:
		return csi.VolumeHealthErrorType_INACCESSIBLE
	default:
		return csi.VolumeHealthErrorType_DEGRADED
	}
}

// StorageHealth tells the health of what volumes stand on in the words of CSI
// v1.13: one entry for each status and reason, the worst first, whose message is
// those of all that have it.
func StorageHealth(records []*Record) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	// The same each time, so that a CO does not repeat its event.
	ordered := slices.SortedFunc(slices.Values(records), func(a, b *Record) int { return strings.Compare(a.ID, b.ID) })

	var entries []Entry

	for _, r := range ordered {
		entries = append(entries, r.Entries...)
	}

	told := make([]*csi.NodeGetStorageHealthResponse_StorageBackendHealth, 0, len(entries))
	for _, entry := range normalize(entries) {
		told = append(told, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: entry.Status.ofStorage(), Reason: string(entry.Reason), Message: cut(entry.Message, maxMessage),
		})
	}

	return told
}

func (s Status) ofStorage() csi.StorageHealthErrorType {
	if s == StorageUnreachable {
		return csi.StorageHealthErrorType_STORAGE_UNREACHABLE
	}

	return csi.StorageHealthErrorType_STORAGE_DEGRADED
}

package health

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
)

// The fields of VolumeCondition, and its own field in each message that had one
// (CSI v1.12; later ones reserve its number).
const (
	fieldCondition protowire.Number = 2
	fieldAbnormal  protowire.Number = 1
	fieldMessage   protowire.Number = 2
)

const (
	// healthyMessage is short because a list has it for nearly every volume.
	healthyMessage = "healthy"
	separator      = "; "
)

// PutCondition adds the VolumeCondition of CSI v1.12 and before to message as field 2:
// message is a VolumeStatus of ListVolumes or ControllerGetVolume, or a
// NodeGetVolumeStatsResponse. A nil record means healthy.
func PutCondition(message proto.Message, r *Record) {
	reflected := message.ProtoReflect()
	condition := r.encoded()

	if before := reflected.GetUnknown(); len(before) > 0 {
		condition = slices.Concat(before, condition)
	}

	reflected.SetUnknown(condition)
}

// healthyCondition is shared by all messages of healthy subjects.
var healthyCondition = encodeCondition(nil)

func (r *Record) encoded() []byte {
	switch {
	case r == nil || r.Healthy():
		return healthyCondition
	case r.condition == "":
		return encodeCondition(r.Entries)
	default:
		return []byte(r.condition)
	}
}

// encodeCondition returns the encoded field for normalized entries.
func encodeCondition(entries []Entry) []byte {
	text := healthyMessage

	var condition []byte

	if len(entries) > 0 {
		text = joinMessages(entries)
		condition = protowire.AppendTag(condition, fieldAbnormal, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}

	condition = protowire.AppendTag(condition, fieldMessage, protowire.BytesType)
	condition = protowire.AppendString(condition, text)

	return protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), condition)
}

// joinMessages joins all entries within the limit of one string. If they are too
// long, all reasons are kept and each message gets an equal part of the rest.
func joinMessages(entries []Entry) string {
	whole, rest := make([]string, len(entries)), shorten.MaxBytes+len(separator)

	for i, entry := range entries {
		whole[i] = string(entry.Reason) + ": " + entry.Message
		rest -= len(entry.Reason) + len(": ") + len(separator)
	}

	text := strings.Join(whole, separator)
	if len(text) <= shorten.MaxBytes {
		return text
	}

	for i, entry := range entries {
		whole[i] = string(entry.Reason)
		if part := rest / len(entries); part > len(shorten.Ellipsis) {
			whole[i] += ": " + shorten.Text(entry.Message, part)
		}
	}

	return shorten.Text(strings.Join(whole, separator), shorten.MaxBytes)
}

// VolumeHealth returns the message of CSI v1.13 for the volume with that id. A nil
// record means healthy.
func (r *Record) VolumeHealth(id string) *csi.VolumeHealth {
	message := &csi.VolumeHealth{VolumeId: id}
	if r == nil {
		return message
	}

	for _, entry := range r.Entries {
		message.HealthStatuses = append(message.GetHealthStatuses(), &csi.VolumeHealth_VolumeHealthEntry{
			Status: entry.Status.volumeErrorType(), Reason: string(entry.Reason), Message: shorten.Text(entry.Message, shorten.MaxBytes),
		})
	}

	return message
}

func (s Status) volumeErrorType() csi.VolumeHealthErrorType {
	switch s {
	case DataLoss:
		return csi.VolumeHealthErrorType_DATA_LOSS
	case Inaccessible, StorageUnreachable:
		return csi.VolumeHealthErrorType_INACCESSIBLE
	default:
		return csi.VolumeHealthErrorType_DEGRADED
	}
}

// StorageHealth returns the messages of CSI v1.13 for pools and the state: one for each
// status and reason, the worst first, which joins the messages of all subjects.
func StorageHealth(records []*Record) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	// A fixed order, so that a CO does not repeat its event.
	ordered := slices.SortedFunc(slices.Values(records), func(a, b *Record) int { return strings.Compare(a.ID, b.ID) })

	var entries []Entry

	for _, r := range ordered {
		entries = append(entries, r.Entries...)
	}

	backends := make([]*csi.NodeGetStorageHealthResponse_StorageBackendHealth, 0, len(entries))
	for _, entry := range normalize(entries) {
		backends = append(backends, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: entry.Status.storageErrorType(), Reason: string(entry.Reason), Message: shorten.Text(entry.Message, shorten.MaxBytes),
		})
	}

	return backends
}

func (s Status) storageErrorType() csi.StorageHealthErrorType {
	if s == StorageUnreachable {
		return csi.StorageHealthErrorType_STORAGE_UNREACHABLE
	}

	return csi.StorageHealthErrorType_STORAGE_DEGRADED
}

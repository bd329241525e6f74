package health

import (
	"cmp"
	"slices"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// Status is the severity of a condition; greater is worse.
type Status int

// The statuses of volumes are those of csi.VolumeHealthErrorType, the last two
// those of csi.StorageHealthErrorType.
const (
	Degraded Status = iota + 1
	Inaccessible
	DataLoss
	StorageDegraded
	StorageUnreachable
)

// String is the spec's name.
func (s Status) String() string {
	switch s {
	case Degraded:
		return "DEGRADED"
	case Inaccessible:
		return "INACCESSIBLE"
	case DataLoss:
		return "DATA_LOSS"
	case StorageDegraded:
		return "STORAGE_DEGRADED"
	case StorageUnreachable:
		return "STORAGE_UNREACHABLE"
	default:
		return "UNKNOWN"
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; unknown names become 0.
func (s *Status) UnmarshalText(text []byte) error {
	*s = 0

	for each := Degraded; each <= StorageUnreachable; each++ {
		if each.String() == string(text) {
			*s = each
		}
	}

	return nil
}

// Reason is one cause of an unhealthy condition, in CamelCase: a stable API,
// documented in docs/volume-health.md.
type Reason string

// The reasons.
const (
	VolumeNotFound        Reason = "VolumeNotFound"
	BackingFileMissing    Reason = "BackingFileMissing"
	DeviceMissing         Reason = "DeviceMissing"
	DiskFailure           Reason = "DiskFailure"
	VolumeUnmounted       Reason = "VolumeUnmounted"
	StagingFailed         Reason = "StagingFailed"
	FilesystemCorrupted   Reason = "FilesystemCorrupted"
	BackingFileTruncated  Reason = "BackingFileTruncated"
	FilesystemErrors      Reason = "FilesystemErrors"
	ReadOnlyRemount       Reason = "ReadOnlyRemount"
	OutOfCapacity         Reason = "OutOfCapacity"
	InodesExhausted       Reason = "InodesExhausted"
	IOErrors              Reason = "IOErrors"
	SizeLimitEvaded       Reason = "SizeLimitEvaded"
	VolumeBusy            Reason = "VolumeBusy"
	GuestStatsUnavailable Reason = "GuestStatsUnavailable"
	CheckOverdue          Reason = "CheckOverdue"
	ProbeTimedOut         Reason = "ProbeTimedOut"

	PoolNearlyFull   Reason = "PoolNearlyFull"
	PoolReadOnly     Reason = "PoolReadOnly"
	RemovalFailed    Reason = "RemovalFailed"
	StateStoreFailed Reason = "StateStoreFailed"
	PoolUnreachable  Reason = "PoolUnreachable"
)

// reasonInfo has the fixed properties of a reason.
type reasonInfo struct {
	reason Reason
	status Status
	// evented reasons are announced by an event, so a relist that finds one has found
	// a missed event.
	evented bool
}

// reasonInfos is the table of all reasons, in the order of the documentation.
var reasonInfos = []reasonInfo{
	{VolumeNotFound, Inaccessible, true},
	{BackingFileMissing, Inaccessible, true},
	{DeviceMissing, Inaccessible, true},
	{DiskFailure, Inaccessible, true},
	{VolumeUnmounted, Inaccessible, true},
	{StagingFailed, Inaccessible, false},
	{FilesystemCorrupted, DataLoss, true},
	{BackingFileTruncated, DataLoss, true},
	{FilesystemErrors, Degraded, true},
	{ReadOnlyRemount, Degraded, true},
	{OutOfCapacity, Degraded, false},
	{InodesExhausted, Degraded, false},
	{IOErrors, Degraded, true},
	{SizeLimitEvaded, Degraded, false},
	{VolumeBusy, Degraded, false},
	{GuestStatsUnavailable, Degraded, false},
	{CheckOverdue, Degraded, false},
	{ProbeTimedOut, Degraded, false},
	{PoolNearlyFull, StorageDegraded, false},
	{PoolReadOnly, StorageDegraded, false},
	{RemovalFailed, StorageDegraded, false},
	{StateStoreFailed, StorageDegraded, false},
	{PoolUnreachable, StorageUnreachable, false},
}

// Reasons returns all reasons, in the order of the documentation.
func Reasons() []Reason {
	reasons := make([]Reason, 0, len(reasonInfos))
	for _, each := range reasonInfos {
		reasons = append(reasons, each.reason)
	}

	return reasons
}

func (r Reason) info() reasonInfo {
	if at := slices.IndexFunc(reasonInfos, func(t reasonInfo) bool { return t.reason == r }); at >= 0 {
		return reasonInfos[at]
	}

	return reasonInfo{reason: r, status: Degraded}
}

// Status returns the severity of the reason.
func (r Reason) Status() Status { return r.info().status }

// Evented reports whether an event announces the reason.
func (r Reason) Evented() bool { return r.info().evented }

// Entry is one reason with its message. The message is for people and names the
// cause; it has no counters or times, so that a CO does not repeat its event.
type Entry struct {
	Status  Status `json:"status"`
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
}

// NewEntry returns an entry with the reason's status.
func NewEntry(reason Reason, message string) Entry {
	return Entry{Status: reason.Status(), Reason: reason, Message: message}
}

// lostBackings are the reasons of volumes whose image or directory is not in place.
var lostBackings = map[volume.Backing]Reason{volume.BackingImage: BackingFileMissing, volume.BackingDirectory: VolumeNotFound}

// LostBacking returns the entry of a volume whose image or directory is not in place, for which how says
// what has happened to it.
func LostBacking(backing volume.Backing, how string) Entry {
	return NewEntry(lostBackings[backing], "its "+string(backing)+" "+how)
}

// normalize sorts the worst first, and merges entries with the same reason: the spec
// requires (status, reason) to be unique.
func normalize(entries []Entry) []Entry {
	sorted := slices.Clone(entries)
	slices.SortStableFunc(sorted, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Status, a.Status), cmp.Compare(a.Reason, b.Reason))
	})

	merged := sorted[:0]

	for _, entry := range sorted {
		last := len(merged) - 1
		if last < 0 || merged[last].Status != entry.Status || merged[last].Reason != entry.Reason {
			merged = append(merged, entry)

			continue
		}

		if !strings.Contains(merged[last].Message, entry.Message) {
			merged[last].Message += "; " + entry.Message
		}
	}

	return merged
}

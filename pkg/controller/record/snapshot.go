package record

import (
	"time"
	"unique"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// Snapshot is the record of a snapshot. It is immutable once it is in the store: a change stores a modified copy.
type Snapshot struct {
	ID string `json:"id"`
	// Name is empty for the member of a group.
	Name           string `json:"name"`
	SourceVolumeID string `json:"sourceVolumeId"`
	// GroupID is the group snapshot that the snapshot is a member of, or empty.
	GroupID string `json:"groupId,omitempty"`
	// SizeBytes is the size of the source when the snapshot was taken.
	SizeBytes int64 `json:"sizeBytes"`
	// AllocatedBytes is the space that the snapshot provisions in the pool.
	AllocatedBytes int64 `json:"allocatedBytes"`
	// Parameters are the source's.
	Parameters  volume.Parameters  `json:"parameters"`
	Consistency volume.Consistency `json:"consistency"`
	// Raw means that the source was raw block only.
	Raw       bool      `json:"raw,omitempty"`
	Segments  Segments  `json:"segments,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	// Sequence orders the snapshots of a volume, whatever the clock says. It is 0
	// before the snapshot is acknowledged, and in records of older versions.
	Sequence uint64 `json:"sequence,omitempty"`
	Phase    Phase  `json:"phase"`
}

// TakenBefore reports whether s was taken before another snapshot of its volume.
func (s *Snapshot) TakenBefore(other *Snapshot) bool {
	if s.Sequence == 0 || other.Sequence == 0 {
		return s.CreatedAt.Before(other.CreatedAt)
	}

	return s.Sequence < other.Sequence
}

// PhaseCopying is a phase of snapshots only: it is taken and acknowledged, its data are being
// copied, and the source must not be written until they are.
const PhaseCopying Phase = "copying"

// PhaseFailed is a phase of snapshots only: it is acknowledged, and its copy has failed. It never
// becomes ready, because its source may have changed since.
const PhaseFailed Phase = "failed"

// InternSnapshot shares equal values of the record with other records, as Interner does.
func InternSnapshot(key string, s *Snapshot) {
	if s.ID == key {
		s.ID = key
	}

	s.Parameters = unique.Make(s.Parameters).Value()
	s.Consistency = unique.Make(s.Consistency).Value()
	s.Phase = unique.Make(s.Phase).Value()
}

// IsVisible reports whether the snapshot exists for the CO.
func (s *Snapshot) IsVisible() bool {
	return s.Phase == PhaseReady || s.Phase == PhaseCopying || s.Phase == PhaseFailed
}

// Object returns the snapshot's pool object.
func (s *Snapshot) Object() pool.Object {
	return pool.Object{ID: s.ID, Backing: s.Parameters.Backing, Snapshot: true}
}

// InPhase returns a copy of the snapshot in another phase.
func (s *Snapshot) InPhase(phase Phase) *Snapshot {
	changed := *s
	changed.Phase = phase

	return &changed
}

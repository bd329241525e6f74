package record

import (
	"time"
	"unique"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Snapshot is what the store knows about one snapshot. A record is never
// changed once it is in the store: a change puts a copy in its place.
type Snapshot struct {
	ID             string `json:"id"`
	Name           string `json:"name"`
	SourceVolumeID string `json:"sourceVolumeId"`
	// GroupID is that of the group snapshot which the snapshot is a member of.
	GroupID string `json:"groupId,omitempty"`
	// SizeBytes is the size of the source when the snapshot was cut.
	SizeBytes int64 `json:"sizeBytes"`
	// AllocatedBytes is what the snapshot may come to hold of the pool alone.
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

// before reports whether s was taken before another snapshot of its volume.
func (s *Snapshot) TakenBefore(other *Snapshot) bool {
	if s.Sequence == 0 || other.Sequence == 0 {
		return s.CreatedAt.Before(other.CreatedAt)
	}

	return s.Sequence < other.Sequence
}

// PhaseCopying is a snapshot's: it is cut and acknowledged, its bytes are being
// copied, and nobody may write to the source until they are.
const PhaseCopying Phase = "copying"

// indexed frees the name of a snapshot as soon as its deletion is certain. The
// members of a group have none.
func (s *Snapshot) IndexedName() string {
	if s.Phase == PhaseDeleting {
		return ""
	}

	return s.Name
}

// share is sharing.share for a snapshot.
func (s *Snapshot) Intern() {
	s.Parameters = unique.Make(s.Parameters).Value()
	s.Consistency = unique.Make(s.Consistency).Value()
	s.Phase = unique.Make(s.Phase).Value()
}

// visible says whether a CO may see the snapshot.
func (s *Snapshot) IsVisible() bool { return s.Phase == PhaseReady || s.Phase == PhaseCopying }

func (s *Snapshot) Object() pool.Object {
	return pool.Object{ID: s.ID, Backing: s.Parameters.Backing, Snapshot: true}
}

// in returns the snapshot in another phase.
func (s *Snapshot) InPhase(phase Phase) *Snapshot {
	changed := *s
	changed.Phase = phase

	return &changed
}

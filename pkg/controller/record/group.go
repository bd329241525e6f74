package record

import (
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Group is the record of a group snapshot.
type Group struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// SourceVolumeIDs are sorted, and SnapshotIDs in the same order.
	SourceVolumeIDs []string           `json:"sourceVolumeIds"`
	SnapshotIDs     []string           `json:"snapshotIds"`
	Consistency     volume.Consistency `json:"consistency"`
	CreatedAt       time.Time          `json:"createdAt"`
	Phase           Phase              `json:"phase"`
}

// InPhase returns a copy of the group in another phase; nil of nil.
func (g *Group) InPhase(phase Phase) *Group {
	if g == nil {
		return nil
	}

	changed := *g
	changed.Phase = phase

	return &changed
}

// CheckMembers returns INVALID_ARGUMENT unless these are the group's members, in
// any order.
func (g *Group) CheckMembers(memberIDs []string) error {
	if !slices.Equal(slices.Sorted(slices.Values(memberIDs)), slices.Sorted(slices.Values(g.SnapshotIDs))) {
		return errdefs.Errorf(errdefs.ErrInvalidArgument,
			"snapshot_ids: group snapshot %s consists of %v, not of %v", g.ID, g.SnapshotIDs, memberIDs)
	}

	return nil
}

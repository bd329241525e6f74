package controller

import (
	"time"

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
	Phase     Phase     `json:"phase"`
}

// PhaseCopying is a snapshot's: it is cut and acknowledged, its bytes are being
// copied, and nobody may write to the source until they are.
const PhaseCopying Phase = "copying"

// Group is what the store knows about one group snapshot.
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

// Source is what a volume was made of; one of the two is set.
type Source struct {
	SnapshotID string `json:"snapshotId,omitempty"`
	VolumeID   string `json:"volumeId,omitempty"`
}

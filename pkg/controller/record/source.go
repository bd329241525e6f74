package record

import (
	"cmp"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Source is the content source of a volume; at most one of the two is set.
type Source struct {
	SnapshotID string `json:"snapshotId,omitempty"`
	VolumeID   string `json:"volumeId,omitempty"`
}

// ContentSource returns the source as a CSI message; nil is none.
func (s Source) ContentSource() *csi.VolumeContentSource {
	switch {
	case s.SnapshotID != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.SnapshotID},
		}}
	case s.VolumeID != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.VolumeID},
		}}
	default:
		return nil
	}
}

// IsZero reports whether there is no source.
func (s Source) IsZero() bool { return s == Source{} }

// String is for messages.
func (s Source) String() string {
	if s.IsZero() {
		return "nothing"
	}

	return cmp.Or(s.SnapshotID, s.VolumeID)
}

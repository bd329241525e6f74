package node

import (
	"slices"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Use is what was asked for one volume on this node. A record is never changed
// once it is in the store: a change puts a copy in its place.
type Use struct {
	VolumeID    string            `json:"volumeId"`
	StagingPath string            `json:"stagingPath"`
	Capability  volume.Capability `json:"capability"`
	Parameters  volume.Parameters `json:"parameters"`
	// ReadOnly means that the volume was attached to this node for reading.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Copy means that the volume was made from another, so that its filesystem
	// has that one's UUID until its first staging.
	Copy bool `json:"copy,omitempty"`
	// Slot is the attachment's number on this node, -1 where the CO passed
	// none on.
	Slot int `json:"slot"`
	// FilledBytes is how large the device of a direct volume was when its filesystem
	// last took all of it; what the device has more is pending.
	FilledBytes  int64         `json:"filledBytes,omitempty"`
	Publications []Publication `json:"publications,omitempty"`

	// ephemeral means that the volume is in its pool's room for those.
	ephemeral bool
}

func (u *Use) recordID() string { return u.VolumeID }

// Publication is one target path (CSI v1.13, NodePublishVolume).
type Publication struct {
	TargetPath string            `json:"targetPath"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	Capability volume.Capability `json:"capability"`
	// Made says that the target was not there before, so it goes with the
	// publication.
	Made bool `json:"made,omitempty"`
	// Pod is whose limits hold for the publication, empty where nobody says.
	Pod string `json:"pod,omitempty"`
}

func (u *Use) clone() *Use {
	changed := *u
	changed.Publications = slices.Clone(u.Publications)

	return &changed
}

func (u *Use) publication(target string) (Publication, bool) {
	at := slices.IndexFunc(u.Publications, func(p Publication) bool { return p.TargetPath == target })
	if at < 0 {
		return Publication{}, false
	}

	return u.Publications[at], true
}

func (u *Use) without(target string) *Use {
	changed := u.clone()
	changed.Publications = slices.DeleteFunc(changed.Publications,
		func(p Publication) bool { return p.TargetPath == target })

	return changed
}

func (u *Use) image() bool { return u.Parameters.Backing == volume.BackingImage }

// direct says whether the volume's filesystem is mounted in a virtual machine.
func (u *Use) direct() bool { return u.Parameters.DirectAssign && !u.Capability.Block }

// byDevice says whether the volume is used through a device that nothing is
// mounted from here.
func (u *Use) byDevice() bool { return u.Capability.Block || u.direct() }

// readOnly says whether nothing may be written on this node at all.
func (u *Use) readOnly() bool { return u.ReadOnly || u.Capability.ReaderOnly() }

// sharedReaders says whether other nodes read the same image right now, so that
// not even a journal may be replayed.
func (u *Use) sharedReaders() bool { return u.Capability.ReaderOnly() && !u.Capability.SingleNode() }

func (u *Use) fsType() string {
	if u.Capability.FSType != "" {
		return u.Capability.FSType
	}

	return u.Parameters.FSType
}

package staged

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Volume is the record of a volume staged on this node: the parameters of its staging
// and its publications. A record in the store is never modified; an updated copy
// replaces it.
type Volume struct {
	VolumeID    string            `json:"volumeId"`
	StagingPath string            `json:"stagingPath"`
	Capability  volume.Capability `json:"capability"`
	Parameters  volume.Parameters `json:"parameters"`
	// ReadOnly means that the volume was attached to this node for reading only.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Copy means that the volume was created from another one, so that its filesystem has
	// the UUID of that one until the first staging changes it.
	Copy bool `json:"copy,omitempty"`
	// Slot is the device slot of the attachment on this node, -1 if the CO passed none on.
	Slot int `json:"slot"`
	// FilledBytes is the size of a direct volume's device when its filesystem last filled
	// it. The rest of the device is pending growth.
	FilledBytes int64 `json:"filledBytes,omitempty"`
	// Device is what a mounted image was attached to last. As long as it is attached the volume is in
	// use, mounted or not.
	Device       *Device       `json:"device,omitempty"`
	Publications []Publication `json:"publications,omitempty"`
	// Persistent are the publications that each start of the driver makes again, whether the volume is
	// published there now or not. The record stays as long as it has any.
	Persistent []Publication `json:"persistent,omitempty"`

	// Ephemeral means that the volume is stored in its pool's directory for inline
	// ephemeral volumes, where its object has the name Content.
	Ephemeral bool      `json:"-"`
	Content   ContentID `json:"-"`
}

// ObjectID returns the name of the volume's image or directory in its pool.
func (v *Volume) ObjectID() string { return cmp.Or(string(v.Content), v.VolumeID) }

// Object returns the volume's image or directory in its pool.
func (v *Volume) Object() pool.Object {
	return pool.Object{ID: v.ObjectID(), Backing: v.Parameters.Backing}
}

// NoSlot is the Slot of a volume of which the CO passed on none.
const NoSlot = -1

// RecordID returns the key of the record in the store.
func (v *Volume) RecordID() string { return v.VolumeID }

// Device is one attachment to a loop device: the disk sequence distinguishes it from later ones of the
// number in the same boot. Another boot may give both to another image.
type Device struct {
	Number   int    `json:"number"`
	Sequence uint64 `json:"sequence"`
}

// NewVolumes registers the collection of staged volumes in store, which must not be open yet.
func NewVolumes(store *state.Store) *Records[*Volume] { return NewRecords[*Volume](store, "uses") }

// Check implements [Record]. Of a volume that was found mounted without a record, only the backing and
// the filesystem are known.
func (v *Volume) Check() error {
	if err := cmp.Or(checkPublications(v.Publications), checkPublications(v.Persistent)); err != nil {
		return err
	}

	if v.Slot < -1 || v.FilledBytes < 0 {
		return fmt.Errorf("%w: slot %d, filledBytes %d", ErrRecord, v.Slot, v.FilledBytes)
	}

	if v.Capability.Mode == "" && v.Parameters.Pool == "" {
		return cmp.Or(volume.CheckID(v.VolumeID), v.Parameters.CheckFound())
	}

	return cmp.Or(volume.CheckID(v.VolumeID), v.Capability.Check(), v.Parameters.Check())
}

func checkPublications(all []Publication) error {
	for i, each := range all {
		if _, again := publicationAt(all[:i], each.TargetPath); again {
			return fmt.Errorf("%w: it is published twice at %q", ErrRecord, each.TargetPath)
		}

		if err := each.Check(); err != nil {
			return err
		}
	}

	return nil
}

// Publication is the volume at one target path (CSI v1.13, NodePublishVolume).
type Publication struct {
	TargetPath string            `json:"targetPath"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	Capability volume.Capability `json:"capability"`
	// Made means that the driver created the target path, so it removes it, too.
	Made bool `json:"made,omitempty"`
	// Pod is the UID of the pod whose limits apply to the publication, empty if unknown.
	Pod string `json:"pod,omitempty"`
}

// Check refuses a publication without a path, or with a capability of an unknown value.
func (p Publication) Check() error {
	if p.TargetPath == "" {
		return fmt.Errorf("%w: it is published at no path", ErrRecord)
	}

	return p.Capability.Check()
}

// Clone returns a copy that may be modified.
func (v *Volume) Clone() *Volume {
	changed := *v
	changed.Publications, changed.Persistent = slices.Clone(v.Publications), slices.Clone(v.Persistent)

	return &changed
}

// Differences names in what a wanted publication of the volume differs from an existing one; it is
// empty if they have the same capability and readonly flag.
func (v *Volume) Differences(existing, wanted Publication) string {
	return existing.use().Differences(wanted.use(), v.FSType())
}

func (p Publication) use() volume.Use {
	return volume.Use{Capability: p.Capability, ReadOnly: p.ReadOnly}
}

// PublicationAt returns the publication at the target path, false if there is none.
func (v *Volume) PublicationAt(target string) (Publication, bool) {
	return publicationAt(v.Publications, target)
}

func publicationAt(all []Publication, target string) (Publication, bool) {
	at := slices.IndexFunc(all, func(p Publication) bool { return p.TargetPath == target })
	if at < 0 {
		return Publication{}, false
	}

	return all[at], true
}

// WithoutPublication returns a copy without the publication at the target path.
func (v *Volume) WithoutPublication(target string) *Volume {
	changed := v.Clone()
	changed.Publications = without(changed.Publications, target)

	return changed
}

// IsPersistentAt reports whether each start of the driver publishes the volume at the target path.
func (v *Volume) IsPersistentAt(target string) bool {
	_, ok := publicationAt(v.Persistent, target)

	return ok
}

// IsOnlyPersistent reports whether the volume has publications for the next start only: the last one could not
// make them.
func (v *Volume) IsOnlyPersistent() bool { return len(v.Publications) == 0 && len(v.Persistent) > 0 }

// WithPersistent returns a copy that each start of the driver publishes like that.
func (v *Volume) WithPersistent(publication Publication) *Volume {
	changed := v.WithoutPersistent(publication.TargetPath)
	changed.Persistent = append(changed.Persistent, publication)

	return changed
}

// WithoutPersistent returns a copy that no start of the driver publishes at the target path.
func (v *Volume) WithoutPersistent(target string) *Volume {
	changed := v.Clone()
	changed.Persistent = without(changed.Persistent, target)

	return changed
}

// Unused returns the record of the volume while it is neither staged nor published.
func (v *Volume) Unused() *Volume {
	changed := *v
	changed.Publications, changed.Device, changed.FilledBytes = nil, nil, 0

	return &changed
}

func without(all []Publication, target string) []Publication {
	return slices.DeleteFunc(all, func(p Publication) bool { return p.TargetPath == target })
}

// IsDirect reports whether the volume's filesystem is mounted by a guest and not by the
// host.
func (v *Volume) IsDirect() bool { return v.Parameters.DirectAssign && !v.Capability.Block }

// ExposesRawDevice reports whether the volume is used through its loop device itself,
// which has no mount on the host.
func (v *Volume) ExposesRawDevice() bool { return v.Capability.Block || v.IsDirect() }

// IsMountedImage reports whether the volume's image is mounted on the host, so that its filesystem can be
// frozen.
func (v *Volume) IsMountedImage() bool {
	return v.Parameters.Backing.HasFilesystem() && !v.ExposesRawDevice()
}

// IsReadOnly reports whether this node may not write to the volume at all.
func (v *Volume) IsReadOnly() bool { return v.ReadOnly || v.Capability.ReaderOnly() }

// SharedByReaders reports whether other nodes may read the same image at the same time,
// so that not even a filesystem's log may be replayed.
func (v *Volume) SharedByReaders() bool {
	return v.Capability.ReaderOnly() && !v.Capability.SingleNode()
}

// CapabilityDifferences names in what a capability differs from that of the staging; it is empty if
// they are the same. Both may leave the filesystem open or name it.
func (v *Volume) CapabilityDifferences(wanted volume.Capability) string {
	return volume.Use{Capability: v.Capability}.Differences(volume.Use{Capability: wanted}, v.FSType())
}

// FSType returns the filesystem of the capability, or else of the volume's parameters.
func (v *Volume) FSType() string {
	return cmp.Or(v.Capability.FSType, v.Parameters.FSType)
}

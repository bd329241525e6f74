package staged

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Volumes are the volumes in use on a node. Their ids are those that the CO uses.
type Volumes struct {
	Staged *Records[*Volume]
	Inline *InlineRecords
}

// Record stores the record of a volume that is about to be staged or published, so that a kill leaves it.
// A power failure ends mounts and devices with it, but not what a virtual machine was assigned.
func (v Volumes) Record(ctx context.Context, about *Volume) error {
	if about.IsDirect() {
		return v.Staged.Put(ctx, about)
	}

	return v.Staged.PutUnsynced(ctx, about)
}

// Get returns the volume that is staged or published here, and the record it was made
// of: another record means that an operation has changed the volume.
func (v Volumes) Get(id string) (volume *Volume, record Record, ok bool) {
	if staged, ok := v.Staged.Get(id); ok {
		return staged, staged, true
	}

	inline, ok := v.Inline.Get(id)
	if !ok {
		return nil, nil, false
	}

	volume = inline.StagedVolume()

	return volume, inline, true
}

// At returns the volume that is staged or published at the path. Error: NOT_FOUND, with a volume that is in use
// elsewhere.
func (v Volumes) At(id, path string) (*Volume, error) {
	if inline, ok := v.Inline.At(id, path); ok {
		return inline.StagedVolume(), nil
	}

	return At(v.Staged, id, path)
}

// At is Volumes.At of the staged volumes alone.
func At(staged *Records[*Volume], id, path string) (*Volume, error) {
	found, known := staged.Get(id)
	if !known {
		return nil, NotInUseError(id)
	}

	if _, published := found.PublicationAt(path); !published && path != found.StagingPath {
		return found, errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not at %s", id, path)
	}

	return found, nil
}

// NotInUseError returns the NOT_FOUND of a volume that has no record on this node.
func NotInUseError(id string) error {
	return errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not in use on this node", id)
}

// IDs returns the ids of these volumes.
func (v Volumes) IDs() []string {
	staged, inline := v.Staged.All(), v.Inline.All()
	ids := make([]string, 0, len(staged)+len(inline))

	for _, each := range staged {
		ids = append(ids, each.VolumeID)
	}

	for _, each := range inline {
		ids = append(ids, each.VolumeID)
	}

	return ids
}

// IsInline reports whether the volume is an inline ephemeral one.
func (v Volumes) IsInline(id string) bool {
	_, inline := v.Inline.Get(id)

	return inline
}

// OfObject returns the volume whose pool object has the name. Most volumes' is their id.
func (v Volumes) OfObject(name string) string {
	if id, inline := v.Inline.VolumeOf(ContentID(name)); inline {
		return id
	}

	return name
}

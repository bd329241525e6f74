package ephemeral

import (
	"cmp"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Volume is the record of an inline ephemeral volume. It is immutable. Unlike staged.Volume it names
// the pool object, which no other record names.
type Volume struct {
	// VolumeID is the CO's id, only the key of the record.
	VolumeID string `json:"volumeId"`
	// ContentID is the driver's id, which names the pool object.
	ContentID  string            `json:"contentId"`
	SizeBytes  int64             `json:"sizeBytes"`
	Parameters volume.Parameters `json:"parameters"`
	// Publication is the only one: the volume exists as long as it does.
	Publication staged.Publication `json:"publication"`
}

// RecordID returns the key of the record.
func (r *Volume) RecordID() string { return r.VolumeID }

// Check implements [staged.Record].
func (r *Volume) Check() error {
	if !volume.IsID(r.ContentID) || r.SizeBytes < 0 {
		return fmt.Errorf("%w: contentId %q, sizeBytes %d", staged.ErrRecord, r.ContentID, r.SizeBytes)
	}

	return cmp.Or(volume.CheckID(r.VolumeID), r.Parameters.Check(), r.Publication.Check())
}

// NewRecords registers the collection of the volumes in store, which must not be open yet. No two
// have the same content.
func NewRecords(store *state.Store, options ...state.CollectionOption[*Volume]) *staged.Records[*Volume] {
	options = append(options, state.WithIndex("contentId", func(r *Volume) string { return r.ContentID }))

	return staged.NewRecords(store, "ephemerals", options...)
}

// StagedVolume returns the volume as a staged.Volume.
func (r *Volume) StagedVolume() *staged.Volume {
	return &staged.Volume{
		VolumeID: r.ContentID, Capability: r.Publication.Capability, Parameters: r.Parameters,
		ReadOnly: r.Publication.ReadOnly, Slot: access.NoDevice, Publications: []staged.Publication{r.Publication}, Ephemeral: true,
	}
}

// object is the content of the volume in its pool.
func (r *Volume) object() pool.Object {
	return pool.Object{ID: r.ContentID, Backing: r.Parameters.Backing}
}

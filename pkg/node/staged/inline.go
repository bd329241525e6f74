package staged

import (
	"cmp"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// ContentID names the pool object of an inline ephemeral volume. It is the driver's: the CO's id of such a
// volume may be of any form.
type ContentID string

// Inline is the record of an inline ephemeral volume. It is immutable. Unlike Volume it names
// the pool object, which no other record names.
type Inline struct {
	// VolumeID is the CO's id.
	VolumeID   string            `json:"volumeId"`
	ContentID  ContentID         `json:"contentId"`
	SizeBytes  int64             `json:"sizeBytes"`
	Parameters volume.Parameters `json:"parameters"`
	// Publication is the only one: the volume exists as long as it does.
	Publication Publication `json:"publication"`
}

// RecordID returns the key of the record.
func (r *Inline) RecordID() string { return r.VolumeID }

// Check implements [Record].
func (r *Inline) Check() error {
	if !volume.IsID(string(r.ContentID)) || r.SizeBytes < 0 {
		return fmt.Errorf("%w: contentId %q, sizeBytes %d", ErrRecord, r.ContentID, r.SizeBytes)
	}

	return cmp.Or(volume.CheckID(r.VolumeID), r.Parameters.Check(), r.Publication.Check())
}

// StagedVolume returns it as a staged volume.
func (r *Inline) StagedVolume() *Volume {
	return &Volume{
		VolumeID: r.VolumeID, Content: r.ContentID, Capability: r.Publication.Capability, Parameters: r.Parameters,
		ReadOnly: r.Publication.ReadOnly, Slot: NoSlot, Publications: []Publication{r.Publication}, Ephemeral: true,
	}
}

// Object is the content of the volume in its pool.
func (r *Inline) Object() pool.Object {
	return pool.Object{ID: string(r.ContentID), Backing: r.Parameters.Backing}
}

// InlineRecords are the records of inline ephemeral volumes.
type InlineRecords struct {
	*Records[*Inline]

	provisioned pool.Provisioned
}

// NewInlineRecords registers the collection in store, which must not be open yet. No two volumes have
// the same content.
func NewInlineRecords(store *state.Store) *InlineRecords {
	r := &InlineRecords{}
	r.Records = NewRecords(store, "ephemerals",
		state.WithIndex("contentId", func(v *Inline) string { return string(v.ContentID) }), state.WithObserver(r.observe))

	return r
}

// observe updates the sum of the pool with a change of the store.
func (r *InlineRecords) observe(_ string, old, now *Inline, hadOld, hasNow bool) {
	if hadOld {
		r.provisioned.Add(old.Parameters.Pool, -old.SizeBytes)
	}

	if hasNow {
		r.provisioned.Add(now.Parameters.Pool, now.SizeBytes)
	}
}

// VolumeOf returns the volume with that content, false where there is none. A node has few inline volumes.
func (r *InlineRecords) VolumeOf(content ContentID) (string, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()

	for _, each := range r.newest {
		if each.ContentID == content {
			return each.VolumeID, true
		}
	}

	return "", false
}

// ProvisionedBytes returns the total size of inline ephemeral volumes in the pool.
func (r *InlineRecords) ProvisionedBytes(poolName string) int64 { return r.provisioned.Bytes(poolName) }

// At returns the volume with that id if the path is its target.
func (r *InlineRecords) At(id, path string) (*Inline, bool) {
	found, ok := r.Get(id)
	if !ok || found.Publication.TargetPath != path {
		return nil, false
	}

	return found, true
}

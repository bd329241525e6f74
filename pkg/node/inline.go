package node

import (
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Ephemeral is the record of an inline ephemeral volume. It is immutable. Unlike staged.Volume it names the pool object: no other record does.
type Ephemeral struct {
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
func (e *Ephemeral) RecordID() string { return e.VolumeID }

// use returns the volume as a staged.Volume.
func (e *Ephemeral) use() *staged.Volume {
	return &staged.Volume{
		VolumeID: e.ContentID, Capability: e.Publication.Capability, Parameters: e.Parameters,
		ReadOnly: e.Publication.ReadOnly, Slot: access.NoDevice, Publications: []staged.Publication{e.Publication}, Ephemeral: true,
	}
}

// inline holds the records of inline ephemeral volumes, and their sums.
type inline struct {
	*staged.Records[*Ephemeral]

	mu          sync.Mutex
	provisioned map[string]int64
}

func newInline(store *state.Store) *inline {
	i := &inline{provisioned: map[string]int64{}}
	i.Records = staged.NewRecords(store, "ephemerals", state.WithObserver(i.observe))

	return i
}

func (i *inline) observe(_ string, old, now *Ephemeral, hadOld, hasNow bool) {
	i.mu.Lock()
	defer i.mu.Unlock()

	if hadOld {
		i.provisioned[old.Parameters.Pool] -= old.SizeBytes
	}

	if hasNow {
		i.provisioned[now.Parameters.Pool] += now.SizeBytes
	}
}

// at returns the volume of that id if its only target is the path.
func (i *inline) at(id, path string) (*Ephemeral, bool) {
	found, ok := i.Get(id)
	if !ok || found.Publication.TargetPath != path {
		return nil, false
	}

	return found, true
}

func (i *inline) provisionedBytes(pool string) int64 {
	i.mu.Lock()
	defer i.mu.Unlock()

	return i.provisioned[pool]
}

package ephemeral

import (
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Record is the record of an inline ephemeral volume. It is immutable. Unlike staged.Volume it names
// the pool object, which no other record names.
type Record struct {
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
func (r *Record) RecordID() string { return r.VolumeID }

// StagedVolume returns the volume as a staged.Volume.
func (r *Record) StagedVolume() *staged.Volume {
	return &staged.Volume{
		VolumeID: r.ContentID, Capability: r.Publication.Capability, Parameters: r.Parameters,
		ReadOnly: r.Publication.ReadOnly, Slot: access.NoDevice, Publications: []staged.Publication{r.Publication}, Ephemeral: true,
	}
}

// object is the content of the volume in its pool.
func (r *Record) object() pool.Object {
	return pool.Object{ID: r.ContentID, Backing: r.Parameters.Backing}
}

// records holds the records of inline ephemeral volumes, and their sums.
type records struct {
	*staged.Records[*Record]

	mu          sync.Mutex
	provisioned map[string]int64
}

func newRecords(store *state.Store) *records {
	r := &records{provisioned: map[string]int64{}}
	r.Records = staged.NewRecords(store, "ephemerals", state.WithObserver(r.observe))

	return r
}

func (r *records) observe(_ string, old, now *Record, hadOld, hasNow bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if hadOld {
		r.provisioned[old.Parameters.Pool] -= old.SizeBytes
	}

	if hasNow {
		r.provisioned[now.Parameters.Pool] += now.SizeBytes
	}
}

// at returns the volume of that id if its only target is the path.
func (r *records) at(id, path string) (*Record, bool) {
	found, ok := r.Get(id)
	if !ok || found.Publication.TargetPath != path {
		return nil, false
	}

	return found, true
}

func (r *records) provisionedBytes(pool string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.provisioned[pool]
}

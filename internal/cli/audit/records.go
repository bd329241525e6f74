package audit

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// object is an object in the pool of that name.
type object struct {
	pool.Object

	pool string
}

// records are the records of a state that concern pools.
type records struct {
	// none means that the state has no records; it may have been lost.
	none bool
	// known are the objects of all records; required are those that must exist now.
	known, required map[object]bool
	// pools counts the volumes and snapshots in each pool.
	pools map[string]int
	// identities are those of the pools, by name.
	identities map[string]string
	// objects maps the id of a pool object to the object of its record.
	objects map[string]object
}

func newRecords() *records {
	return &records{
		known: map[object]bool{}, required: map[object]bool{},
		pools: map[string]int{}, identities: map[string]string{}, objects: map[string]object{},
	}
}

// checkOfController returns ErrNotComparable for a state that is not a controller's.
func (r *records) checkOfController(directory string, counted map[string]int) error {
	// A node has records of the pools' identities as well.
	counted = maps.Clone(counted)
	delete(counted, pool.IdentitiesCollection)
	r.none = len(counted) == 0

	if _, ok := counted[record.VolumesCollection]; !ok && !r.none {
		return fmt.Errorf("%s: %w; give the state directory of the controller (mode controller or all)",
			directory, ErrNotComparable)
	}

	return nil
}

// addRecord adds a record of the state.
func (r *records) addRecord(collection, key string, text json.RawMessage) error {
	var err error

	switch collection {
	case record.VolumesCollection:
		err = r.addVolume(text)
	case record.SnapshotsCollection:
		err = r.addSnapshot(text)
	case pool.IdentitiesCollection:
		err = r.addIdentity(key, text)
	}

	if err != nil {
		return fmt.Errorf("record %s of %s: %w", key, collection, err)
	}

	return nil
}

// addVolume adds a volume. The image of one that is being created or deleted, or was never attached,
// may be missing: the next start, or the first attachment, handles that.
func (r *records) addVolume(text json.RawMessage) error {
	found := record.Volume{Properties: &record.Properties{}} // a damaged record may lack them
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("read it: %w", err)
	}

	r.add(found.ID, found.Parameters, false, found.Phase == record.PhaseReady && !found.Pristine)

	return nil
}

// addSnapshot adds a snapshot. The next start repeats a copy that was interrupted.
func (r *records) addSnapshot(text json.RawMessage) error {
	var found record.Snapshot
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("read it: %w", err)
	}

	r.add(found.ID, found.Parameters, true, found.Phase == record.PhaseReady)

	return nil
}

func (r *records) addIdentity(name string, text json.RawMessage) error {
	var record pool.IdentityRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return fmt.Errorf("read it: %w", err)
	}

	r.identities[name] = record.ID

	return nil
}

func (r *records) add(id string, parameters volume.Parameters, snapshot, required bool) {
	added := object{pool.Object{ID: id, Backing: parameters.Backing, Snapshot: snapshot}, parameters.Pool}
	r.known[added] = true
	r.objects[id] = added
	r.pools[parameters.Pool]++

	if required {
		r.required[added] = true
	}
}

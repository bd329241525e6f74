package audit

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/driver/identities"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// object is an object in the pool of that name.
type object struct {
	pool.Object

	pool string
}

// records are the records of a state that concern pools.
type records struct {
	// boot is the id of this boot of the machine, empty if it is unknown.
	boot string
	// none means that the state has no records; it may have been lost.
	none bool
	// pools counts the volumes and snapshots in each pool.
	pools map[string]int
	// identities are those of the pools, by name.
	identities map[string]string
	// objects are those of all records, by their ids.
	objects map[string]recorded
}

// recorded is an object that the state has a record of.
type recorded struct {
	object

	// required objects must exist now.
	required bool
}

func newRecords() *records {
	boot, _ := sysfs.Read(sysfs.BootID)

	return &records{boot: boot, pools: map[string]int{}, identities: map[string]string{}, objects: map[string]recorded{}}
}

// checkOfController returns ErrNotComparable for a state that is not a controller's.
func (r *records) checkOfController(directory string, counted map[string]int) error {
	// A node has records of the pools' identities as well.
	counted = maps.Clone(counted)
	delete(counted, identities.Collection)
	r.none = len(counted) == 0

	if _, ok := counted[record.VolumesCollection]; !ok && !r.none {
		return fmt.Errorf("%s: %w; give the state directory of the controller (mode controller or all)",
			directory, ErrNotComparable)
	}

	return nil
}

// addRecord adds a record of the state.
func (r *records) addRecord(collection, key string, text json.RawMessage) error {
	var (
		ofVolume   record.Volume
		ofSnapshot record.Snapshot
		ofPool     identities.Identity
		err        error
	)

	switch collection {
	case record.VolumesCollection:
		if err = json.Unmarshal(text, &ofVolume); err == nil {
			// The image of a volume that is being created or deleted, was never attached, or was not synced
			// in another boot, may be missing: the next start, or the first attachment, handles that.
			unsynced := ofVolume.UnsyncedIn()
			r.add(ofVolume.ID, ofVolume.Parameters, false,
				ofVolume.Phase == record.PhaseReady && !ofVolume.Pristine && (unsynced == "" || unsynced == r.boot))
		}
	case record.SnapshotsCollection:
		if err = json.Unmarshal(text, &ofSnapshot); err == nil {
			// The next start repeats a copy that was interrupted.
			r.add(ofSnapshot.ID, ofSnapshot.Parameters, true, ofSnapshot.Phase == record.PhaseReady)
		}
	case identities.Collection:
		if err = json.Unmarshal(text, &ofPool); err == nil {
			r.identities[key] = ofPool.ID
		}
	}

	if err != nil {
		return fmt.Errorf("record %s of %s: read it: %w", key, collection, err)
	}

	return nil
}

func (r *records) add(id string, parameters volume.Parameters, snapshot, required bool) {
	added := object{pool.Object{ID: id, Backing: parameters.Backing, Snapshot: snapshot}, parameters.Pool}
	r.objects[id] = recorded{added, required}
	r.pools[parameters.Pool]++
}

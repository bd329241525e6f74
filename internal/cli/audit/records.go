package audit

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// object is something with bytes in the pool of that name.
type object struct {
	pool.Object

	pool string
}

// records are what a state says about pools.
type records struct {
	// none says that there is no state, be it that it was lost.
	none bool
	// known are all objects that the driver will see to itself, lasting those
	// whose bytes have to be there.
	known, lasting map[object]bool
	// pools are the names of those with a record.
	pools map[string]int
	// identities are those of the pools, by name.
	identities map[string]string
	// objects maps the id of a pool object to the object of its record.
	objects map[string]object
}

// readRecords reads the controller's records. Errors: ErrNotComparable, and
// those of state.Records.
func readRecords(directory string, counted map[string]int) (*records, error) {
	// A node knows pools, too.
	counted = maps.Clone(counted)
	delete(counted, pool.IdentitiesCollection)

	if _, ok := counted[record.VolumesCollection]; !ok && len(counted) > 0 {
		return nil, fmt.Errorf("%s: %w; give the state directory of the controller (mode controller or all)",
			directory, ErrNotComparable)
	}

	read := &records{
		none: len(counted) == 0, known: map[object]bool{}, lasting: map[object]bool{},
		pools: map[string]int{}, identities: map[string]string{}, objects: map[string]object{},
	}

	err := state.Records(directory, func(collection, key string, text json.RawMessage) error {
		var err error

		switch collection {
		case record.VolumesCollection:
			err = read.addVolume(text)
		case record.SnapshotsCollection:
			err = read.addSnapshot(text)
		case pool.IdentitiesCollection:
			err = read.addIdentity(key, text)
		}

		if err != nil {
			return fmt.Errorf("record %s of %s: %w", key, collection, err)
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	return read, nil
}

// addVolume: what is being created or deleted is ended by the next start, and
// what was never attached is made again when it is.
func (r *records) addVolume(text json.RawMessage) error {
	var found record.Volume
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("read it: %w", err)
	}

	r.add(found.ID, found.Parameters, false, found.Phase == record.PhaseReady && !found.Pristine)

	return nil
}

// addSnapshot: one that is being copied is begun again by the next start.
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

func (r *records) add(id string, parameters volume.Parameters, snapshot, lasting bool) {
	added := object{pool.Object{ID: id, Backing: parameters.Backing, Snapshot: snapshot}, parameters.Pool}
	r.known[added] = true
	r.objects[id] = added
	r.pools[parameters.Pool]++

	if lasting {
		r.lasting[added] = true
	}
}

package leftover

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/driver/audit"
	"github.com/touchstone-csi/touchstone/internal/driver/identities"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Checks is the collection with what checks of filesystems have found.
const Checks = "checks"

// controllerCollections have the records of objects. Those of all other collections, except for checks
// and the pools' identities, are of what is mounted, frozen or limited on the node.
var controllerCollections = []string{record.VolumesCollection, record.SnapshotsCollection, record.GroupsCollection}

// State is what a driver has recorded.
type State struct {
	// Records are the texts of all records, by collection and key.
	Records map[string]map[string]json.RawMessage
}

// ReadState reads the state of a driver that has ended, which must be one that a driver starts with.
func ReadState(dir string) (State, error) {
	read := State{Records: map[string]map[string]json.RawMessage{}}

	report, err := audit.NewStore(dir, "compare").Verify(func(collection, key string, text json.RawMessage) error {
		if read.Records[collection] == nil {
			read.Records[collection] = map[string]json.RawMessage{}
		}

		read.Records[collection][key] = text

		return nil
	})
	if found := slices.Concat(report.Findings, report.Notes); err == nil && len(found) > 0 {
		err = fmt.Errorf("%s: %v", dir, found)
	}

	return read, err
}

// uses returns the names of the collections of what is in use on the node.
func (s State) uses() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.Records)), func(name string) bool {
		return name == Checks || name == identities.Collection || slices.Contains(controllerCollections, name)
	})
}

// Has reports whether the state has a volume or snapshot.
func (s State) Has(id string) bool {
	_, volume := s.Records[record.VolumesCollection][id]
	_, snapshot := s.Records[record.SnapshotsCollection][id]

	return volume || snapshot
}

// Named returns the ids that the records name, the volumes of snapshots included, which may have gone.
func (s State) Named() Objects { return s.namedIn(slices.Collect(maps.Keys(s.Records))) }

// InUse returns the ids of what is in use on the node.
func (s State) InUse() Objects {
	return s.namedIn(append(s.uses(), Checks))
}

func (s State) namedIn(collections []string) Objects {
	named := Objects{}

	for _, name := range collections {
		records := s.Records[name]
		for key, text := range records {
			for _, id := range ids.FindAllString(key+string(text), -1) {
				named[id] = true
			}
		}
	}

	return named
}

// Left returns the records of a driver without mounts that no object explains. Objects in the pools
// that are none of the driver's explain records, too.
func (s State) Left(inPools Objects) []Finding {
	var found []Finding

	add := func(collection, key, why string) {
		found = append(found, Finding{Record, fmt.Sprintf("%s %s: %s", collection, key, why)})
	}

	for _, collection := range s.uses() {
		for key := range s.Records[collection] {
			add(collection, key, "nothing is mounted")
		}
	}

	for key := range s.Records[Checks] {
		if !s.Has(key) && !inPools[key] {
			add(Checks, key, "the volume has gone")
		}
	}

	for _, collection := range controllerCollections {
		for key, text := range s.Records[collection] {
			var phase struct {
				Phase record.Phase `json:"phase"`
			}
			if err := json.Unmarshal(text, &phase); err != nil || phase.Phase.IsUnfinished() {
				add(collection, key, fmt.Sprintf("its phase is %q (%v)", phase.Phase, err))
			}
		}
	}

	for key, text := range s.Records[record.GroupsCollection] {
		var group record.Group
		if err := json.Unmarshal(text, &group); err != nil {
			add(record.GroupsCollection, key, err.Error())
		}

		for _, member := range group.SnapshotIDs {
			if !s.Has(member) {
				add(record.GroupsCollection, key, "its snapshot "+member+" has gone")
			}
		}
	}

	return sorted(found)
}

package record

import (
	"slices"
	"sync"
	"unique"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Interner lets records share equal values in memory, which saves a third of the memory
// of 100,000 volumes. It is safe for concurrent use.
type Interner struct {
	// capabilities has lists of one capability, by their distinguishing fields. There are few,
	// since a request cannot choose the key freely.
	capabilities sync.Map // plainCapability → []volume.Capability
}

// plainCapability is one without mount flags and group.
type plainCapability struct {
	block        bool
	fsType, mode string
}

// Intern replaces parts of a record, which is not shared yet, by equal ones.
func (s *Interner) Intern(v *Volume) {
	v.Parameters = unique.Make(v.Parameters).Value()
	v.Phase = unique.Make(v.Phase).Value()

	if len(v.Capabilities) != 1 || len(v.Capabilities[0].MountFlags) > 0 || v.Capabilities[0].MountGroup != "" {
		return
	}

	only := v.Capabilities[0]
	if only.FSType != "" && !slices.Contains(volume.FSTypes(), only.FSType) {
		return
	}

	key := plainCapability{only.Block, only.FSType, only.Mode}

	shared, ok := s.capabilities.Load(key)
	if !ok {
		// Copied, so that the list does not keep a record's line alive.
		shared, _ = s.capabilities.LoadOrStore(key, []volume.Capability{only})
	}

	if list, ok := shared.([]volume.Capability); ok {
		v.Capabilities = list
	}
}

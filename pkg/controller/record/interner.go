package record

import (
	"slices"
	"sync"
	"unique"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// Interner lets records share equal values in memory, which saves more than half of the memory
// of 100,000 volumes. It is safe for concurrent use.
type Interner struct {
	// properties has those of plain volumes by what distinguishes them. There are few, since a
	// request cannot choose the key freely.
	properties sync.Map // plainProperties → *Properties
}

// plainProperties are those of a volume with one capability, without mount flags and group, without
// mkfs options and without mutable parameters.
type plainProperties struct {
	parameters   volume.Parameters
	block        bool
	fsType, mode string
	segments     Segments
}

// Intern replaces parts of a record, which is not shared yet, by equal ones. The key is that of the
// record in its collection.
func (s *Interner) Intern(key string, v *Volume) {
	if v.ID == key {
		v.ID = key
	}

	v.Phase = unique.Make(v.Phase).Value()

	if plain, ok := v.plain(); ok {
		shared, loaded := s.properties.Load(plain)
		if !loaded {
			shared, _ = s.properties.LoadOrStore(plain, v.Properties)
		}

		v.Properties, _ = shared.(*Properties)
	}
}

func (p *Properties) plain() (plainProperties, bool) {
	if len(p.Capabilities) != 1 || p.Parameters.MkfsOptions != "" || !p.Mutable.IsZero() {
		return plainProperties{}, false
	}

	only := p.Capabilities[0]
	if len(only.MountFlags) > 0 || only.MountGroup != "" || only.FSType != "" && !slices.Contains(volume.FSTypes(), only.FSType) {
		return plainProperties{}, false
	}

	return plainProperties{p.Parameters, only.Block, only.FSType, only.Mode, p.Segments}, true
}

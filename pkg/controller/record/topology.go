package record

import (
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// NodeSegmentKey is the topology key whose value is the node's id.
const NodeSegmentKey = "topology.touchstone.dev/node"

// Segments is one topology as sorted "key=value" parts with commas between.
// It is a string because every volume has it, and nearly all have the same.
type Segments string

// NewSegments returns the topology with these values.
func NewSegments(values map[string]string) Segments {
	parts := make([]string, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, key+"="+values[key])
	}

	return Segments(strings.Join(parts, ","))
}

// UnmarshalText implements encoding.TextUnmarshaler. Equal topologies then
// share their memory.
func (s *Segments) UnmarshalText(text []byte) error {
	*s = Segments(unique.Make(string(text)).Value())

	return nil
}

func (s Segments) values() map[string]string {
	values := map[string]string{}

	for part := range strings.SplitSeq(string(s), ",") {
		if key, value, ok := strings.Cut(part, "="); ok {
			values[key] = value
		}
	}

	return values
}

// Within reports whether s is inside the wanted topology. The case of keys does not count (CSI
// v1.13, Topology).
func (s Segments) Within(wanted *csi.Topology) bool {
	own := inLowerCase(s.values())

	for key, value := range wanted.GetSegments() {
		if has, ok := own[strings.ToLower(key)]; !ok || has != value {
			return false
		}
	}

	return true
}

// inLowerCase returns segments with keys that compare as the spec compares keys.
func inLowerCase(segments map[string]string) map[string]string {
	lower := make(map[string]string, len(segments))
	for key, value := range segments {
		lower[strings.ToLower(key)] = value
	}

	return lower
}

// CheckTopology refuses with INVALID_ARGUMENT keys that differ only by case (CSI v1.13, Topology).
func CheckTopology(field string, given *csi.Topology) error {
	if segments := given.GetSegments(); len(inLowerCase(segments)) < len(segments) {
		return errdefs.Errorf(errdefs.ErrInvalidArgument,
			"%s: segments %v have keys that differ only by case; name each key once", field, segments)
	}

	return nil
}

// CheckTopologyRequirement refuses with INVALID_ARGUMENT a requirement that the spec does not
// allow, or any at all without the capability for it (CSI v1.13, TopologyRequirement).
func CheckTopologyRequirement(given *csi.TopologyRequirement, advertised bool) error {
	switch {
	case given == nil:
		return nil
	case !advertised:
		return errdefs.Errorf(errdefs.ErrInvalidArgument,
			"accessibility_requirements must be empty, as the capability for them is not advertised")
	case len(given.GetRequisite()) == 0 && len(given.GetPreferred()) == 0:
		return errdefs.Errorf(errdefs.ErrInvalidArgument,
			"accessibility_requirements are empty; name requisite or preferred topologies, or leave them out")
	}

	for _, each := range slices.Concat(given.GetRequisite(), given.GetPreferred()) {
		if err := CheckTopology("accessibility_requirements", each); err != nil {
			return err
		}
	}

	for _, preferred := range given.GetPreferred() {
		wanted := inLowerCase(preferred.GetSegments())
		same := func(requisite *csi.Topology) bool {
			return maps.Equal(inLowerCase(requisite.GetSegments()), wanted)
		}
		if len(given.GetRequisite()) > 0 && !slices.ContainsFunc(given.GetRequisite(), same) {
			return errdefs.Errorf(errdefs.ErrInvalidArgument,
				"accessibility_requirements: the preferred topology %v is not among the requisite ones", preferred.GetSegments())
		}
	}

	return nil
}

// AccessibleTopology returns the topology as CSI messages; nil is everywhere.
func (s Segments) AccessibleTopology() []*csi.Topology {
	if s == "" {
		return nil
	}

	return []*csi.Topology{{Segments: s.values()}}
}

// CheckRequirement returns RESOURCE_EXHAUSTED if no requisite topology contains s (CSI
// v1.13, TopologyRequirement). Preferences do not matter, because a driver has only one
// topology.
func (s Segments) CheckRequirement(requirement *csi.TopologyRequirement) error {
	requisite := requirement.GetRequisite()
	if s == "" || len(requisite) == 0 || slices.ContainsFunc(requisite, s.Within) {
		return nil
	}

	return errdefs.Errorf(errdefs.ErrResourceExhausted, "no requisite topology fits: the pools are reached from %s only", s)
}

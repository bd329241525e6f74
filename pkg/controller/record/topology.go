package record

import (
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
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
	own := foldKeys(s.values())
	for each := range foldKeys(wanted.GetSegments()) {
		if !own[each] {
			return false
		}
	}

	return true
}

// segment is a key in lower case with its value.
type segment struct{ key, value string }

// foldKeys returns the segments of a topology without the case of their keys. A key that is given
// twice, in different case, stays twice unless the values are the same.
func foldKeys(values map[string]string) map[segment]bool {
	folded := make(map[segment]bool, len(values))
	for key, value := range values {
		folded[segment{strings.ToLower(key), value}] = true
	}

	return folded
}

// CheckTopologyRequirement refuses with INVALID_ARGUMENT a requirement that the spec does not
// allow, or any at all without the capability for it (CSI v1.13, TopologyRequirement). The case of
// keys does not count.
func CheckTopologyRequirement(given *csi.TopologyRequirement, advertised bool) error {
	switch {
	case given == nil:
		return nil
	case !advertised:
		return rpc.Invalid("accessibility_requirements must be empty, as the capability for them is not advertised")
	case len(given.GetRequisite()) == 0 && len(given.GetPreferred()) == 0:
		return rpc.Invalid("accessibility_requirements are empty; name requisite or preferred topologies, or leave them out")
	}

	for _, preferred := range given.GetPreferred() {
		same := func(requisite *csi.Topology) bool {
			return maps.Equal(foldKeys(requisite.GetSegments()), foldKeys(preferred.GetSegments()))
		}
		if len(given.GetRequisite()) > 0 && !slices.ContainsFunc(given.GetRequisite(), same) {
			return rpc.Invalid("accessibility_requirements: the preferred topology %v is not among the requisite ones", preferred.GetSegments())
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

	return rpc.Errorf(codes.ResourceExhausted, "no requisite topology fits: the pools are reached from %s only", s)
}

package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// rule is one for a response and its request. A response that keeps it has it as a property; one that
// breaks it fails its test.
type rule struct {
	name string
	// keeps reports whether the rule is about such a response, and whether that keeps it.
	keeps func(request, response proto.Message) (about, kept bool)
}

// rules are those for responses with volumes and for pages; see snapshotRules.
var rules = []rule{
	{"capacity_bytes at least required_bytes", func(request, response proto.Message) (bool, bool) {
		asked, size := rangeOf(request), capacityOf(response)

		return asked.GetRequiredBytes() > 0 && size > 0, size >= asked.GetRequiredBytes()
	}},
	{"capacity_bytes at most limit_bytes", func(request, response proto.Message) (bool, bool) {
		asked, size := rangeOf(request), capacityOf(response)

		return asked.GetLimitBytes() > 0 && size > 0, size <= asked.GetLimitBytes()
	}},
	{"entries at most max_entries", func(request, response proto.Message) (bool, bool) {
		most, entries := maxEntries(request), entriesOf(response)

		// A list that is shorter shows nothing.
		return most > 0 && entries >= most, entries <= most
	}},
	{"accessible_topology within requisite", func(request, response proto.Message) (bool, bool) {
		asked, topologies := requirementOf(request).GetRequisite(), accessible(response)

		return len(asked) > 0 && len(topologies) > 0, !slices.ContainsFunc(topologies, func(t *csi.Topology) bool { return !isWithin(t, asked) })
	}},
	{"accessible_topology within preferred", func(request, response proto.Message) (bool, bool) {
		asked, topologies := requirementOf(request).GetPreferred(), accessible(response)
		kept := len(topologies) > 0 && isWithin(topologies[0], asked)

		// None of those that are preferred need be possible.
		return kept, kept
	}},
	{"name is a domain name", func(_, response proto.Message) (bool, bool) {
		info, ok := response.(*csi.GetPluginInfoResponse)

		return ok, len(info.GetName()) <= 63 && domainName.MatchString(info.GetName())
	}},
	{"segments have proper keys and values", func(_, response proto.Message) (bool, bool) {
		found := topologiesIn(response.ProtoReflect())

		return len(found) > 0, areProper(found)
	}},
	{"no status and reason twice", func(_, response proto.Message) (bool, bool) {
		found := reasonsIn("", response.ProtoReflect())
		count := len(found)
		slices.Sort(found)

		return count > 1, len(slices.Compact(found)) == count
	}},
}

// rulesOf returns the rules that a response keeps, and those that it breaks.
func rulesOf(request, response proto.Message) (kept, broken []string) {
	for _, each := range slices.Concat(rules, snapshotRules) {
		switch about, ok := each.keeps(request, response); {
		case about && ok:
			kept = append(kept, each.name)
		case about:
			broken = append(broken, each.name)
		}
	}

	return kept, broken
}

func rangeOf(request proto.Message) *csi.CapacityRange {
	if asked, ok := request.(interface{ GetCapacityRange() *csi.CapacityRange }); ok {
		return asked.GetCapacityRange()
	}

	return nil
}

func capacityOf(response proto.Message) int64 {
	switch response := response.(type) {
	case *csi.CreateVolumeResponse:
		return response.GetVolume().GetCapacityBytes()
	case *csi.ControllerExpandVolumeResponse:
		return response.GetCapacityBytes()
	case *csi.NodeExpandVolumeResponse:
		return response.GetCapacityBytes()
	default:
		return 0
	}
}

func maxEntries(request proto.Message) int {
	if asked, ok := request.(interface{ GetMaxEntries() int32 }); ok {
		return int(asked.GetMaxEntries())
	}

	return 0
}

// entriesOf returns how many entries a page has, -1 if the response is none.
func entriesOf(response proto.Message) int {
	switch response := response.(type) {
	case *csi.ListVolumesResponse:
		return len(response.GetEntries())
	case *csi.ListSnapshotsResponse:
		return len(response.GetEntries())
	case *csi.ControllerListVolumeHealthResponse:
		return len(response.GetEntries())
	default:
		return -1
	}
}

func requirementOf(request proto.Message) *csi.TopologyRequirement {
	if asked, ok := request.(interface {
		GetAccessibilityRequirements() *csi.TopologyRequirement
	}); ok {
		return asked.GetAccessibilityRequirements()
	}

	return nil
}

// accessible returns where the created volume or snapshot can be used.
func accessible(response proto.Message) []*csi.Topology {
	switch response := response.(type) {
	case *csi.CreateVolumeResponse:
		return response.GetVolume().GetAccessibleTopology()
	case *csi.CreateSnapshotResponse:
		return response.GetSnapshot().GetAccessibleTopology()
	default:
		return nil
	}
}

// isWithin reports whether a topology has all segments of one of others. Keys are case-insensitive.
func isWithin(topology *csi.Topology, others []*csi.Topology) bool {
	has := map[string]string{}
	for key, value := range topology.GetSegments() {
		has[strings.ToLower(key)] = value
	}

	return slices.ContainsFunc(others, func(other *csi.Topology) bool {
		for key, value := range other.GetSegments() {
			if has[strings.ToLower(key)] != value {
				return false
			}
		}

		return true
	})
}

var (
	label      = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	domainName = regexp.MustCompile(`(?i)^` + label + `(\.` + label + `)*$`)
	keyPrefix  = regexp.MustCompile(`^` + label + `(\.` + label + `)*$`)
	segment    = regexp.MustCompile(`^[a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$`)
)

// areProper reports whether segments are as the spec has them: the form and length of prefixes, keys
// and values, one prefix for all, and no keys that differ only by case.
func areProper(topologies []*csi.Topology) bool {
	prefixes := map[string]bool{}

	for _, topology := range topologies {
		keys := map[string]bool{}

		for key, value := range topology.GetSegments() {
			prefix, name, prefixed := strings.Cut(key, "/")
			if !prefixed {
				name = key
			} else if prefixes[prefix] = true; len(prefix) > 63 || !keyPrefix.MatchString(prefix) {
				return false
			}

			lower := strings.ToLower(key)
			if keys[lower] || len(name) > 63 || len(value) > 63 || !segment.MatchString(name) || !segment.MatchString(value) {
				return false
			}

			keys[lower] = true
		}

		if len(keys) == 0 {
			return false
		}
	}

	return len(prefixes) <= 1
}

func topologiesIn(message protoreflect.Message) []*csi.Topology {
	var found []*csi.Topology

	within(message, func(_ string, inner protoreflect.Message) {
		if topology, ok := inner.Interface().(*csi.Topology); ok {
			found = append(found, topology)
		} else {
			found = append(found, topologiesIn(inner)...)
		}
	})

	return found
}

// reasonsIn returns the statuses and reasons of a response, each with the volume or the capability
// that it is about.
func reasonsIn(path string, message protoreflect.Message) []string {
	var found []string

	within(message, func(_ string, inner protoreflect.Message) {
		switch inner := inner.Interface().(type) {
		case *csi.VolumeHealth_VolumeHealthEntry:
			found = append(found, fmt.Sprint(path, " ", inner.GetStatus(), " ", inner.GetReason()))
		case *csi.NodeGetStorageHealthResponse_StorageBackendHealth:
			found = append(found, fmt.Sprint(inner.GetVolumeCapability(), " ", inner.GetStatus(), " ", inner.GetReason()))
		default:
			found = append(found, reasonsIn(path+" "+value(inner, "volume_id"), inner.ProtoReflect())...)
		}
	})

	return found
}

package driver

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// The spec's rules for keys and values (CSI v1.13, Topology).
var (
	segmentName   = regexp.MustCompile(`^` + labelPattern + `$`)
	segmentPrefix = regexp.MustCompile(`^` + topologyPrefix + `$`)
)

// maxSegmentPrefix is the spec's limit for the prefix of a key in bytes.
const maxSegmentPrefix = 63

// segments is the topology of this machine, empty when volumes are reachable
// from everywhere.
func (c *Config) segments() map[string]string {
	segments := map[string]string{}
	if !c.capabilities.Has(capability.VolumeAccessibilityConstraints) {
		return segments
	}

	maps.Copy(segments, c.Topology)

	if !c.Shared {
		segments[record.NodeSegmentKey] = c.NodeID
	}

	return segments
}

// checkTopology refuses what the spec does not allow in a topology, because a CO may refuse or
// shorten it.
func (c *Config) checkTopology() error {
	var problems []error

	segments := c.segments()
	prefixes, names := map[string]string{}, map[string]string{}

	for _, key := range slices.Sorted(maps.Keys(segments)) {
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			name = key
		} else if prefixes[prefix] = key; len(prefix) > maxSegmentPrefix || !segmentPrefix.MatchString(prefix) {
			problems = append(problems, fmt.Errorf("%w: topology key %q: %q is not a lower-case domain name of at most %d characters",
				ErrConfig, key, prefix, maxSegmentPrefix))
		}

		if !segmentName.MatchString(name) {
			problems = append(problems, fmt.Errorf("%w: topology key %q: %q is not 1 to 63 letters and digits with - _ . between",
				ErrConfig, key, name))
		}

		if other, exists := names[strings.ToLower(key)]; exists {
			problems = append(problems, fmt.Errorf("%w: topology keys %q and %q differ only by case", ErrConfig, other, key))
		}

		names[strings.ToLower(key)] = key

		if value := segments[key]; !segmentName.MatchString(value) {
			remedy := "choose another --topology"
			if key == record.NodeSegmentKey {
				remedy = "choose another --node-id, or disable the capability TOPOLOGY"
			}

			problems = append(problems, fmt.Errorf("%w: topology value %.70q of %s is not 1 to 63 letters and digits with - _ . between; %s",
				ErrConfig, value, key, remedy))
		}
	}

	if len(prefixes) > 1 {
		problems = append(problems, fmt.Errorf("%w: topology keys %s have different prefixes; the spec allows one: "+
			"leave the prefix out, or use that of %s",
			ErrConfig, strings.Join(slices.Sorted(maps.Values(prefixes)), " and "), record.NodeSegmentKey))
	}

	return errors.Join(problems...)
}

package record_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestTopologyRequirements: what a CO may ask for, whether or not it can be met.
func TestTopologyRequirements(t *testing.T) {
	t.Parallel()

	of := func(keys ...string) *csi.Topology {
		topology := &csi.Topology{Segments: map[string]string{}}
		for _, key := range keys {
			topology.Segments[key] = "a"
		}

		return topology
	}
	all := func(topologies ...*csi.Topology) []*csi.Topology { return topologies }

	for name, test := range map[string]struct {
		given      *csi.TopologyRequirement
		advertised bool
		want       codes.Code
	}{
		"none":                              {nil, true, codes.OK},
		"none, without the capability":      {nil, false, codes.OK},
		"one, without the capability":       {&csi.TopologyRequirement{Requisite: all(of("zone"))}, false, codes.InvalidArgument},
		"an empty one":                      {&csi.TopologyRequirement{}, true, codes.InvalidArgument},
		"requisite only":                    {&csi.TopologyRequirement{Requisite: all(of("zone"))}, true, codes.OK},
		"preferred only":                    {&csi.TopologyRequirement{Preferred: all(of("zone"))}, true, codes.OK},
		"the second of two":                 {&csi.TopologyRequirement{Requisite: all(of("rack"), of("zone")), Preferred: all(of("zone"))}, true, codes.OK},
		"another one":                       {&csi.TopologyRequirement{Requisite: all(of("rack")), Preferred: all(of("zone"))}, true, codes.InvalidArgument},
		"the second is another":             {&csi.TopologyRequirement{Requisite: all(of("rack")), Preferred: all(of("rack"), of("zone"))}, true, codes.InvalidArgument},
		"a key twice by case, in requisite": {&csi.TopologyRequirement{Requisite: all(of("zone", "Zone"))}, true, codes.InvalidArgument},
		"a key twice by case, in preferred": {&csi.TopologyRequirement{Preferred: all(of("rack"), of("zone", "ZONE"))}, true, codes.InvalidArgument},
	} {
		rpccode.Require(t, rpc.Status(record.CheckTopologyRequirement(test.given, test.advertised)), test.want, "%s", name)
	}
}

// TestSegmentsAreReadAsTheyAreWritten: also by a CO.
func TestSegmentsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()

	given := map[string]string{"zone": "a", "node": "1"}
	segments := record.NewSegments(given)
	require.EqualValues(t, "node=1,zone=a", segments, "the order of keys is fixed")

	var read record.Segments

	require.NoError(t, read.UnmarshalText([]byte(segments)))
	require.Equal(t, segments, read)
	require.Equal(t, given, segments.AccessibleTopology()[0].GetSegments())
	require.Nil(t, record.NewSegments(nil).AccessibleTopology(), "want: none is from everywhere")
	require.True(t, segments.Within(nil), "want: all are within no topology")
}

package record_test

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func attachment(nodeID, mode string) record.Attachment {
	return record.Attachment{NodeID: nodeID, Capability: volume.Capability{Mode: mode}}
}

func TestAccessModesDecideTheNodesOfAVolume(t *testing.T) {
	t.Parallel()

	const (
		single = "SINGLE_NODE_WRITER"
		reader = "MULTI_NODE_READER_ONLY"
		writer = "MULTI_NODE_SINGLE_WRITER"
		multi  = "MULTI_NODE_MULTI_WRITER"
	)

	for name, test := range map[string]struct {
		existing []string
		wanted   string
		want     codes.Code
	}{
		"first attachment, one node":         {nil, single, codes.OK},
		"first attachment, several nodes":    {nil, multi, codes.OK},
		"two writers of several nodes":       {[]string{multi}, multi, codes.OK},
		"a reader beside two writers":        {[]string{multi, multi}, reader, codes.OK},
		"one node after one node":            {[]string{single}, single, codes.FailedPrecondition},
		"several nodes after one node":       {[]string{single}, multi, codes.FailedPrecondition},
		"one node after several nodes":       {[]string{multi}, single, codes.FailedPrecondition},
		"several, of which the last is one":  {[]string{multi, single}, multi, codes.FailedPrecondition},
		"one reader only after several":      {[]string{reader}, "SINGLE_NODE_READER_ONLY", codes.FailedPrecondition},
		"two single writers":                 {[]string{writer}, writer, codes.FailedPrecondition},
		"a single writer beside readers":     {[]string{reader, reader}, writer, codes.OK},
		"a reader beside a single writer":    {[]string{writer}, reader, codes.OK},
		"a single writer beside a writer":    {[]string{multi}, writer, codes.FailedPrecondition},
		"single node, several writers there": {[]string{multi}, "SINGLE_NODE_MULTI_WRITER", codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := &record.Volume{}
			for _, mode := range test.existing {
				v.Attachments = append(v.Attachments, attachment("node-a", mode))
			}

			err := v.CheckAttachable(attachment("node-b", test.wanted))
			rpccode.Require(t, err, test.want)
		})
	}
}

// TestIsFilledAtStaging: only then an attachment need not sync the image.
func TestIsFilledAtStaging(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		backing volume.Backing
		direct  bool
		wanted  volume.Capability
		want    bool
	}{
		"a mounted image":        {volume.BackingImage, false, volume.Capability{Mode: "SINGLE_NODE_WRITER"}, true},
		"raw block":              {volume.BackingImage, false, volume.Capability{Mode: "SINGLE_NODE_WRITER", Block: true}, false},
		"a direct volume":        {volume.BackingImage, true, volume.Capability{Mode: "SINGLE_NODE_WRITER"}, false},
		"an image of many nodes": {volume.BackingImage, false, volume.Capability{Mode: "MULTI_NODE_SINGLE_WRITER"}, false},
		"a directory":            {volume.BackingDirectory, false, volume.Capability{Mode: "SINGLE_NODE_WRITER"}, false},
	} {
		v := &record.Volume{Properties: &record.Properties{
			Parameters: volume.Parameters{Backing: test.backing, DirectAssign: test.direct},
		}}
		require.Equal(t, test.want, v.IsFilledAtStaging(test.wanted), name)
	}
}

func TestAnotherAttachmentIsAConflict(t *testing.T) {
	t.Parallel()

	v := &record.Volume{Properties: &record.Properties{Parameters: volume.Parameters{FSType: "ext4"}}}
	existing := record.Attachment{NodeID: "n", Slot: 3, Capability: volume.Capability{
		FSType: "ext4", Mode: "SINGLE_NODE_WRITER", MountFlags: []string{"noatime", "sync"},
	}}

	for name, test := range map[string]struct {
		change func(a *record.Attachment)
		want   codes.Code
	}{
		"same":                          {func(*record.Attachment) {}, codes.OK},
		"another slot":                  {func(a *record.Attachment) { a.Slot = 0 }, codes.OK},
		"mount flags in another order":  {func(a *record.Attachment) { a.Capability.MountFlags = []string{"sync", "noatime"} }, codes.OK},
		"fewer mount flags":             {func(a *record.Attachment) { a.Capability.MountFlags = []string{"sync"} }, codes.AlreadyExists},
		"readonly":                      {func(a *record.Attachment) { a.ReadOnly = true }, codes.AlreadyExists},
		"another access mode":           {func(a *record.Attachment) { a.Capability.Mode = "SINGLE_NODE_READER_ONLY" }, codes.AlreadyExists},
		"the default filesystem":        {func(a *record.Attachment) { a.Capability.FSType = "" }, codes.OK},
		"another filesystem":            {func(a *record.Attachment) { a.Capability.FSType = "xfs" }, codes.AlreadyExists},
		"block instead of a filesystem": {func(a *record.Attachment) { a.Capability.Block = true }, codes.AlreadyExists},
		"another group":                 {func(a *record.Attachment) { a.Capability.MountGroup = "1000" }, codes.AlreadyExists},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			wanted := existing
			test.change(&wanted)
			rpccode.Require(t, rpc.Status(v.CheckSame(existing, wanted)), test.want)
		})
	}
}

func TestUnreachableTopologiesAreRefused(t *testing.T) {
	t.Parallel()

	topology := func(values map[string]string) *csi.Topology { return &csi.Topology{Segments: values} }
	own := record.NewSegments(map[string]string{"zone": "a", "node": "1"})

	for name, test := range map[string]struct {
		own         record.Segments
		requirement *csi.TopologyRequirement
		want        codes.Code
	}{
		"no requirement":                {own, nil, codes.OK},
		"preferred only":                {own, &csi.TopologyRequirement{Preferred: []*csi.Topology{topology(map[string]string{"zone": "b"})}}, codes.OK},
		"the same":                      {own, requisite(topology(map[string]string{"zone": "a", "node": "1"})), codes.OK},
		"a larger topology":             {own, requisite(topology(map[string]string{"zone": "a"})), codes.OK},
		"the second of two":             {own, requisite(topology(map[string]string{"zone": "b"}), topology(map[string]string{"zone": "a"})), codes.OK},
		"another value":                 {own, requisite(topology(map[string]string{"zone": "b"})), codes.ResourceExhausted},
		"one value fits, the other not": {own, requisite(topology(map[string]string{"zone": "a", "node": "2"})), codes.ResourceExhausted},
		"an unknown key":                {own, requisite(topology(map[string]string{"rack": "a"})), codes.ResourceExhausted},
		"a key in capitals":             {own, requisite(topology(map[string]string{"ZONE": "a"})), codes.OK},
		"reachable from everywhere":     {"", requisite(topology(map[string]string{"zone": "b"})), codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := test.own.CheckRequirement(test.requirement)
			rpccode.Require(t, err, test.want)
		})
	}
}

// TestCaseOfKeysIsIgnored: keys are case-insensitive, values are not (CSI v1.13, Topology).
func TestCaseOfKeysIsIgnored(t *testing.T) {
	t.Parallel()

	own := record.NewSegments(map[string]string{"Zone": "a", "node": "1"})

	for name, test := range map[string]struct {
		requisite, preferred map[string]string
		among, within        bool
	}{
		"the same":                    {map[string]string{"zone": "a"}, map[string]string{"zone": "a"}, true, true},
		"capitals of a preferred key": {map[string]string{"zone": "a"}, map[string]string{"ZONE": "a"}, true, true},
		"capitals of a value":         {map[string]string{"zone": "A"}, map[string]string{"zone": "a"}, false, true},
		"a key less":                  {map[string]string{"zone": "a", "node": "1"}, map[string]string{"zone": "a"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			preferred := &csi.Topology{Segments: test.preferred}
			err := record.CheckTopologyRequirement(&csi.TopologyRequirement{
				Requisite: []*csi.Topology{{Segments: test.requisite}}, Preferred: []*csi.Topology{preferred},
			}, true)
			require.Equal(t, test.among, err == nil, "%v", err)
			require.Equal(t, test.within, own.Within(preferred), "%v is within %v", own, preferred)
		})
	}
}

func requisite(topologies ...*csi.Topology) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: topologies}
}

func TestCheckMembers(t *testing.T) {
	t.Parallel()

	group := &record.Group{ID: "g", SnapshotIDs: []string{"a", "b"}}
	require.NoError(t, group.CheckMembers([]string{"b", "a"}), "the order does not matter")

	for _, wrong := range [][]string{nil, {"a"}, {"a", "b", "c"}, {"a", "a"}, {"a", "c"}} {
		rpccode.Require(t, rpc.Status(group.CheckMembers(wrong)), codes.InvalidArgument, "members %v", wrong)
	}
}

func TestTakenBefore(t *testing.T) {
	t.Parallel()

	early, late := time.Unix(1, 0), time.Unix(2, 0)

	for name, test := range map[string]struct {
		first, second record.Snapshot
		want          bool
	}{
		"by sequence although the clock was set back": {
			record.Snapshot{Sequence: 1, CreatedAt: late}, record.Snapshot{Sequence: 2, CreatedAt: early}, true,
		},
		"later by sequence": {
			record.Snapshot{Sequence: 2, CreatedAt: early}, record.Snapshot{Sequence: 1, CreatedAt: late}, false,
		},
		"the same snapshot":                  {record.Snapshot{Sequence: 1}, record.Snapshot{Sequence: 1}, false},
		"without sequence, by the clock":     {record.Snapshot{CreatedAt: early}, record.Snapshot{CreatedAt: late}, true},
		"one without sequence, by the clock": {record.Snapshot{Sequence: 9, CreatedAt: early}, record.Snapshot{CreatedAt: late}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, test.first.TakenBefore(&test.second), "want: the older snapshot comes first")
		})
	}
}

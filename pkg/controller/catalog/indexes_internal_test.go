package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// TestUsageFollowsTheRecords: the slots of nodes and what is provisioned of pools.
func TestUsageFollowsTheRecords(t *testing.T) {
	t.Parallel()

	usage := newUsage()
	attached := func(bytes int64, slots ...int) *record.Volume {
		v := &record.Volume{CapacityBytes: bytes, Properties: &record.Properties{Parameters: volume.Parameters{Pool: "default"}}}
		for _, slot := range slots {
			v.Attachments = append(v.Attachments, record.Attachment{NodeID: "node", Slot: slot})
		}

		return v
	}
	requireUsage := func(slot int, taken, bytes int64) {
		t.Helper()

		free, count := usage.FreeSlot("node")
		require.Equal(t, slot, free, "the lowest free slot")
		require.Equal(t, taken, count, "the slots that are taken")
		require.Equal(t, bytes, usage.ProvisionedBytes("default"), "the provisioned bytes")
	}

	requireUsage(0, 0, 0)

	first, second, third := attached(1, 0), attached(2, 1), attached(4, 4)
	usage.observeVolume("a", nil, first, false, true)
	requireUsage(1, 1, 1)
	usage.observeVolume("b", nil, second, false, true)
	requireUsage(2, 2, 3)
	usage.observeVolume("c", nil, third, false, true)
	requireUsage(2, 3, 7)
	usage.observeVolume("a", first, attached(8), true, true)
	requireUsage(0, 2, 14)
	usage.observeVolume("b", second, nil, true, false)
	requireUsage(0, 1, 12)
	usage.observeVolume("a", attached(8), attached(8, 0, 1), true, true)
	requireUsage(2, 3, 12)

	inDefault := volume.Parameters{Pool: "default"}
	before, after := &record.Snapshot{AllocatedBytes: 16, Parameters: inDefault}, &record.Snapshot{AllocatedBytes: 32, Parameters: inDefault}
	usage.observeSnapshot("a", nil, before, false, true)
	requireUsage(2, 3, 28)
	usage.observeSnapshot("a", before, after, true, true)
	requireUsage(2, 3, 44)
	usage.observeSnapshot("a", after, nil, true, false)
	requireUsage(2, 3, 12)

	other, none := usage.FreeSlot("other")
	require.Zero(t, other, "want: another node has slots of its own")
	require.Zero(t, none, "want: another node has no volume")
	require.Zero(t, usage.ProvisionedBytes("fast"), "want: nothing is in another pool")
}

// TestSnapshotIndexFollowsTheRecords: the snapshots of a volume in order, from an id on.
func TestSnapshotIndexFollowsTheRecords(t *testing.T) {
	t.Parallel()

	index := newSnapshotIndex()
	of := func(sourceID string) *record.Snapshot { return &record.Snapshot{SourceVolumeID: sourceID} }

	var ids []string
	for i := range 5 {
		ids = append(ids, fmt.Sprint("s", i))
	}

	for _, id := range slices.Backward(ids) {
		index.observe(id, nil, of("v"), false, true)
	}

	index.observe("other", nil, of("w"), false, true)
	index.observe("s0", of("v"), of("v"), true, true)

	require.Equal(t, ids, index.of("v", "", 9))
	require.Equal(t, ids[:2], index.of("v", "", 2))
	require.Equal(t, ids[2:4], index.of("v", "s1", 2))
	require.Equal(t, ids[2:4], index.of("v", "s1x", 2))
	require.Equal(t, []string{"other"}, index.of("w", "", 9))
	require.Empty(t, index.of("v", "s4", 9), "want: nothing is behind the last")
	require.Empty(t, index.of("x", "", 9), "want: an unknown volume has none")

	for _, id := range ids[:4] {
		index.observe(id, of("v"), nil, true, false)
	}

	require.Equal(t, ids[4:], index.of("v", "", 9))
	index.observe("s4", of("v"), nil, true, false)
	require.Empty(t, index.of("v", "", 9), "want: none is left")
	require.Len(t, index.snapshots, 1, "want: a volume without snapshots takes no memory")
}

package catalog

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
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

// TestSnapshotIndexFollowsTheRecords: the visible snapshots of a volume in order, from an id on.
func TestSnapshotIndexFollowsTheRecords(t *testing.T) {
	t.Parallel()

	store := state.New(t.TempDir(), state.Options{})
	c := New(store, nil, &pool.Admission{})
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	parameters, err := volume.ParseParameters(map[string]string{volume.KeyPool: "default"})
	require.NoError(t, err)

	put := func(id, sourceID string, phase record.Phase) {
		require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
			return c.Snapshots.In(tx).Put(id, &record.Snapshot{
				ID: id, Name: id, SourceVolumeID: sourceID, Parameters: parameters, Consistency: volume.ConsistencyNone, Phase: phase,
			})
		}))
	}
	of := func(sourceID, after string) (found []string) {
		for each := range c.VisibleSnapshots(sourceID, after) {
			found = append(found, each.ID)
		}

		return found
	}

	ids := make([]string, 8)
	for i := range ids {
		ids[i] = volume.NewID()
	}

	slices.Sort(ids)

	v, w, other := volume.NewID(), volume.NewID(), ids[7]

	// These two are between others of the volume, and do not exist for the CO.
	put(ids[2], v, record.PhaseCreating)
	put(ids[4], v, record.PhaseDeleting)

	ids = []string{ids[0], ids[1], ids[3], ids[5], ids[6]}

	for _, id := range slices.Backward(ids) {
		put(id, v, record.PhaseReady)
	}

	put(other, w, record.PhaseReady)
	put(ids[0], v, record.PhaseReady)

	require.Equal(t, ids, of(v, ""))
	require.Equal(t, ids[2:], of(v, ids[1]))
	require.Equal(t, ids[2:], of(v, ids[1]+"x"))
	require.Equal(t, []string{other}, of(w, ""))
	require.Equal(t, append(slices.Clone(ids), other), of("", ""), "want: those of all volumes")
	require.Equal(t, []string{other}, of("", ids[4]))
	require.Empty(t, of(v, ids[4]), "want: nothing is behind the last")
	require.Empty(t, of(volume.NewID(), ""), "want: an unknown volume has none")

	for each := range c.VisibleSnapshots(v, ids[0]) {
		require.Equal(t, ids[1], each.ID)

		break
	}

	for _, id := range ids {
		require.Equal(t, id, of(v, "")[0])
		require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error { return c.Snapshots.In(tx).Delete(id) }))
	}

	require.Empty(t, of(v, ""), "want: none is left")
	require.Equal(t, []string{other}, of(w, ""), "want: that of another volume stays")
}

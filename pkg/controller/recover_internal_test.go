package controller

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

// TestRecoverFreesNames: the first call after a crash does not find the name of an unfinished
// snapshot or volume taken, also if no other change makes the lazy one of Recover visible.
func TestRecoverFreesNames(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	pools, err := poolset.Open(map[string]string{"default": directory + "/pool"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	log := slog.New(slog.DiscardHandler)
	store := state.New(directory+"/state", state.Options{Log: log, LazyFlush: time.Hour})

	served, err := New(Config{
		NodeID: "node", Store: store, Pools: pools, Operations: operation.NewGroup(),
		Admission: &pool.Admission{Overcommit: 1}, Log: log, Removals: removal.New(log),
	})
	require.NoError(t, err)
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	volumeID := volume.NewID()
	snapshotID := volume.NewID()

	parameters, err := volume.ParseParameters(nil)
	require.NoError(t, err)

	require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
		unfinished := &record.Volume{
			ID: volumeID, Name: "volume", Phase: record.PhaseCreating, Properties: &record.Properties{
				Parameters: parameters, Capabilities: []volume.Capability{{Mode: "SINGLE_NODE_WRITER"}},
			},
		}
		require.NoError(t, served.catalog.Volumes.In(tx).Put(volumeID, unfinished))

		return served.catalog.Snapshots.In(tx).Put(snapshotID, &record.Snapshot{
			ID: snapshotID, Name: "snapshot", SourceVolumeID: volumeID, Parameters: parameters, Phase: record.PhaseCreating,
			Consistency: volume.ConsistencyFilesystem,
		})
	}))

	require.NoError(t, served.Recover(t.Context()))

	_, _, taken := served.catalog.Snapshots.Lookup(record.NameIndex, "snapshot")
	require.False(t, taken, "the name of a snapshot")

	_, _, taken = served.catalog.Volumes.Lookup(record.NameIndex, "volume")
	require.False(t, taken, "the name of a volume")
}

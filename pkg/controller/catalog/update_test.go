package catalog_test

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

// TestOnlyReadyVolumesAreUpdated: one that the CO cannot see stays as it is. The name is freed of one that is not ready.
func TestOnlyReadyVolumesAreUpdated(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	store := state.New(filepath.Join(directory, "state"), state.Options{Log: slog.New(slog.DiscardHandler)})
	pools, err := poolset.Open(map[string]string{"default": filepath.Join(directory, "default")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	c := catalog.New(store, pools, &pool.Admission{Overcommit: 1})
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	const before, after = 1 << 20, 2 << 20

	var shared *record.Properties

	for phase, updated := range map[record.Phase]bool{
		"": false, record.PhaseCreating: false, record.PhaseReady: true, record.PhaseDeleting: false,
	} {
		id := volume.NewID()

		if phase != "" {
			served, err := pools.Get("default")
			require.NoError(t, err)
			require.NoError(t, c.RecordVolume(t.Context(), &record.Volume{
				ID: id, Name: string(phase), CapacityBytes: before, Phase: phase,
				Properties: &record.Properties{
					Parameters: volume.Parameters{
						Pool: "default", Backing: volume.BackingImage, Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize, FSType: "ext4",
					},
					Capabilities: []volume.Capability{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}},
				},
			}, served))
		}

		_, err = c.UpdateVolume(t.Context(), id, func(v *record.Volume) error {
			v.CapacityBytes = after

			return nil
		})
		if updated {
			require.NoError(t, err, "want: a volume that is ready is updated")
		} else {
			require.ErrorIs(t, err, errdefs.ErrNotFound, "want: a volume that is %q does not exist", phase)
		}

		if kept, ok := c.Volumes.Get(id); ok {
			require.Equal(t, updated, kept.CapacityBytes == after, "want: a volume that is %q is updated only if it is ready", phase)

			shared = cmp.Or(shared, kept.Properties)
			require.Same(t, shared, kept.Properties, "want: equal properties are kept once")
		}

		require.NoError(t, c.FreeVolumeNames(&record.Volume{ID: id}))
		require.NoError(t, c.Flush(t.Context()))

		freed, ok := c.Volumes.Get(id)
		require.Equal(t, phase != "", ok, "want: no record is made or lost")
		require.Equal(t, updated || !ok, !ok || freed.Phase != record.PhaseDeleting, "want: what is not ready is to be removed")
	}
}

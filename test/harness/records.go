package harness

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// ShortCheckPeriod is the time between two checks that a test awaits.
const ShortCheckPeriod = 200 * time.Millisecond

// SetCheckPeriod does what a controller in another process does.
func SetCheckPeriod(t *testing.T, d *Driver, id, period string) {
	t.Helper()

	opened, err := pool.Open("default", d.Pool(), pool.Options{})
	require.NoError(t, err)

	defer opened.Close()

	attributes, err := volume.ParseMutable(map[string]string{volume.KeyCheckPeriod: period})
	require.NoError(t, err)
	require.NoError(t, opened.SetMutable(id, attributes))
}

// EditRecord restarts the driver with a changed record, as if the driver had written it
// so, for example at another time.
func EditRecord(t *testing.T, d *Driver, collection, id string, edit func(record map[string]any)) {
	t.Helper()
	d.Stop()

	store := state.New(d.Config.StateDir, state.Options{Owner: "the test", Log: slog.New(slog.DiscardHandler)})
	collections := map[string]*state.Collection[json.RawMessage]{}

	for _, name := range []string{
		"volumes", "snapshots", "groups", "uses", "ephemerals", "tuned", "limited", "frozen", "checks", "pools",
	} {
		collections[name] = state.Register[json.RawMessage](store, name)
	}

	require.NoError(t, store.Open(t.Context()))

	encoded, known := collections[collection].Get(id)
	require.True(t, known, "%s %s", collection, id)

	var record map[string]any

	require.NoError(t, json.Unmarshal(encoded, &record))
	edit(record)

	encoded, err := json.Marshal(record)
	require.NoError(t, err)
	require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
		return collections[collection].In(tx).Put(id, encoded)
	}))
	require.NoError(t, store.Close())
	d.Restart(t)
}

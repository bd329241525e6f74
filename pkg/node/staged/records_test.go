package staged_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// open opens the state in a directory.
func open(t *testing.T, directory string) (*staged.Records[*staged.Volume], func()) {
	t.Helper()

	store := state.New(directory, state.Options{Log: slog.New(slog.DiscardHandler)})
	records := staged.NewVolumes(store)
	require.NoError(t, store.Open(t.Context()))
	records.Load()

	return records, func() { require.NoError(t, store.Close()) }
}

// of returns the example with another id.
func of(id string) *staged.Volume {
	v := example()
	v.VolumeID = id

	return v
}

// TestRecordsOutliveARestart: the newest ones are those of the next start.
func TestRecordsOutliveARestart(t *testing.T) {
	t.Parallel()

	const a, b, c = volumeID, "01890000-0000-7000-8000-000000000002", "01890000-0000-7000-8000-000000000003"

	directory := t.TempDir()
	records, closeStore := open(t, directory)

	require.NoError(t, records.Put(t.Context(), of(a)))
	require.NoError(t, records.PutAll(t.Context(), []*staged.Volume{of(b), of(c)}))

	changed := of(a).WithoutPublication("/a")
	require.NoError(t, records.PutLazily(changed))
	require.NoError(t, records.DeleteLazily(b))
	require.NoError(t, records.DeleteLazily(b), "want: a record that is gone is no error")

	refused := errors.New("refused")
	require.ErrorIs(t, records.PutIf(t.Context(), of(b), func() error { return refused }), refused)

	for _, bad := range []*staged.Volume{{VolumeID: b}, of("../x")} {
		errtext.Require(t, records.Put(t.Context(), bad), "record volume "+bad.VolumeID)
	}

	want := []*staged.Volume{changed, of(c)}

	check := func(when string) {
		require.ElementsMatch(t, want, records.All(), when)

		found, ok := records.Get(a)
		require.True(t, ok, when)
		require.Equal(t, changed, found, when)

		_, ok = records.Get(b)
		require.False(t, ok, when)
	}
	check("before the store is closed")
	closeStore()

	records, closeStore = open(t, directory)
	defer closeStore()

	check("after it is opened again")
}

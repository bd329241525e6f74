package staged_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestVolumesInUseAreThoseOfBothKinds, by the CO's ids and by the names of their objects.
func TestVolumesInUseAreThoseOfBothKinds(t *testing.T) {
	t.Parallel()

	const content = "01890000-0000-7000-8000-000000000002"

	store := state.New(t.TempDir(), state.Options{Log: slog.New(slog.DiscardHandler)})
	volumes := staged.Volumes{Staged: staged.NewVolumes(store), Inline: staged.NewInlineRecords(store)}
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	inline := &staged.Inline{VolumeID: "csi-1", ContentID: content, Parameters: example().Parameters, Publication: example().Publications[0]}
	require.NoError(t, volumes.Inline.Put(t.Context(), inline))
	require.Equal(t, []string{"csi-1"}, volumes.IDs())
	require.NoError(t, volumes.Record(t.Context(), example()))
	require.ElementsMatch(t, []string{"csi-1", volumeID}, volumes.IDs())

	for id, want := range map[string]staged.Record{volumeID: example(), "csi-1": inline} {
		v, record, ok := volumes.Get(id)
		require.True(t, ok, "want: volume %s is in use", id)
		require.Equal(t, id, v.VolumeID)
		require.Equal(t, want, record)
		require.Equal(t, want == inline, volumes.IsInline(id), "want: which volume is an inline one")
	}

	_, _, ok := volumes.Get(content)
	require.False(t, ok, "want: the content's id is none of a volume")
	require.Equal(t, []string{"csi-1", volumeID}, []string{volumes.OfObject(content), volumes.OfObject(volumeID)})

	for _, use := range []struct {
		id, path string
		want     codes.Code
	}{
		{volumeID, "/staging", codes.OK},
		{volumeID, "/b", codes.OK},
		{volumeID, "/c", codes.NotFound},
		{volumeID, "", codes.NotFound},
		{"csi-1", "/a", codes.OK},
		{"csi-1", "/b", codes.NotFound},
		{content, "/a", codes.NotFound},
	} {
		v, err := volumes.At(use.id, use.path)
		rpccode.Require(t, rpc.Status(err), use.want, "volume %s at %q", use.id, use.path)
		require.Equal(t, use.id == volumeID || use.want == codes.OK, v != nil, "want: the volume, if one of that id is in use")
	}

	for path, want := range map[string]bool{"/a": true, "/b": false} {
		_, ok = volumes.Inline.At("csi-1", path)
		require.Equal(t, want, ok, "whether it is published at %s", path)
	}

	_, ok = volumes.Inline.At(volumeID, "/a")
	require.False(t, ok, "want: no inline volume has another kind's id")
}

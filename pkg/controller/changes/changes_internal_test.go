package changes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestChangeRequestsAreMerged: ControllerExpandVolume and ControllerModifyVolume of one volume
// become one change unless they contradict each other.
func TestChangeRequestsAreMerged(t *testing.T) {
	t.Parallel()

	fast := volume.Mutable{volume.KeyReadIOPS: "100"}
	slow := volume.Mutable{volume.KeyReadIOPS: "10"}
	ahead := volume.Mutable{volume.KeyReadAheadKiB: "128"}

	for name, test := range map[string]struct {
		first, second, want Request
		code                codes.Code
	}{
		"expand and modify":       {Request{Size: 8}, Request{Mutable: fast}, Request{Size: 8, Mutable: fast}, codes.OK},
		"modify and expand":       {Request{Mutable: fast}, Request{Size: 8}, Request{Size: 8, Mutable: fast}, codes.OK},
		"the same size twice":     {Request{Size: 8}, Request{Size: 8}, Request{Size: 8}, codes.OK},
		"two sizes":               {Request{Size: 8}, Request{Size: 16}, Request{}, codes.Aborted},
		"the lower limit":         {Request{Size: 8, Limit: 32}, Request{Size: 8, Limit: 16}, Request{Size: 8, Limit: 16}, codes.OK},
		"a limit and none":        {Request{Size: 8, Limit: 32}, Request{Size: 8}, Request{Size: 8, Limit: 32}, codes.OK},
		"none and a limit":        {Request{Size: 8}, Request{Size: 8, Limit: 32}, Request{Size: 8, Limit: 32}, codes.OK},
		"the same parameter":      {Request{Mutable: fast}, Request{Mutable: fast}, Request{Mutable: fast}, codes.OK},
		"contradicting parameter": {Request{Mutable: fast}, Request{Mutable: slow}, Request{}, codes.Aborted},
		"two parameters": {
			Request{Mutable: fast},
			Request{Mutable: ahead},
			Request{Mutable: volume.Mutable{volume.KeyReadIOPS: "100", volume.KeyReadAheadKiB: "128"}},
			codes.OK,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := test.first.and(test.second)
			rpccode.Require(t, err, test.code)
			require.Equal(t, test.want, got)
		})
	}

	for name, change := range map[string]Request{
		"ControllerExpandVolume": {Size: 8}, "ControllerModifyVolume": {Mutable: fast},
		"ControllerExpandVolume with ControllerModifyVolume": {Size: 8, Mutable: fast},
	} {
		require.Equal(t, name, change.call("id").Method)
	}
}

// TestPublishedParametersAreNotWrittenAgain: only what differs is written.
func TestPublishedParametersAreNotWrittenAgain(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	p, err := pool.Open("default", directory, pool.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })

	id := volume.NewID()

	v := &record.Volume{ID: id, Properties: &record.Properties{Mutable: volume.Mutable{volume.KeyReadIOPS: "100"}}}
	path := filepath.Join(directory, "attributes", v.ID+".json")

	require.NoError(t, publishMutable(v, p))

	before, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, publishMutable(v, p))

	after, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "want: the file is as it was")

	for _, content := range []string{"no JSON", `{"readIOPS":"7"}`} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(t, publishMutable(v, p))

		there, err := p.Mutable(v.ID)
		require.NoError(t, err)
		require.True(t, there.Equal(v.Mutable), "want: the pool has what the record has, not %s", content)
	}
}

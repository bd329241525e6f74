package copies_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestTruncatedSourceFailsTheCopy: a copy of it would have zeros where data is lost.
func TestTruncatedSourceFailsTheCopy(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stallingPool(t)
	d := harness.Start(t, there, patient)
	copied, cloned := oneBlock(t, d, "copied"), oneBlock(t, d, "cloned")

	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: copied})
	require.NoError(t, err)

	snapshot := made.GetSnapshot().GetSnapshotId()
	create := func(source *csi.VolumeContentSource) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: "copy", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, VolumeContentSource: source,
			})

			return err
		}
	}

	for _, test := range []struct {
		name, room, source string
		call               func(context.Context) error
	}{
		{"snapshot", "images", copied, func(ctx context.Context) error {
			_, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "copy", SourceVolumeId: copied})

			return err
		}},
		{"clone", "images", cloned, create(harness.FromVolume(cloned))},
		{"restore", "snapshots", snapshot, create(harness.FromSnapshot(snapshot))},
	} {
		copying, answers := stall(t, served, test.room, test.source), make(chan error, 1)

		go func() { answers <- test.call(context.WithoutCancel(t.Context())) }()

		copying()
		require.NoError(t, os.Truncate(filepath.Join(d.Pool(), test.room, test.source+".img"), 4096))
		served.Release(t)

		harness.RequireCode(t, await.Receive(t, answers, "the copy to end"), codes.FailedPrecondition, test.source, "4096 of 8192", "truncated")
		harness.RequireEntries(t, d, map[string]int{"images": 2, "snapshots": 1, "scratch": 0})
	}

	require.ElementsMatch(t, []string{copied, cloned}, harness.ListAll(t, d), "want: no copy is listed")
}

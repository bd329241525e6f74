package create_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestMountsInADirectoryKeepIt: a volume, a snapshot and an inline volume in whose directory another program
// has mounted something are not deleted, and what is mounted there is left as it is.
func TestMountsInADirectoryKeepIt(t *testing.T) {
	namespace.NeedRoot(t)

	for name, made := range map[string]func(t *testing.T, d *harness.Driver) (within string, remove func(context.Context) error){
		"volume": func(t *testing.T, d *harness.Driver) (string, func(context.Context) error) {
			t.Helper()

			id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()}).VolumeID

			return "directories", func(ctx context.Context) error {
				_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

				return err
			}
		},
		"snapshot": func(t *testing.T, d *harness.Driver) (string, func(context.Context) error) {
			t.Helper()

			source := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()}).VolumeID
			id := harness.TakeSnapshot(t, d, source, "snapshot")

			return "snapshots", func(ctx context.Context) error {
				_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

				return err
			}
		},
		"inline volume": func(t *testing.T, d *harness.Driver) (string, func(context.Context) error) {
			t.Helper()

			claim := harness.InlineClaim(t, d, map[string]string{"backing": "directory"})
			require.NoError(t, d.Publish(t.Context(), claim))

			return "ephemeral/directories", func(ctx context.Context) error { return d.Unpublish(ctx, claim) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			within, remove := made(t, d)

			entries, err := os.ReadDir(filepath.Join(d.Pool(), within))
			require.NoError(t, err)
			require.Len(t, entries, 1, "want: the pool has the directory")

			mounted := filepath.Join(d.Pool(), within, entries[0].Name(), "foreign")
			require.NoError(t, os.Mkdir(mounted, 0o700))
			require.NoError(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, ""))
			harness.WriteFile(t, filepath.Join(mounted, "file"), "not yours")

			harness.RequireCode(t, remove(t.Context()), codes.FailedPrecondition, "tmpfs is mounted at", "foreign", "unmount it first")

			kept, err := os.ReadFile(filepath.Join(mounted, "file"))
			require.NoError(t, err)
			require.Equal(t, "not yours", string(kept))

			harness.Unmount(t, mounted)
			require.NoError(t, remove(t.Context()))
			require.NoDirExists(t, filepath.Dir(mounted))
		})
	}
}

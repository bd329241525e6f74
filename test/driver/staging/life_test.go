package staging_test

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestLifecycle(t *testing.T) {
	namespace.NeedRoot(t)

	for _, k := range harness.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			d := harness.Start(t)
			volume := harness.NewLifecycle(t, d, k)
			volume.Up()
			sum := volume.Write()
			volume.Holds(sum)

			before := volume.Usage(csi.VolumeUsage_BYTES)
			volume.Expand()
			volume.Holds(sum)

			after := volume.Usage(csi.VolumeUsage_BYTES)
			if k.Name != "directory" {
				require.Greater(t, after.GetTotal(), before.GetTotal(), "want: the filesystem has grown")
			}

			d.Restart(t)
			volume.Holds(sum)
			// All three are answered from what is there.
			volume.Up()
			volume.Holds(sum)
			volume.Down()
			require.NoDirExists(t, volume.Claim.TargetPath)
			require.NoFileExists(t, volume.Claim.TargetPath)

			volume.Up()
			volume.Holds(sum)
			volume.Down()
			volume.Delete()
		})
	}
}

// TestSizeIsEnforced fills a volume to the end.
func TestSizeIsEnforced(t *testing.T) {
	namespace.NeedRoot(t)

	for _, k := range harness.Kinds() {
		if k.Name == "directory" {
			continue
		}

		t.Run(k.Name, func(t *testing.T) {
			d := harness.Start(t)
			volume := harness.NewLifecycle(t, d, k)
			volume.Up()

			file, err := os.OpenFile(harness.DataPath(volume.Claim), os.O_WRONLY|os.O_CREATE, 0o600)
			require.NoError(t, err)

			written, err := io.Copy(file, io.LimitReader(rand.Reader, 2*k.Bytes))
			err = errors.Join(err, file.Sync(), file.Close())
			errtext.Require(t, err, "no space left on device")
			require.LessOrEqual(t, written, k.Bytes, "want: no more than the size is written")
			volume.Down()
			volume.Delete()
		})
	}
}

// TestUsageIsOfTheVolume: two volumes in one pool report different ones.
func TestUsageIsOfTheVolume(t *testing.T) {
	namespace.NeedRoot(t)

	for _, k := range harness.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			d := harness.Start(t)

			volume := harness.NewLifecycle(t, d, k)
			volume.Up()

			if k.Capability.GetBlock() != nil {
				require.Equal(t, k.Bytes, volume.Usage(csi.VolumeUsage_BYTES).GetTotal(), "want: a raw volume is as large as its device")
				volume.Down()

				return
			}

			before := volume.Usage(csi.VolumeUsage_BYTES).GetUsed()
			require.Less(t, before, int64(64*harness.MiB), "want: an empty volume uses little")
			volume.Write()
			require.NoError(t, os.WriteFile(filepath.Join(volume.Claim.TargetPath, "second"), []byte("x"), 0o600))
			// btrfs counts what it has committed.
			require.NoError(t, harness.Syncfs(volume.Claim.TargetPath))

			after := volume.Usage(csi.VolumeUsage_BYTES).GetUsed()
			require.InDelta(t, before+8*harness.MiB, after, harness.MiB, "want: the written bytes are used")

			if k.Name != "btrfs" {
				require.Less(t, volume.Usage(csi.VolumeUsage_INODES).GetUsed(), int64(20), "want: the inodes are those of the volume alone")
			}

			volume.Down()
		})
	}
}

// TestExpansionsRequireTheNode: the node has to grow an image, and does not report a size
// that its device does not have.
func TestExpansionsRequireTheNode(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)

	for name, parameters := range map[string]map[string]string{"image": nil, "directory": harness.DirectoryBacked()} {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: name, Parameters: parameters})
		answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: 96 * harness.MiB},
		})
		require.NoError(t, err)
		require.Equal(t, name == "image", answer.GetNodeExpansionRequired(), "node_expansion_required of the %s", name)

		if name != "image" {
			continue
		}

		harness.BringUp(t, d, claim)

		_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * harness.MiB},
		})
		harness.RequireCode(t, err, codes.OutOfRange, "ControllerExpandVolume")
	}
}

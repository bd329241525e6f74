package publishing_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestImageCannotSetTheErrorBehaviour: the superblock of a volume has, as a user of the raw block
// volume can write it, that an error is to halt the machine. Neither the volume nor a copy of it is
// mounted so.
func TestImageCannotSetTheErrorBehaviour(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, options := range map[string][]string{
		"errors": {"-e", "panic"}, "default mount options": {"-E", "mount_opts=errors=panic"},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
			harness.BringUp(t, d, claim)
			harness.TakeDown(t, d, claim)

			image := harness.ImageOf(d, claim.VolumeID)
			output, err := child.Command(t, "tune2fs", append(options, image)...).CombinedOutput()
			require.NoError(t, err, "%s", output)

			remounts := func(claim *csiclient.Publication) {
				t.Helper()
				harness.BringUp(t, d, claim)

				for _, path := range []string{claim.StagingPath, claim.TargetPath} {
					require.NotContains(t, harness.MountOptions(t, path), "errors=panic", path)
					require.NotContains(t, harness.MountOptions(t, path), "errors=continue", path)
				}

				if name == "errors" {
					// It is shown where it differs from the superblock.
					require.Contains(t, harness.MountOptions(t, claim.StagingPath), "errors=remount-ro")
				}

				harness.TakeDown(t, d, claim)
			}
			remounts(claim)
			remounts(harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "clone", VolumeContentSource: harness.FromVolume(claim.VolumeID)}))

			// Readers, and the mount flags of a StorageClass or a PersistentVolume.
			claim.Capability = csiclient.MountCapability(harness.ReaderOnly, "ext4")
			remounts(claim)

			if name == "errors" {
				claim.Capability = csiclient.MountCapability(harness.Writer, "ext4", "errors=continue")
				harness.BringUp(t, d, claim)
				require.Contains(t, harness.MountOptions(t, claim.StagingPath), "errors=continue")
			}
		})
	}
}

// TestInlineVolumeCannotSetTheErrorBehaviour: its attributes are of the author of a pod.
func TestInlineVolumeCannotSetTheErrorBehaviour(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	refuses := func(capability *csi.VolumeCapability, options string, words ...string) {
		t.Helper()

		claim := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "mkfsOptions": options})
		if capability != nil {
			claim.Capability = capability
		}

		harness.RequireCode(t, d.Publish(t.Context(), claim), codes.InvalidArgument, words...)
		harness.RequireEphemeralGone(t, d, claim)
	}
	publishes := func(options string) {
		t.Helper()

		claim := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "mkfsOptions": options})
		require.NoError(t, d.Publish(t.Context(), claim))
		require.Contains(t, harness.MountOptions(t, claim.TargetPath), "errors=remount-ro")
		require.NoError(t, d.Unpublish(t.Context(), claim))
	}

	for _, options := range []string{"-e panic", "-m 0"} {
		refuses(nil, options, "mkfsOptions", "--ephemeral-mkfs-options")
	}

	publishes("")

	for _, flags := range [][]string{{"errors=panic"}, {"noatime,errors=panic"}} {
		refuses(csiclient.MountCapability(harness.Writer, "ext4", flags...), "", "errors=panic")
	}

	refuses(csiclient.MountCapability(harness.Writer, "btrfs", "fatal_errors=panic"), "", "fatal_errors")

	d.Restart(t, func(c *driver.Config) { c.Node.EphemeralMkfsOptions = true })
	refuses(nil, "-e panic", "mkfsOptions", `"-e"`, "allowed are")
	refuses(nil, "-E mount_opts=errors=panic", "mkfsOptions", "stride")
	publishes("-m 0")
}

// TestMkfsOptionsAreRefusedBeforeAnythingIsMade has them refused by the controller.
func TestMkfsOptionsAreRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	before := harness.Everything(t, d)

	for fsType, options := range map[string]string{"ext4": "-e panic", "xfs": "-l logdev=/dev/null", "btrfs": "-U random"} {
		request := harness.MountRequest(fsType, 300*harness.MiB)
		request.Name, request.Parameters = fsType, map[string]string{"mkfsOptions": options}

		_, err := d.CreateVolume(t.Context(), request)
		harness.RequireCode(t, err, codes.InvalidArgument, "mkfsOptions", "allowed")
	}

	require.Equal(t, before, harness.Everything(t, d))
}

// TestDeviceNodesOfAVolumeCannotBeOpened, unless the mount flags have "dev". All else a volume
// holds works, setuid programs included.
func TestDeviceNodesOfAVolumeCannotBeOpened(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, parameters := range map[string]map[string]string{"image": nil, "directory": harness.DirectoryBacked()} {
		for _, flag := range []string{"", "dev", "nosuid"} {
			t.Run(name+" "+flag, func(t *testing.T) {
				d := harness.Start(t)

				var flags []string
				if flag != "" {
					flags = append(flags, flag)
				}

				claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
					VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "", flags...)}, Parameters: parameters,
				})
				harness.BringUp(t, d, claim)

				for _, path := range []string{claim.StagingPath, claim.TargetPath} {
					null := filepath.Join(path, "null")
					require.NoError(t, unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))

					file, err := os.Open(null)
					if flag == "dev" {
						require.NoError(t, err)
						require.NoError(t, file.Close())
					} else {
						require.ErrorIs(t, err, unix.EACCES)
					}

					require.NoError(t, os.Remove(null))

					options := harness.MountOptions(t, path)
					require.Equal(t, flag == "nosuid", strings.Contains(options, "nosuid"), options)
				}
			})
		}
	}

	t.Run("inline ephemeral", func(t *testing.T) {
		d := harness.Start(t)
		claim := harness.InlineClaim(t, d, harness.SmallInline())
		require.NoError(t, d.Publish(t.Context(), claim))
		require.Contains(t, harness.MountOptions(t, claim.TargetPath), "nodev")
	})
}

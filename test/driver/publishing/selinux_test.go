package publishing_test

import (
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// label is how the kubelet asks for a volume of a pod's own: two categories,
// with a comma between, in quotes.
const label = `"system_u:object_r:container_file_t:s0:c123,c456"`

// hasSELinux says whether the kernel can do what the label asks for.
func hasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")

	return err == nil
}

// TestSELinuxContextReachesTheKernel mounts with the kubelet's flag for SELinux.
// Where the kernel has no SELinux it has to say so itself, of that flag.
func TestSELinuxContextReachesTheKernel(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		for _, key := range []string{"context", "rootcontext"} {
			t.Run(fsType+" "+key, func(t *testing.T) {
				d := harness.Start(t)
				claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
					CapacityRange:      &csi.CapacityRange{RequiredBytes: 300 * harness.MiB},
					VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, fsType, key+"="+label)},
				})
				require.NoError(t, d.Attach(t.Context(), claim))
				t.Cleanup(func() { harness.TakeDown(t, d, claim) })

				err := d.Stage(t.Context(), claim)
				if !hasSELinux() {
					harness.RequireCode(t, err, codes.InvalidArgument, `"`+key+`"`, "kernel")
					// Whose pod it is does not belong into a log.
					require.NotContains(t, status.Convert(err).Message(), "c123")
					mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.Config.KubeletDir))
					require.NoError(t, err)
					require.Empty(t, mounts, "want: nothing is mounted with a refused context")

					return
				}

				require.NoError(t, err)
				require.NoError(t, d.Publish(t.Context(), claim))

				var got [256]byte

				length, err := unix.Getxattr(claim.TargetPath, "security.selinux", got[:])
				require.NoError(t, err)
				require.Contains(t, string(got[:length]), "c123,c456")
			})
		}
	}
}

// TestQuotedCommaDoesNotEndAFlag shows which flag the kernel got: cut at the
// comma, "data" would be fine and the rest be unknown.
func TestQuotedCommaDoesNotEndAFlag(t *testing.T) {
	namespace.NeedRoot(t)

	for flag, word := range map[string]string{`data="ordered,noload"`: `"data"`, `data=ordered,nonsense`: `"nonsense"`} {
		d := harness.Start(t)
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Name: harness.NameOf(t), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4", flag)},
		})
		require.NoError(t, d.Attach(t.Context(), claim))

		harness.RequireCode(t, d.Stage(t.Context(), claim), codes.InvalidArgument, word)
		harness.TakeDown(t, d, claim)
	}
}

func TestEphemeralVolumesHaveTheSELinuxContext(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := harness.InlineClaim(t, d, harness.SmallInline())
	claim.Capability = csiclient.MountCapability(harness.Writer, "ext4", "context="+label)

	err := d.Publish(t.Context(), claim)
	if hasSELinux() {
		require.NoError(t, err)

		return
	}

	harness.RequireCode(t, err, codes.InvalidArgument, `"context"`, "kernel")
	require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left of the refused inline volume")
	require.NoDirExists(t, claim.TargetPath)
}

package direct_test

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
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestDirectIsKeptByItsGuest, which has the device open when the volume is unpublished: no other
// volume gets it before the guest has gone.
func TestDirectIsKeptByItsGuest(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))

	guest, err := os.OpenFile(deviceOf(t, d, claim).Path, os.O_RDWR, 0)
	require.NoError(t, err)

	require.NoError(t, d.Unpublish(t.Context(), claim))
	harness.RequireCode(t, d.Unstage(t.Context(), claim), codes.DeadlineExceeded)

	err = d.Stage(t.Context(), claim)
	harness.RequireCode(t, err, codes.FailedPrecondition, "open still")

	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition)

	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
	harness.RequireCode(t, err, codes.FailedPrecondition)

	require.NoError(t, guest.Close())
	require.NoError(t, d.Unstage(t.Context(), claim))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))
}

// TestDirectLosesItsDevice, whose number is the next image's: the runtime's file is removed, be it
// found by the driver as it runs or when it starts.
func TestDirectLosesItsDevice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	ways := rebirths()
	ways["running"] = func(*testing.T, *harness.Driver) {}
	ways["running, for a reader"] = ways["running"]

	for name, reborn := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t)
			claim := directClaim(t, d)
			claim.ReadOnly = strings.HasSuffix(name, "reader")
			require.NoError(t, d.Publish(t.Context(), claim))

			for _, lost := range harness.DevicesOf(t, d, claim.VolumeID) {
				// A reader has a device of its own beside the staging's.
				if lost.ReadOnly == claim.ReadOnly {
					require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).Detach(t.Context(), lost.Number))
				}
			}

			reborn(t, d)

			require.Eventually(t, func() bool {
				_, err := os.Stat(filepath.Join(claim.TargetPath, "csiPlugin.json"))
				_, reported := os.Stat(harness.DirectEntry(d, claim))

				return os.IsNotExist(err) && os.IsNotExist(reported)
			}, await.Limit, harness.Often, "want: the assignment of a lost device is removed")

			if !claim.ReadOnly {
				harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition, "stage")
			}

			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoError(t, d.Unstage(t.Context(), claim))
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			require.FileExists(t, harness.MountInfoPath(d, claim))
		})
	}
}

// TestForgedAssignmentIsReplaced: a privileged container writes what a runtime reads.
func TestForgedAssignmentIsReplaced(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, restore := range rebirths() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t)
			claim := directClaim(t, d)
			require.NoError(t, d.Publish(t.Context(), claim))

			plugin := filepath.Join(claim.TargetPath, "csiPlugin.json")
			genuine := pluginAt(t, claim)

			forge := func() {
				require.NoError(t, unix.Mount("", claim.TargetPath, "", unix.MS_REMOUNT, ""))
				require.NoError(t, os.WriteFile(plugin, []byte(`{"device":"/dev/other"}`), 0o600))
			}

			forge()
			require.NoError(t, d.Publish(t.Context(), claim))
			require.Equal(t, genuine, pluginAt(t, claim))
			require.ErrorIs(t, os.WriteFile(plugin, nil, 0o600), unix.EROFS)

			// So well that only what it says gives it away.
			forge()
			require.NoError(t, unix.Mount("", claim.TargetPath, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			require.NoError(t, d.Publish(t.Context(), claim))
			require.Equal(t, genuine, pluginAt(t, claim), "after Publish over a forged file on a read-only filesystem")

			forge()
			restore(t, d)
			require.Equal(t, genuine, pluginAt(t, claim))

			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoError(t, d.Unstage(t.Context(), claim))
		})
	}
}

// TestTooLongDirectTargetIsRefused: it is too long for a runtime.
func TestTooLongDirectTargetIsRefused(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)

	long := *claim
	long.TargetPath = filepath.Join(filepath.Dir(claim.TargetPath), strings.Repeat("n", 190))

	harness.RequireCode(t, d.Publish(t.Context(), &long), codes.InvalidArgument, "bytes")
	require.NoDirExists(t, long.TargetPath)
	require.NoError(t, d.Unpublish(t.Context(), &long))

	require.NoError(t, d.Publish(t.Context(), claim))
	require.FileExists(t, harness.MountInfoPath(d, claim))
}

func pluginAt(t *testing.T, claim *csiclient.Publication) string {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(claim.TargetPath, "csiPlugin.json"))
	require.NoError(t, err)

	return string(content)
}

package health_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestAForeignWriteIsRememberedUntilACheck has the image grow after another program has written it,
// and the volume unstaged. The staging checks all metadata, although the filesystem is marked clean.
func TestAForeignWriteIsRememberedUntilACheck(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		p.use(t)
		harness.Populate(t, p.claim.TargetPath)
		p.awaitLook(t)
		scribble(t, p)
		p.awaitNode(t, health.FilesystemErrors)

		require.NoError(t, os.Truncate(p.image, p.size()+4096))
		p.requireSteady(t)
		require.NoError(t, os.Truncate(p.image, p.size()+8192))
		p.requireSteady(t)

		p.stopUsing(t)
		p.awaitNode(t, health.FilesystemErrors)
		p.Restart(t)
		p.awaitNode(t, health.FilesystemErrors)

		harness.DamageInodes(t, "ext4", p.image)
		harness.RequireCode(t, p.Stage(t.Context(), p.claim), codes.Internal, "damaged")
		p.awaitNode(t, health.FilesystemCorrupted)

		harness.RunTool(t, 1, "e2fsck", "-f", "-y", p.image)
		p.awaitNode(t, health.FilesystemCorrupted)
		p.use(t)
		p.awaitNode(t)
	})
}

// TestATruncationIsRememberedUntilACheck truncates the image, in use and not, and gives it its size
// again.
func TestATruncationIsRememberedUntilACheck(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		truncateAndGrow := func() {
			t.Helper()
			require.NoError(t, os.Truncate(p.image, p.size()-harness.MiB))

			if p.Config.Mode == driver.ModeAll {
				// The node is not asked meanwhile.
				p.awaitController(t, health.BackingFileTruncated)
			} else {
				p.awaitNode(t, health.BackingFileTruncated)
			}

			require.NoError(t, os.Truncate(p.image, p.size()))
			p.awaitNode(t, health.FilesystemErrors)
			p.requireSteady(t)
		}

		p.use(t)
		p.awaitLook(t)
		truncateAndGrow()
		require.Equal(t, "clean", check(t, p, "online").Verdict)
		p.awaitNode(t)

		p.stopUsing(t)
		truncateAndGrow()
		require.Equal(t, "clean", check(t, p, "offline").Verdict)
		p.awaitNode(t)
	})
}

// TestErrorsThatTheKernelCountsAreRememberedUntilACheck has the volume unstaged, after which no probe can
// read the count.
func TestErrorsThatTheKernelCountsAreRememberedUntilACheck(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		p.use(t)
		p.awaitLook(t)

		trigger := fmt.Sprintf("/sys/fs/ext4/loop%d/trigger_fs_error", harness.DevicesOf(t, p.Driver, p.claim.VolumeID)[0].Number)
		require.NoError(t, os.WriteFile(trigger, []byte("1\n"), 0))
		p.awaitNode(t, health.FilesystemCorrupted, health.ReadOnlyRemount)

		p.stopUsing(t)
		p.awaitNode(t, health.FilesystemCorrupted)
		p.use(t)
		p.awaitNode(t)
	})
}

// TestDamageIsRememberedWhileTheImageIsAway moves a damaged image away and back.
func TestDamageIsRememberedWhileTheImageIsAway(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		if p.Config.Mode != driver.ModeAll {
			t.Skip("a node alone takes the volume for deleted")
		}

		p.use(t)
		harness.Populate(t, p.claim.TargetPath)
		p.stopUsing(t)
		harness.DamageInodes(t, "ext4", p.image)
		require.Equal(t, "damaged", check(t, p, "offline").Verdict)

		kept := p.aside(t, p.image)
		require.NoError(t, os.Rename(p.image, kept))
		p.awaitNode(t, health.BackingFileMissing, health.FilesystemCorrupted)
		p.Restart(t)
		require.NoError(t, os.Rename(kept, p.image))
		p.awaitNode(t, health.FilesystemCorrupted)
	})
}

func (p *sufferer) awaitController(t *testing.T, reason health.Reason) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		answer, err := p.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: p.claim.VolumeID})
		require.NoError(c, err)
		require.NotEmpty(c, answer.GetVolumeHealth().GetHealthStatuses(), "want: the controller reports a condition")
		require.Equal(c, string(reason), answer.GetVolumeHealth().GetHealthStatuses()[0].GetReason())
	}, await.Limit, 10*time.Millisecond, "want: the controller reports the condition")
}

// TestADeletedVolumeIsNotReported deletes a volume whose image was removed while it was in use: no event
// reports the deletion.
func TestADeletedVolumeIsNotReported(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	p := (&illness{}).admit(t, harness.EventsOnly)
	require.NoError(t, os.Remove(p.image))
	p.awaitNode(t, health.BackingFileMissing)
	harness.TakeDown(t, p.Driver, p.claim)
	harness.DeleteVolume(t, p.Driver, p.claim.VolumeID)

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		report, err := health.NewClient(p.Conn()).Report(t.Context())
		require.NoError(c, err)
		require.False(c, slices.ContainsFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == p.claim.VolumeID }), "want: the report does not have the volume")
	}, await.Limit, 10*time.Millisecond, "want: the deleted volume is not reported")
}

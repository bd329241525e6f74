package health_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// TestAGrowthThatFailsIsNoForeignWrite has the driver give back what it could
// reserve of a growth, by which it touches the image without changing its size.
func TestAGrowthThatFailsIsNoForeignWrite(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	var heard harness.Alarms

	pool := testpool.Plain(t, 1024*harness.MiB)
	d := harness.Start(t, func(c *driver.Config) {
		heard = harness.NewAlarms(c.Log.Handler())
		c.Log, c.Overcommit, c.Pools["default"] = slog.New(heard), 1000, pool
		c.Health.RelistPeriod, c.Health.EventedRelistPeriod = 10*time.Millisecond, 10*time.Millisecond
	})
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		CapacityRange: harness.RequiredBytes(16 * harness.MiB), Parameters: map[string]string{"provisioning": "thick"},
	})
	harness.BringUp(t, d, claim)

	other := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "other", CapacityRange: harness.RequiredBytes(16 * harness.MiB)})
	harness.BringUp(t, d, other)

	for range 40 {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(4096 * harness.MiB), VolumeCapability: claim.Capability,
		})
		harness.RequireCode(t, err, codes.ResourceExhausted)
	}

	// The kernel reports one after the other. A write within 20 ms of the staging may be the driver's.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, harness.WriteThrough(harness.ImageOf(d, other.VolumeID)))
		require.True(c, heard.Of(other.VolumeID, health.FilesystemErrors), heard.All())
	}, await.Limit, 10*time.Millisecond, "want: the foreign write is reported")
	require.False(t, heard.Of(claim.VolumeID, health.FilesystemErrors), heard.All())
}

// stopped has a filesystem give up, as it does by itself when its disk fails.
func stopped(t *testing.T, path string) {
	t.Helper()

	root, err := os.Open(path)
	require.NoError(t, err)

	defer root.Close()

	require.NoError(t, harness.ShutDownFilesystem(root))
}

// TestStatsOfUnhealthyVolumes: their usage can't be read any more.
func TestStatsOfUnhealthyVolumes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, test := range []struct {
		name   string
		kind   string
		reason health.Reason
		strike func(t *testing.T, d *harness.Driver, claim *csiclient.Publication)
	}{
		{"xfs that has shut down", "xfs", health.DiskFailure, func(t *testing.T, _ *harness.Driver, claim *csiclient.Publication) {
			stopped(t, claim.TargetPath)
		}},
		{"ext4 that has shut down", "ext4", health.DiskFailure, func(t *testing.T, _ *harness.Driver, claim *csiclient.Publication) {
			stopped(t, claim.TargetPath)
		}},
		{"target unmounted", "ext4", health.VolumeUnmounted, func(t *testing.T, _ *harness.Driver, claim *csiclient.Publication) {
			harness.Unmount(t, claim.TargetPath)
		}},
		{"device detached", "block", health.DeviceMissing, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			attached := harness.DevicesOf(t, d, claim.VolumeID)
			require.Len(t, attached, 1, "want: the volume has one device")
			require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).Detach(t.Context(), attached[0].Number))
		}},
		{"directory moved", "directory", health.VolumeNotFound, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			from, to := filepath.Join(d.Pool(), "directories", claim.VolumeID), filepath.Join(d.Root, "aside")
			require.NoError(t, os.Rename(from, to))
			t.Cleanup(func() { require.NoError(t, os.Rename(to, from)) })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, often10)
			claim := harness.NewVolume(t, d, harness.KindRequests(harness.Writer)[test.kind])
			harness.BringUp(t, d, claim)

			healthy := usageAt(t, d, claim)
			test.strike(t, d, claim)

			harness.AwaitReason(t, d, claim.VolumeID, test.reason)
			harness.RequireAbnormal(t, d, claim, claim.TargetPath, test.reason)

			sick := usageAt(t, d, claim)
			require.Equal(t, healthy[0].GetTotal(), sick[0].GetTotal(), "%v", sick)
		})
	}
}

func often10(c *driver.Config) {
	c.Health.RelistPeriod, c.Health.EventedRelistPeriod = 10*time.Millisecond, 10*time.Millisecond
}

func usageAt(t *testing.T, d *harness.Driver, claim *csiclient.Publication) []*csi.VolumeUsage {
	t.Helper()

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath,
	})
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetUsage(), "want: an unhealthy volume has its usage")

	return answer.GetUsage()
}

func TestNodeGetVolumeHealthIsAboutTheVolume(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		ask := func(request *csi.NodeGetVolumeHealthRequest) error {
			_, err := d.NodeGetVolumeHealth(t.Context(), request)

			return err
		}

		// It is about the volume, wherever that is.
		for _, paths := range [][2]string{{}, {claim.TargetPath, claim.StagingPath}, {"/nowhere", "/nowhere else"}} {
			require.NoError(t, ask(&csi.NodeGetVolumeHealthRequest{
				VolumeId: claim.VolumeID, VolumePublishPath: paths[0], StagingTargetPath: paths[1],
			}))
			require.Empty(t, harness.ReasonsOf(t, d, claim.VolumeID), "want: a healthy volume has no condition")
		}

		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{}), codes.InvalidArgument, "volume_id")
		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: "../etc"}), codes.InvalidArgument, "volume_id")
		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: harness.UnknownVolume}), codes.NotFound, harness.UnknownVolume)
		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: "no-uuid"}), codes.NotFound, "no-uuid")
		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID, VolumePublishPath: "relative"}),
			codes.InvalidArgument, "volume_publish_path")
		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID, StagingTargetPath: "relative"}),
			codes.InvalidArgument, "staging_target_path")

		// Before the first staging, between two, and after the last.
		harness.TakeDown(t, d, claim)
		require.Empty(t, harness.ReasonsOf(t, d, claim.VolumeID), "want: a volume that is not staged has no condition")
		d.Restart(t)
		require.Empty(t, harness.ReasonsOf(t, d, claim.VolumeID), "want: a volume that is not staged has no condition after a restart")
		harness.DeleteVolume(t, d, claim.VolumeID)
		harness.RequireCode(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID}), codes.NotFound, claim.VolumeID)
	})
}

// TestInlineVolumeHasTheCOsID, by which its health is asked for.
func TestInlineVolumeHasTheCOsID(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, often10)
	claim := harness.InlineClaim(t, d, harness.SmallInline())
	require.NoError(t, d.Publish(t.Context(), claim))
	require.Empty(t, harness.ReasonsOf(t, d, claim.VolumeID), "want: a healthy inline volume has no condition")

	images := harness.EphemeralObjects(t, d)
	require.Len(t, images, 1, "want: the inline volume has one image")

	image := filepath.Join(d.Pool(), "ephemeral", "images", images[0])
	require.NoError(t, os.Rename(image, image+".away"))
	require.Eventually(t, func() bool {
		return slices.Equal(harness.ReasonsOf(t, d, claim.VolumeID), []health.Reason{health.BackingFileMissing})
	}, await.Limit, 10*time.Millisecond, "want: the missing image is reported")
	harness.RequireAbnormal(t, d, claim, claim.TargetPath, health.BackingFileMissing)

	require.NoError(t, os.Rename(image+".away", image))
	harness.AwaitReason(t, d, claim.VolumeID, "")

	require.NoError(t, d.Unpublish(t.Context(), claim))

	_, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID})
	harness.RequireCode(t, err, codes.NotFound, claim.VolumeID)
}

// TestRenamedImageIsHealthy while its volume is in use.
func TestRenamedImageIsHealthy(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, often10)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)

	image := harness.ImageOf(d, claim.VolumeID)
	require.NoError(t, os.Rename(image, image+".away"))
	require.Eventually(t, func() bool {
		return slices.Equal(harness.ReasonsOf(t, d, claim.VolumeID), []health.Reason{health.BackingFileMissing})
	}, await.Limit, 10*time.Millisecond, "want: the missing image is reported")
	require.NotEmpty(t, usageAt(t, d, claim), "want: a volume without an image has its usage")

	// It can be taken down, too, and staged once it has its name again.
	harness.TakeDown(t, d, claim)
	require.NoError(t, os.Rename(image+".away", image))
	harness.BringUp(t, d, claim)
	harness.AwaitReason(t, d, claim.VolumeID, "")
}

// TestHealthAfterAFailedStaging: a disk fails so early that the volume never gets into use.
func TestHealthAfterAFailedStaging(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
	claim := harness.NewVolume(t, d, harness.KindRequests(harness.Writer)["xfs"])
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)

	// Not at its very begin, where the detection of the filesystem would fail instead of
	// its mount.
	name, err := filepath.Rel(served.Path, harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)
	served.Inject(t, faults.Fault{Name: name, Ops: faults.Reads, Offset: harness.MiB, Errno: unix.EIO})
	forgetCached(t, harness.ImageOf(d, claim.VolumeID))

	require.NoError(t, d.Attach(t.Context(), claim))
	require.Error(t, d.Stage(t.Context(), claim), "NodeStageVolume of an image that cannot be read")
	harness.AwaitReason(t, d, claim.VolumeID, health.IOErrors)

	served.Inject(t)
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })
	harness.AwaitReason(t, d, claim.VolumeID, "")
}

// forgetCached has what is read next come from the file's disk.
func forgetCached(t *testing.T, path string) {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
}

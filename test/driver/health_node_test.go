package driver_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// abnormal requires that NodeGetVolumeStats answers for an unhealthy volume: with a
// usage, and with a condition that names the reason.
func abnormal(t *testing.T, d *harness.Driver, claim *csiclient.Publication, path string, reason health.Reason) {
	t.Helper()

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: path})
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetUsage())

	sick, message := conditionIn(t, answer)
	require.True(t, sick, message)
	require.Contains(t, message, string(reason))
}

// conditionIn decodes the VolumeCondition that CSI had until v1.12.
func conditionIn(t *testing.T, answer *csi.NodeGetVolumeStatsResponse) (sick bool, message string) {
	t.Helper()

	number, kind, size := protowire.ConsumeTag(answer.ProtoReflect().GetUnknown())
	require.Equal(t, protowire.Number(2), number)
	require.Equal(t, protowire.BytesType, kind)

	condition, _ := protowire.ConsumeBytes(answer.ProtoReflect().GetUnknown()[size:])

	for len(condition) > 0 {
		number, kind, size := protowire.ConsumeTag(condition)
		require.Positive(t, size)

		condition = condition[size:]

		if number == 1 {
			value, _ := protowire.ConsumeVarint(condition)
			sick = value != 0
		} else {
			text, _ := protowire.ConsumeString(condition)
			message = text
		}

		size = protowire.ConsumeFieldValue(number, kind, condition)
		require.Positive(t, size)

		condition = condition[size:]
	}

	return sick, message
}

// TestAGrowthThatFailsIsNoForeignWrite has the driver give back what it could
// reserve of a growth, by which it touches the image without changing its size.
func TestAGrowthThatFailsIsNoForeignWrite(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	var heard alarms

	pool := harness.PlainPool(t, 1024*mib)
	d := harness.Start(t, func(c *driver.Config) {
		heard = newAlarms(c.Log.Handler())
		c.Log, c.Overcommit, c.Pools["default"] = slog.New(heard), 1000, pool
		c.HealthRelistPeriod, c.HealthEventedRelistPeriod = 10*time.Millisecond, 10*time.Millisecond
	})
	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		CapacityRange: required(16 * mib), Parameters: map[string]string{"provisioning": "thick"},
	})
	bringUp(t, d, claim)

	other := newVolume(t, d, &csi.CreateVolumeRequest{Name: "other", CapacityRange: required(16 * mib)})
	bringUp(t, d, other)

	for range 40 {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: required(4096 * mib), VolumeCapability: claim.Capability,
		})
		fails(t, err, codes.ResourceExhausted)
	}

	// The kernel reports one after the other.
	require.NoError(t, writeThrough(imageOf(d, other.VolumeID)))
	require.Eventually(t, func() bool { return heard.of(other.VolumeID, health.FilesystemErrors) }, soon, 10*time.Millisecond)
	require.False(t, heard.of(claim.VolumeID, health.FilesystemErrors), heard.all())
}

// stopped has a filesystem give up, as it does by itself when its disk fails.
func stopped(t *testing.T, path string) {
	t.Helper()

	root, err := os.Open(path)
	require.NoError(t, err)

	defer root.Close()

	require.NoError(t, shutDown(root))
}

// TestStatsOfTheSick asks for the usage of volumes that can't be asked any more.
func TestStatsOfTheSick(t *testing.T) {
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
			unmount(t, claim.TargetPath)
		}},
		{"device detached", "block", health.DeviceMissing, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			attached := devicesOf(t, d, claim.VolumeID)
			require.Len(t, attached, 1)
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
			claim := newVolume(t, d, observedKinds()[test.kind])
			bringUp(t, d, claim)

			healthy := usageAt(t, d, claim)
			test.strike(t, d, claim)

			require.Eventually(t, func() bool { return slices.Contains(reasonsOf(t, d, claim.VolumeID), test.reason) }, soon, 10*time.Millisecond)
			abnormal(t, d, claim, claim.TargetPath, test.reason)

			sick := usageAt(t, d, claim)
			require.Equal(t, healthy[0].GetTotal(), sick[0].GetTotal(), "%v", sick)
		})
	}
}

func often10(c *driver.Config) {
	c.HealthRelistPeriod, c.HealthEventedRelistPeriod = 10*time.Millisecond, 10*time.Millisecond
}

func usageAt(t *testing.T, d *harness.Driver, claim *csiclient.Publication) []*csi.VolumeUsage {
	t.Helper()

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath,
	})
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetUsage())

	return answer.GetUsage()
}

// reasonsOf are what the node has to say about a volume.
func reasonsOf(t *testing.T, d *harness.Driver, id string) []health.Reason {
	t.Helper()

	answer, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	require.NoError(t, err)
	require.Equal(t, id, answer.GetVolumeHealth().GetVolumeId())

	var reasons []health.Reason
	for _, entry := range answer.GetVolumeHealth().GetHealthStatuses() {
		reasons = append(reasons, health.Reason(entry.GetReason()))
	}

	return reasons
}

func TestNodeGetVolumeHealth(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		ask := func(request *csi.NodeGetVolumeHealthRequest) error {
			_, err := d.NodeGetVolumeHealth(t.Context(), request)

			return err
		}

		// It is about the volume, wherever that is.
		for _, paths := range [][2]string{{}, {claim.TargetPath, claim.StagingPath}, {"/nowhere", "/nowhere else"}} {
			require.NoError(t, ask(&csi.NodeGetVolumeHealthRequest{
				VolumeId: claim.VolumeID, VolumePublishPath: paths[0], StagingTargetPath: paths[1],
			}))
			require.Empty(t, reasonsOf(t, d, claim.VolumeID))
		}

		fails(t, ask(&csi.NodeGetVolumeHealthRequest{}), codes.InvalidArgument, "volume_id")
		fails(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: "../etc"}), codes.InvalidArgument, "volume_id")
		fails(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: unknownVolume}), codes.NotFound, unknownVolume)
		fails(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: "no-uuid"}), codes.NotFound, "no-uuid")
		fails(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID, VolumePublishPath: "relative"}),
			codes.InvalidArgument, "volume_publish_path")
		fails(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID, StagingTargetPath: "relative"}),
			codes.InvalidArgument, "staging_target_path")

		// Before the first staging, between two, and after the last.
		takeDown(t, d, claim)
		require.Empty(t, reasonsOf(t, d, claim.VolumeID))
		d.Restart(t)
		require.Empty(t, reasonsOf(t, d, claim.VolumeID))
		deleteVolume(t, d, claim.VolumeID)
		fails(t, ask(&csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID}), codes.NotFound, claim.VolumeID)
	})
}

// TestAnInlineVolumeHasTheNameTheCOGaveIt asks for its health by that name.
func TestAnInlineVolumeHasTheNameTheCOGaveIt(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, often10)
	claim := inlineClaim(t, d, small())
	require.NoError(t, d.Publish(t.Context(), claim))
	require.Empty(t, reasonsOf(t, d, claim.VolumeID))

	images := contents(t, d)
	require.Len(t, images, 1)

	image := filepath.Join(d.Pool(), "ephemeral", "images", images[0])
	require.NoError(t, os.Rename(image, image+".away"))
	require.Eventually(t, func() bool {
		return slices.Equal(reasonsOf(t, d, claim.VolumeID), []health.Reason{health.BackingFileMissing})
	}, soon, 10*time.Millisecond)
	abnormal(t, d, claim, claim.TargetPath, health.BackingFileMissing)

	require.NoError(t, os.Rename(image+".away", image))
	require.Eventually(t, func() bool { return len(reasonsOf(t, d, claim.VolumeID)) == 0 }, soon, 10*time.Millisecond)

	require.NoError(t, d.Unpublish(t.Context(), claim))

	_, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID})
	fails(t, err, codes.NotFound, claim.VolumeID)
}

// TestAnImageByAnotherName is the volume still while it is in use.
func TestAnImageByAnotherName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, often10)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	bringUp(t, d, claim)

	image := imageOf(d, claim.VolumeID)
	require.NoError(t, os.Rename(image, image+".away"))
	require.Eventually(t, func() bool {
		return slices.Equal(reasonsOf(t, d, claim.VolumeID), []health.Reason{health.BackingFileMissing})
	}, soon, 10*time.Millisecond)
	require.NotEmpty(t, usageAt(t, d, claim))

	// It can be taken down, too, and staged once it has its name again.
	takeDown(t, d, claim)
	require.NoError(t, os.Rename(image+".away", image))
	bringUp(t, d, claim)
	require.Eventually(t, func() bool { return len(reasonsOf(t, d, claim.VolumeID)) == 0 }, soon, 10*time.Millisecond)
}

// TestHealthOfWhatCouldNotBeStaged reports a disk that fails so early that the
// volume never gets into use.
func TestHealthOfWhatCouldNotBeStaged(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, poolAt("default", filepath.Join(served.Path, "pool")))
	claim := newVolume(t, d, observedKinds()["xfs"])
	bringUp(t, d, claim)
	takeDown(t, d, claim)

	// Not at its very begin, where the detection of the filesystem would fail instead of
	// its mount.
	name, err := filepath.Rel(served.Path, imageOf(d, claim.VolumeID))
	require.NoError(t, err)
	served.Inject(t, faults.Fault{Name: name, Ops: faults.Reads, Offset: mib, Errno: unix.EIO})
	forgetCached(t, imageOf(d, claim.VolumeID))

	require.NoError(t, d.Attach(t.Context(), claim))
	require.Error(t, d.Stage(t.Context(), claim), "NodeStageVolume of an image that cannot be read")
	require.Eventually(t, func() bool {
		return slices.Contains(reasonsOf(t, d, claim.VolumeID), health.IOErrors)
	}, soon, 10*time.Millisecond)

	served.Inject(t)
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))
	t.Cleanup(func() { takeDown(t, d, claim) })
	require.Eventually(t, func() bool { return len(reasonsOf(t, d, claim.VolumeID)) == 0 }, soon, 10*time.Millisecond)
}

// forgetCached has what is read next come from the file's disk.
func forgetCached(t *testing.T, path string) {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
}

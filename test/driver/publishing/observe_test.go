package publishing_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestTargetUnmountedBehindTheDriver(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		harness.Unmount(t, claim.TargetPath)
		harness.RequireAbnormal(t, d, claim, claim.TargetPath, health.VolumeUnmounted)

		// It is attached nowhere any more, so even ReadWriteOncePod may go elsewhere.
		second := harness.AnotherTarget(claim, "second")
		require.NoError(t, d.Publish(t.Context(), second))
		harness.RequireBlock(t, second)
		require.NoError(t, d.Unpublish(t.Context(), second))

		require.NoError(t, d.Publish(t.Context(), claim))
		harness.RequireBlock(t, claim)
		require.NoError(t, harness.VolumeStats(t, d, claim, claim.TargetPath))

		harness.Unmount(t, claim.TargetPath)
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)

		require.NoError(t, d.Publish(t.Context(), claim))
		harness.Unmount(t, claim.TargetPath)
		require.NoError(t, d.Unstage(t.Context(), claim))
	})
}

func TestStagingUnmountedBehindTheDriver(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		if claim.Capability.GetBlock() != nil {
			t.Skip("a block volume is not mounted at its staging path")
		}

		harness.Unmount(t, claim.StagingPath)
		harness.RequireAbnormal(t, d, claim, claim.StagingPath, health.VolumeUnmounted)

		second := harness.AnotherTarget(claim, "second")
		harness.RequireCode(t, d.Publish(t.Context(), second), codes.FailedPrecondition, "NodeStageVolume")

		// The publication goes on, and the next staging is of the same device.
		harness.RequireBlock(t, claim)
		require.NoError(t, d.Stage(t.Context(), claim))
		harness.RequireBlock(t, claim)
		require.NoError(t, d.Publish(t.Context(), claim))
		require.LessOrEqual(t, len(harness.DevicesOf(t, d, claim.VolumeID)), 1, "want: the volume has one device at most")

		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		harness.RequireBlock(t, claim)

		harness.Unmount(t, claim.StagingPath)
		harness.Unmount(t, claim.TargetPath)
		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		harness.RequireBlock(t, claim)
	})
}

// reboot takes away all that a reboot does, behind a driver that was killed:
// its state and the pool stay.
func reboot(t *testing.T, d *harness.Driver) {
	t.Helper()
	rebootWith(t, d, func() {})
}

// rebootWith is reboot, with what happens before the driver starts again.
func rebootWith(t *testing.T, d *harness.Driver, meanwhile func()) {
	t.Helper()
	d.Stop()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.Config.KubeletDir))
	require.NoError(t, err)

	for _, each := range slices.Backward(mounts) {
		harness.Unmount(t, each.Mountpoint)
	}

	loops := loop.NewLoops(loop.LoopsOptions{})
	attached, err := loops.Attachments()
	require.NoError(t, err)

	for _, each := range attached {
		if filepath.Dir(each.BackingPath) == filepath.Join(d.Pool(), "images") {
			require.NoError(t, loops.Detach(t.Context(), each.Number))
		}
	}

	meanwhile()
	d.Restart(t)
}

func TestVolumesAreStagedAgainAfterAReboot(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		reboot(t, d)

		// What was published is not, and the path that was made for it is gone.
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)
		harness.RequireCode(t, harness.VolumeStats(t, d, claim, claim.StagingPath), codes.NotFound)
		harness.RequireCode(t, d.Publish(t.Context(), harness.AnotherTarget(claim, "second")), codes.FailedPrecondition, "NodeStageVolume")

		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		harness.RequireBlock(t, claim)

		// A volume whose pod does not come back can go.
		reboot(t, d)
		require.NoError(t, d.Detach(t.Context(), claim))
		harness.DeleteVolume(t, d, claim.VolumeID)
		require.Empty(t, harness.ListAll(t, d), "want: no volume is left")
	})
}

func TestTargetMadeByTheCOIsUsed(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		second := harness.AnotherTarget(claim, "made-by-the-co")
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)

		if claim.Capability.GetBlock() != nil {
			harness.WriteFile(t, second.TargetPath, "")
		} else {
			require.NoError(t, os.Mkdir(second.TargetPath, 0o711))
		}

		before, err := os.Stat(second.TargetPath)
		require.NoError(t, err)
		require.NoError(t, d.Publish(t.Context(), second))
		harness.RequireBlock(t, second)
		d.Restart(t)
		require.NoError(t, d.Unpublish(t.Context(), second))

		after, err := os.Stat(second.TargetPath)
		require.NoError(t, err)
		require.Equal(t, before.Mode(), after.Mode(), "want: the directory of the CO keeps its mode")
		require.True(t, os.SameFile(before, after), "want: the file is the one that was there before")
	})
}

// TestTargetOfAnotherTypeIsRefused: a file where a directory must be, and the other way round.
func TestTargetOfAnotherTypeIsRefused(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		require.NoError(t, d.Unpublish(t.Context(), claim))

		if claim.Capability.GetBlock() != nil {
			require.NoError(t, os.Mkdir(claim.TargetPath, 0o700))
		} else {
			harness.WriteFile(t, claim.TargetPath, "another's")
		}

		before := harness.Tree(t, claim.TargetPath)
		harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition, claim.TargetPath)
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.Equal(t, before, harness.Tree(t, claim.TargetPath))
		require.NoError(t, os.Remove(claim.TargetPath))
	})
}

// TestUsersFileInTheTargetIsKept: a pod's log shipper leaves it when the volume was unmounted under
// it.
func TestUsersFileInTheTargetIsKept(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		path := claim.TargetPath
		if claim.Capability.GetBlock() == nil {
			path = filepath.Join(path, "mine")
		}

		for _, undo := range []func() error{
			func() error { return d.Unpublish(t.Context(), claim) },
			func() error { d.Restart(t); return nil },
			func() error { return d.Publish(t.Context(), harness.AnotherTarget(claim, "second")) },
		} {
			harness.Unmount(t, claim.TargetPath)
			harness.WriteFile(t, path, "not yours")
			require.NoError(t, undo())
			harness.RequireFile(t, path, "not yours")

			// Published over it and taken away again, it is there still.
			require.NoError(t, d.Unpublish(t.Context(), harness.AnotherTarget(claim, "second")))
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.RequireBlock(t, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireFile(t, path, "not yours")

			require.NoError(t, os.RemoveAll(claim.TargetPath))
			require.NoError(t, d.Publish(t.Context(), claim))
		}

		require.NoError(t, d.Unpublish(t.Context(), claim))
	})
}

func TestAForeignMountAtTheTargetStays(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		ctx := t.Context()
		foreign := func(path string) {
			source := t.TempDir()
			harness.WriteFile(t, filepath.Join(source, "foreign"), "not yours")

			if claim.Capability.GetBlock() != nil && path == claim.TargetPath {
				source = filepath.Join(source, "foreign")
			}

			require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
		}
		survives := func() {
			if claim.Capability.GetBlock() == nil {
				harness.RequireFile(t, filepath.Join(claim.TargetPath, "foreign"), "not yours")
			} else {
				harness.RequireFile(t, claim.TargetPath, "not yours")
			}
		}

		// On top of the publication.
		foreign(claim.TargetPath)
		survives()
		harness.RequireAbnormal(t, d, claim, claim.TargetPath, health.VolumeUnmounted)
		harness.RequireCode(t, d.Unpublish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		harness.RequireCode(t, d.Publish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		harness.RequireCode(t, d.Unstage(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		d.Restart(t)
		harness.RequireCode(t, d.Unpublish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		survives()
		harness.Unmount(t, claim.TargetPath)
		require.NoError(t, d.Publish(ctx, claim))
		harness.RequireBlock(t, claim)

		// Where nothing of ours is.
		require.NoError(t, d.Unpublish(ctx, claim))
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)

		if claim.Capability.GetBlock() != nil {
			harness.WriteFile(t, claim.TargetPath, "")
		} else {
			require.NoError(t, os.Mkdir(claim.TargetPath, 0o700))
		}

		foreign(claim.TargetPath)
		harness.RequireCode(t, d.Publish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		require.NoError(t, d.Unpublish(ctx, claim))
		d.Restart(t)
		survives()
		harness.Unmount(t, claim.TargetPath)

		if claim.Capability.GetBlock() != nil {
			return
		}

		// At the staging path.
		require.NoError(t, d.Unstage(ctx, claim))
		foreign(claim.StagingPath)
		harness.RequireCode(t, d.Stage(ctx, claim), codes.FailedPrecondition, claim.StagingPath)
		require.NoError(t, d.Unstage(ctx, claim))
		harness.RequireFile(t, filepath.Join(claim.StagingPath, "foreign"), "not yours")
		harness.Unmount(t, claim.StagingPath)
	})
}

func TestAnotherVolumeAtTheTargetIsRefused(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		ctx := t.Context()
		request := harness.KindRequests(harness.Writer)[filepath.Base(t.Name())]
		request.Name = "another"
		other := harness.NewVolume(t, d, request)
		harness.AttachAndStage(t, d, other)

		wrong := *other
		wrong.TargetPath = claim.TargetPath
		harness.RequireCode(t, harness.VolumeStats(t, d, other, claim.TargetPath), codes.NotFound)
		harness.RequireCode(t, d.Publish(ctx, &wrong), codes.FailedPrecondition, claim.TargetPath)
		require.NoError(t, d.Unpublish(ctx, &wrong))
		harness.RequireBlock(t, claim)

		wrong.StagingPath = claim.StagingPath
		require.NoError(t, d.Unstage(ctx, &wrong))
		require.NoError(t, d.Unstage(ctx, other))

		if claim.Capability.GetBlock() == nil {
			harness.RequireCode(t, d.Stage(ctx, &wrong), codes.FailedPrecondition, claim.StagingPath)
		}

		harness.RequireBlock(t, claim)
		require.NoError(t, harness.VolumeStats(t, d, claim, claim.TargetPath))
	})
}

// TestStatsAreOfTheVolume: they have its size.
func TestStatsAreOfTheVolume(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		for _, path := range []string{
			claim.TargetPath + "-not", filepath.Dir(claim.TargetPath), d.Config.KubeletDir, "/",
			"relative", filepath.Join(claim.TargetPath, "data"), filepath.Join(d.Pool(), "directories", claim.VolumeID),
		} {
			harness.RequireCode(t, harness.VolumeStats(t, d, claim, path), codes.NotFound)
		}

		other := *claim
		other.VolumeID = harness.UnknownVolume
		harness.RequireCode(t, harness.VolumeStats(t, d, &other, claim.TargetPath), codes.NotFound, harness.UnknownVolume)

		answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath,
		})
		require.NoError(t, err)

		size := harness.KindRequests(harness.Writer)[filepath.Base(t.Name())].GetCapacityRange().GetRequiredBytes()
		bytes := answer.GetUsage()[0]
		require.Equal(t, csi.VolumeUsage_BYTES, bytes.GetUnit(), "want: the first usage is in bytes")

		switch filepath.Base(t.Name()) {
		case "block":
			require.Equal(t, size, bytes.GetTotal(), "want: a raw volume is as large as its device")
			require.Len(t, answer.GetUsage(), 1, "want: a raw volume has no inodes")
		case "directory":
			require.GreaterOrEqual(t, bytes.GetUsed(), int64(4096), "want: an empty directory uses its own block")
			require.Less(t, bytes.GetUsed(), int64(harness.MiB), "want: an empty directory uses no more")
		default:
			require.LessOrEqual(t, bytes.GetTotal(), size, "want: the filesystem is not larger than its volume")
			require.Greater(t, bytes.GetTotal(), size/2, "want: the filesystem has most of its volume")
			require.Positive(t, bytes.GetUsed(), "want: an empty filesystem uses bytes")
			require.LessOrEqual(t, bytes.GetUsed()+bytes.GetAvailable(), bytes.GetTotal(), "want: used and available bytes are within the total")
		}
	})
}

// TestMissingImageIsRefused: the pool's object of a volume is deleted.
func TestMissingImageIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)
	require.NoError(t, os.Remove(harness.ImageOf(d, claim.VolumeID)))

	// In use it works until the end, and then ends in good order.
	harness.WriteBlock(t, claim)
	d.Restart(t)
	harness.RequireBlock(t, claim)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))

	harness.RequireCode(t, d.Stage(t.Context(), claim), codes.NotFound, claim.VolumeID)
	require.NoError(t, d.Detach(t.Context(), claim))
	harness.DeleteVolume(t, d, claim.VolumeID)
}

// TestStatsOfACoveredMount: the usage of another filesystem is not the volume's.
func TestStatsOfACoveredMount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)
	require.NoError(t, unix.Mount("tmpfs", claim.TargetPath, "tmpfs", 0, "size=8M"))

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
	require.NoError(t, unix.Unmount(claim.TargetPath, 0))

	if err == nil {
		require.NotEqual(t, int64(8*harness.MiB), answer.GetUsage()[0].GetTotal(), "bytes in all, which are those of the tmpfs over the volume")
	}
}

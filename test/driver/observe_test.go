package driver_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// observedKinds are those with a way of their own to be found again.
func observedKinds() map[string]*csi.CreateVolumeRequest { return readOnlyKinds(writer) }

// eachKind runs test for a volume of each kind that is published.
func eachKind(t *testing.T, test func(t *testing.T, d *harness.Driver, claim *csiclient.Publication)) {
	t.Helper()
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range observedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, request)
			bringUp(t, d, claim)
			writeBlock(t, claim)
			test(t, d, claim)
		})
	}
}

func writeBlock(t *testing.T, claim *csiclient.Publication) {
	t.Helper()

	block := make([]byte, 4096)
	copy(block, "precious")

	file, err := os.OpenFile(dataPath(claim), os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = file.Write(block)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

func requireBlock(t *testing.T, claim *csiclient.Publication) {
	t.Helper()
	require.Equal(t, "precious", string(readBlock(t, dataPath(claim))[:len("precious")]))
}

// unmount waits for the driver, which may just be probing what is mounted there.
func unmount(t *testing.T, path string) {
	t.Helper()

	var err error

	require.Eventually(t, func() bool {
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW)

		return !errors.Is(err, unix.EBUSY)
	}, soon, time.Millisecond)
	require.NoError(t, err)
}

// stats is NodeGetVolumeStats' answer for a path.
func stats(t *testing.T, d *harness.Driver, claim *csiclient.Publication, path string) error {
	t.Helper()

	_, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: path})

	return err
}

func TestTargetUnmountedBehindTheDriver(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		unmount(t, claim.TargetPath)
		abnormal(t, d, claim, claim.TargetPath, health.VolumeUnmounted)

		// It is attached nowhere any more, so even ReadWriteOncePod may go elsewhere.
		second := another(claim, "second")
		require.NoError(t, d.Publish(t.Context(), second))
		requireBlock(t, second)
		require.NoError(t, d.Unpublish(t.Context(), second))

		require.NoError(t, d.Publish(t.Context(), claim))
		requireBlock(t, claim)
		require.NoError(t, stats(t, d, claim, claim.TargetPath))

		unmount(t, claim.TargetPath)
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)

		require.NoError(t, d.Publish(t.Context(), claim))
		unmount(t, claim.TargetPath)
		require.NoError(t, d.Unstage(t.Context(), claim))
	})
}

func TestStagingUnmountedBehindTheDriver(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		if claim.Capability.GetBlock() != nil {
			t.Skip("a block volume is not mounted at its staging path")
		}

		unmount(t, claim.StagingPath)
		abnormal(t, d, claim, claim.StagingPath, health.VolumeUnmounted)

		second := another(claim, "second")
		fails(t, d.Publish(t.Context(), second), codes.FailedPrecondition, "NodeStageVolume")

		// The publication goes on, and the next staging is of the same device.
		requireBlock(t, claim)
		require.NoError(t, d.Stage(t.Context(), claim))
		requireBlock(t, claim)
		require.NoError(t, d.Publish(t.Context(), claim))
		require.LessOrEqual(t, len(devicesOf(t, d, claim.VolumeID)), 1)

		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		requireBlock(t, claim)

		unmount(t, claim.StagingPath)
		unmount(t, claim.TargetPath)
		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		requireBlock(t, claim)
	})
}

// reboot takes away all that a reboot does, behind a driver that was killed:
// its state and the pool stay.
func reboot(t *testing.T, d *harness.Driver) {
	t.Helper()
	d.Stop()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.Config.KubeletDir))
	require.NoError(t, err)

	for _, each := range slices.Backward(mounts) {
		unmount(t, each.Mountpoint)
	}

	loops := loop.NewLoops(loop.LoopsOptions{})
	attached, err := loops.Attachments()
	require.NoError(t, err)

	for _, each := range attached {
		if filepath.Dir(each.BackingPath) == filepath.Join(d.Pool(), "images") {
			require.NoError(t, loops.Detach(t.Context(), each.Number))
		}
	}

	d.Restart(t)
}

func TestReboot(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		reboot(t, d)

		// What was published is not, and the path that was made for it is gone.
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)
		fails(t, stats(t, d, claim, claim.StagingPath), codes.NotFound)
		fails(t, d.Publish(t.Context(), another(claim, "second")), codes.FailedPrecondition, "NodeStageVolume")

		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		requireBlock(t, claim)

		// A volume whose pod does not come back can go.
		reboot(t, d)
		require.NoError(t, d.Detach(t.Context(), claim))
		deleteVolume(t, d, claim.VolumeID)
		require.Empty(t, listAll(t, d))
	})
}

func TestTargetThatTheCOMade(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		second := another(claim, "made-by-the-co")
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)

		if claim.Capability.GetBlock() != nil {
			writeFile(t, second.TargetPath, "")
		} else {
			require.NoError(t, os.Mkdir(second.TargetPath, 0o711))
		}

		before, err := os.Stat(second.TargetPath)
		require.NoError(t, err)
		require.NoError(t, d.Publish(t.Context(), second))
		requireBlock(t, second)
		d.Restart(t)
		require.NoError(t, d.Unpublish(t.Context(), second))

		after, err := os.Stat(second.TargetPath)
		require.NoError(t, err)
		require.Equal(t, before.Mode(), after.Mode())
		require.True(t, os.SameFile(before, after), "want: the file is the one that was there before")
	})
}

// TestTargetOfAnotherType finds a file where a directory must be, and the other
// way round.
func TestTargetOfAnotherType(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		require.NoError(t, d.Unpublish(t.Context(), claim))

		if claim.Capability.GetBlock() != nil {
			require.NoError(t, os.Mkdir(claim.TargetPath, 0o700))
		} else {
			writeFile(t, claim.TargetPath, "another's")
		}

		before := tree(t, claim.TargetPath)
		fails(t, d.Publish(t.Context(), claim), codes.FailedPrecondition, claim.TargetPath)
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.Equal(t, before, tree(t, claim.TargetPath))
		require.NoError(t, os.Remove(claim.TargetPath))
	})
}

// TestUsersFileInTheTarget is what a pod's log shipper leaves when the volume
// was unmounted under it.
func TestUsersFileInTheTarget(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		path := claim.TargetPath
		if claim.Capability.GetBlock() == nil {
			path = filepath.Join(path, "mine")
		}

		for _, undo := range []func() error{
			func() error { return d.Unpublish(t.Context(), claim) },
			func() error { d.Restart(t); return nil },
			func() error { return d.Publish(t.Context(), another(claim, "second")) },
		} {
			unmount(t, claim.TargetPath)
			writeFile(t, path, "not yours")
			require.NoError(t, undo())
			fileHolds(t, path, "not yours")

			// Published over it and taken away again, it is there still.
			require.NoError(t, d.Unpublish(t.Context(), another(claim, "second")))
			require.NoError(t, d.Publish(t.Context(), claim))
			requireBlock(t, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			fileHolds(t, path, "not yours")

			require.NoError(t, os.RemoveAll(claim.TargetPath))
			require.NoError(t, d.Publish(t.Context(), claim))
		}

		require.NoError(t, d.Unpublish(t.Context(), claim))
	})
}

func TestForeignMountAtTheTarget(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		ctx := t.Context()
		foreign := func(path string) {
			source := t.TempDir()
			writeFile(t, filepath.Join(source, "foreign"), "not yours")

			if claim.Capability.GetBlock() != nil && path == claim.TargetPath {
				source = filepath.Join(source, "foreign")
			}

			require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
		}
		survives := func() {
			if claim.Capability.GetBlock() == nil {
				fileHolds(t, filepath.Join(claim.TargetPath, "foreign"), "not yours")
			} else {
				fileHolds(t, claim.TargetPath, "not yours")
			}
		}

		// On top of the publication.
		foreign(claim.TargetPath)
		survives()
		abnormal(t, d, claim, claim.TargetPath, health.VolumeUnmounted)
		fails(t, d.Unpublish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		fails(t, d.Publish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		fails(t, d.Unstage(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		d.Restart(t)
		fails(t, d.Unpublish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		survives()
		unmount(t, claim.TargetPath)
		require.NoError(t, d.Publish(ctx, claim))
		requireBlock(t, claim)

		// Where nothing of ours is.
		require.NoError(t, d.Unpublish(ctx, claim))
		require.NoDirExists(t, claim.TargetPath)
		require.NoFileExists(t, claim.TargetPath)

		if claim.Capability.GetBlock() != nil {
			writeFile(t, claim.TargetPath, "")
		} else {
			require.NoError(t, os.Mkdir(claim.TargetPath, 0o700))
		}

		foreign(claim.TargetPath)
		fails(t, d.Publish(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
		require.NoError(t, d.Unpublish(ctx, claim))
		d.Restart(t)
		survives()
		unmount(t, claim.TargetPath)

		if claim.Capability.GetBlock() != nil {
			return
		}

		// At the staging path.
		require.NoError(t, d.Unstage(ctx, claim))
		foreign(claim.StagingPath)
		fails(t, d.Stage(ctx, claim), codes.FailedPrecondition, claim.StagingPath)
		require.NoError(t, d.Unstage(ctx, claim))
		fileHolds(t, filepath.Join(claim.StagingPath, "foreign"), "not yours")
		unmount(t, claim.StagingPath)
	})
}

// TestAnotherVolumeAtTheTarget takes one volume's target for another.
func TestAnotherVolumeAtTheTarget(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		ctx := t.Context()
		request := observedKinds()[filepath.Base(t.Name())]
		request.Name = "another"
		other := newVolume(t, d, request)
		attachAndStage(t, d, other)

		wrong := *other
		wrong.TargetPath = claim.TargetPath
		fails(t, stats(t, d, other, claim.TargetPath), codes.NotFound)
		fails(t, d.Publish(ctx, &wrong), codes.FailedPrecondition, claim.TargetPath)
		require.NoError(t, d.Unpublish(ctx, &wrong))
		requireBlock(t, claim)

		wrong.StagingPath = claim.StagingPath
		require.NoError(t, d.Unstage(ctx, &wrong))
		require.NoError(t, d.Unstage(ctx, other))

		if claim.Capability.GetBlock() == nil {
			fails(t, d.Stage(ctx, &wrong), codes.FailedPrecondition, claim.StagingPath)
		}

		requireBlock(t, claim)
		require.NoError(t, stats(t, d, claim, claim.TargetPath))
	})
}

// TestStatsAreTheVolumes compares with what the volume's size is.
func TestStatsAreTheVolumes(t *testing.T) {
	eachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		for _, path := range []string{
			claim.TargetPath + "-not", filepath.Dir(claim.TargetPath), d.Config.KubeletDir, "/", "relative",
			filepath.Join(claim.TargetPath, "data"), filepath.Join(d.Pool(), "directories", claim.VolumeID),
		} {
			fails(t, stats(t, d, claim, path), codes.NotFound)
		}

		other := *claim
		other.VolumeID = unknownVolume
		fails(t, stats(t, d, &other, claim.TargetPath), codes.NotFound, unknownVolume)

		answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath,
		})
		require.NoError(t, err)

		size := observedKinds()[filepath.Base(t.Name())].GetCapacityRange().GetRequiredBytes()
		bytes := answer.GetUsage()[0]
		require.Equal(t, csi.VolumeUsage_BYTES, bytes.GetUnit())

		switch filepath.Base(t.Name()) {
		case "block":
			require.Equal(t, size, bytes.GetTotal())
			require.Len(t, answer.GetUsage(), 1)
		case "directory":
			require.GreaterOrEqual(t, bytes.GetUsed(), int64(4096))
			require.Less(t, bytes.GetUsed(), int64(mib))
		default:
			require.LessOrEqual(t, bytes.GetTotal(), size)
			require.Greater(t, bytes.GetTotal(), size/2)
			require.Positive(t, bytes.GetUsed())
			require.LessOrEqual(t, bytes.GetUsed()+bytes.GetAvailable(), bytes.GetTotal())
		}
	})
}

// TestImageGoneBehindTheDriver deletes what the pool holds of a volume.
func TestImageGoneBehindTheDriver(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	bringUp(t, d, claim)
	require.NoError(t, os.Remove(imageOf(d, claim.VolumeID)))

	// In use it works until the end, and then ends in good order.
	writeBlock(t, claim)
	d.Restart(t)
	requireBlock(t, claim)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))

	fails(t, d.Stage(t.Context(), claim), codes.NotFound, claim.VolumeID)
	require.NoError(t, d.Detach(t.Context(), claim))
	deleteVolume(t, d, claim.VolumeID)
}

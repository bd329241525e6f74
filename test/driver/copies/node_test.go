package copies_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// cloneOf makes a volume of another one.
func cloneOf(t *testing.T, d *harness.Driver, source *csiclient.Publication, name string, capability *csi.VolumeCapability,
	bytes int64,
) *csiclient.Publication {
	t.Helper()

	like := &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{capability}}

	return copyOf(t, d, like, name, harness.FromVolume(source.VolumeID), harness.RequiredBytes(bytes))
}

// uuidOf is what the disk says, of a mounted filesystem too.
func uuidOf(t *testing.T, d *harness.Driver, claim *csiclient.Publication) string {
	t.Helper()

	image, err := os.Open(harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)

	defer image.Close()

	found, err := filesystem.UUID(image)
	require.NoError(t, err)

	return found
}

// sizeOf is how large the filesystem says it is.
func sizeOf(t *testing.T, claim *csiclient.Publication) int64 {
	t.Helper()

	var stat unix.Statfs_t

	require.NoError(t, unix.Statfs(claim.StagingPath, &stat))

	return int64(stat.Blocks) * stat.Bsize
}

// TestCopiesAreUsedSideBySide: a volume is staged, its clone, and the clone's clone, which are all
// larger than the one before, while all of them are in use.
func TestCopiesAreUsedSideBySide(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, reflinking(t))
			size := harness.SizeFor(fsType)
			capability := csiclient.MountCapability(harness.Writer, fsType)
			source := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: harness.RequiredBytes(size),
			})
			harness.BringUp(t, d, source)

			sum, former := fillPayload(t, source), uuidOf(t, d, source)
			all := []*csiclient.Publication{source}

			for _, name := range []string{"first", "second"} {
				latest := all[len(all)-1]
				size += 128 * harness.MiB
				clone := cloneOf(t, d, latest, name, capability, size)
				harness.BringUp(t, d, clone)
				require.Equal(t, clone.VolumeID, uuidOf(t, d, clone))
				require.Equal(t, sum, payload(t, clone))
				require.Greater(t, sizeOf(t, clone), sizeOf(t, latest)+100*harness.MiB, "want: the larger clone has the larger filesystem")

				all = append(all, clone)
			}

			sibling := cloneOf(t, d, source, "sibling", capability, harness.SizeFor(fsType))
			harness.BringUp(t, d, sibling)

			all = append(all, sibling)
			for _, claim := range all {
				harness.WriteFile(t, filepath.Join(claim.TargetPath, "own"), claim.VolumeID)
			}

			// Again, from the beginning and over what is there.
			require.NoError(t, d.Stage(t.Context(), sibling))
			harness.TakeDown(t, d, sibling)
			harness.BringUp(t, d, sibling)

			for _, claim := range all {
				harness.RequireFile(t, filepath.Join(claim.TargetPath, "own"), claim.VolumeID)
				require.Equal(t, sum, payload(t, claim))
			}

			require.Equal(t, former, uuidOf(t, d, source))
		})
	}
}

// TestReadOnlyCopiesAreCompleteBeforeTheirUse: they are as large as they were asked to be, and have had
// their log replayed.
func TestReadOnlyCopiesAreCompleteBeforeTheirUse(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, reflinking(t), harness.SharedPool)
			size := harness.SizeFor(fsType)
			source := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, fsType)}, CapacityRange: harness.RequiredBytes(size),
			})
			harness.BringUp(t, d, source)

			sum := fillPayload(t, source)

			for name, capability := range map[string]*csi.VolumeCapability{
				"reader":  csiclient.MountCapability(harness.ReaderOnly, fsType),
				"readers": csiclient.MountCapability(harness.NodesRead, fsType),
				"ro":      csiclient.MountCapability(harness.Writer, fsType, "ro"),
			} {
				clone := cloneOf(t, d, source, name, capability, size+128*harness.MiB)
				harness.BringUp(t, d, clone)
				require.Equal(t, clone.VolumeID, uuidOf(t, d, clone), name)
				require.Equal(t, sum, payload(t, clone), name)
				require.Greater(t, sizeOf(t, clone), sizeOf(t, source)+100*harness.MiB, name)
				require.ErrorIs(t, os.WriteFile(filepath.Join(clone.TargetPath, "own"), nil, 0o600), unix.EROFS, name)

				harness.TakeDown(t, d, clone)
				harness.BringUp(t, d, clone)
				require.Equal(t, sum, payload(t, clone), name)
			}
		})
	}
}

var errPowerLost = errors.New("power lost")

// powerless is a Runner of a machine without power.
type powerless struct{}

func (powerless) Run(_ context.Context, command filesystem.Command) (filesystem.Result, error) {
	if command.Tool == "xfs_db" {
		return filesystem.Result{}, errPowerLost
	}

	return filesystem.NewRunner().Run(context.Background(), command)
}

// TestCopyOfAnInterruptedUUIDChange: the power fails in the middle of a first staging, and the
// remainder is copied. Of the other filesystems a UUID has no middle.
func TestCopyOfAnInterruptedUUIDChange(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, reflinking(t), harness.SharedPool)
	source := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "xfs")}, CapacityRange: harness.RequiredBytes(300 * harness.MiB),
	})
	harness.BringUp(t, d, source)

	sum := fillPayload(t, source)
	harness.TakeDown(t, d, source)

	broken, err := filesystem.ByName(filesystem.XFS, powerless{})
	require.NoError(t, err)

	for name, capability := range map[string]*csi.VolumeCapability{
		"writer": csiclient.MountCapability(harness.Writer, "xfs"), "readers": csiclient.MountCapability(harness.NodesRead, "xfs"),
	} {
		clone := cloneOf(t, d, source, name, capability, 300*harness.MiB)
		require.ErrorIs(t, broken.SetUUID(t.Context(), harness.ImageOf(d, clone.VolumeID), clone.VolumeID), errPowerLost)

		again := cloneOf(t, d, clone, "of "+name, capability, 300*harness.MiB)

		for _, each := range []*csiclient.Publication{clone, again} {
			harness.BringUp(t, d, each)
			require.Equal(t, sum, payload(t, each), name)
			require.Equal(t, each.VolumeID, uuidOf(t, d, each))
		}
	}
}

// TestCopyOfRawDataIsNotFormatted if a filesystem is asked for.
func TestCopyOfRawDataIsNotFormatted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	source := harness.NewVolume(t, d, &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}})
	harness.BringUp(t, d, source)

	sum := fillPayload(t, source)
	harness.TakeDown(t, d, source)

	clone := cloneOf(t, d, source, "clone", csiclient.BlockCapability(harness.Writer), 64*harness.MiB)
	mounted := *clone
	mounted.Capability = csiclient.MountCapability(harness.Writer, "ext4")

	require.NoError(t, d.Attach(t.Context(), clone))
	t.Cleanup(func() { harness.TakeDown(t, d, clone) })
	harness.RequireCode(t, d.Stage(t.Context(), &mounted), codes.FailedPrecondition, "holds data")

	harness.BringUp(t, d, clone)
	require.Equal(t, sum, payload(t, clone))
}

// TestCopyOfABlankVolumeIsFormatted like any volume that is empty.
func TestCopyOfABlankVolumeIsFormatted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	source := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	clone := cloneOf(t, d, source, "clone", csiclient.MountCapability(harness.Writer, ""), 128*harness.MiB)

	for range 2 {
		harness.BringUp(t, d, clone)
		require.Greater(t, sizeOf(t, clone), int64(100*harness.MiB), "want: the filesystem has the size of the clone")
		harness.TakeDown(t, d, clone)
	}

	require.Equal(t, clone.VolumeID, uuidOf(t, d, clone))
}

// TestGrownAndCopiedAtOnce copies an xfs as it would be after a power failure right
// behind its growth: the kernel could not replay that from the log.
func TestGrownAndCopiedAtOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, reflinking(t))
	like := &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "xfs")}, CapacityRange: harness.RequiredBytes(300 * harness.MiB),
	}
	source := harness.NewVolume(t, d, like)
	harness.BringUp(t, d, source)

	sum := fillPayload(t, source)

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: source.VolumeID, CapacityRange: harness.RequiredBytes(400 * harness.MiB),
	})
	require.NoError(t, err)

	_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: source.VolumeID, VolumePath: source.TargetPath, CapacityRange: harness.RequiredBytes(400 * harness.MiB),
	})
	require.NoError(t, err)

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: t.Name(), SourceVolumeId: source.VolumeID, Parameters: map[string]string{"consistency": "none"},
	})
	require.NoError(t, err)

	restored := copyOf(t, d, like, "restored", harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()), harness.RequiredBytes(400*harness.MiB))
	harness.BringUp(t, d, restored)
	require.Equal(t, sum, payload(t, restored))
	require.Equal(t, sizeOf(t, source), sizeOf(t, restored), "want: the copy is as large as its source")
}

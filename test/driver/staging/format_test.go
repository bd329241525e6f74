package staging_test

import (
	"os"
	"path/filepath"
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

// TestDamagedFilesystemIsRefused: it has damage that no tool repairs unasked.
func TestDamagedFilesystemIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		request *csi.CreateVolumeRequest
		damage  func(t *testing.T, image string)
		words   []string
	}{
		"ext4": {harness.MountRequest("ext4", 64*harness.MiB), func(t *testing.T, image string) {
			t.Helper()
			harness.Overwrite(t, image, 1024+12, harness.Random(t, 32))
		}, []string{"ext4", "damaged", "e2fsck", "uperblock"}},
		// e2fsck believes a filesystem that says it is clean. The kernel does not,
		// and writes into the superblock that it met an error.
		"ext4 root": {harness.MountRequest("ext4", 64*harness.MiB), func(t *testing.T, image string) {
			t.Helper()
			harness.DamageExt4Root(t, image)
		}, []string{"ext4", "damaged"}},
		"xfs": {harness.MountRequest("xfs", 300*harness.MiB), func(t *testing.T, image string) {
			t.Helper()
			// The free space of the first allocation group.
			harness.Overwrite(t, image, 4096, harness.Random(t, 3*4096))
		}, []string{"xfs", "damaged"}},
		"btrfs": {harness.MountRequest("btrfs", 256*harness.MiB), func(t *testing.T, image string) {
			t.Helper()
			harness.DamageBtrfsTrees(t, image)
		}, []string{"btrfs", "damaged"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, test.request)
			harness.BringUp(t, d, claim)
			harness.WriteBlock(t, claim)
			harness.TakeDown(t, d, claim)

			image := harness.ImageOf(d, claim.VolumeID)
			test.damage(t, image)

			before := harness.ImageSum(t, image)

			require.NoError(t, d.Attach(t.Context(), claim))
			harness.RequireCode(t, d.Stage(t.Context(), claim), codes.Internal, test.words...)
			harness.RequireCode(t, d.Stage(t.Context(), claim), codes.Internal, test.words...)
			harness.RequireUnstaged(t, d, claim)

			if name != "ext4 root" {
				require.Equal(t, before, harness.ImageSum(t, image))
			}
		})
	}
}

// TestCrashedFilesystemIsRecovered: a machine has lost its power: the image as it was while
// mounted.
func TestCrashedFilesystemIsRecovered(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for fsType, size := range map[string]int64{"ext4": 64 * harness.MiB, "xfs": 300 * harness.MiB, "btrfs": 256 * harness.MiB} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.MountRequest(fsType, size))
			harness.BringUp(t, d, claim)
			harness.WriteBlock(t, claim)

			image, crashed := harness.ImageOf(d, claim.VolumeID), filepath.Join(d.Root, "crashed")
			output, err := child.Command(t, "cp", "--sparse=always", image, crashed).CombinedOutput()
			require.NoError(t, err, "%s", output)
			harness.TakeDown(t, d, claim)
			require.NoError(t, os.Rename(crashed, image))

			harness.BringUp(t, d, claim)
			harness.RequireBlock(t, claim)
		})
	}
}

// TestImageWithDataIsNotFormatted if the data is of any kind that must not pass for empty.
func TestImageWithDataIsNotFormatted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		offset int64
		data   []byte
	}{
		"LUKS":                   {0, append([]byte("LUKS\xba\xbe\x00\x02"), make([]byte, 4088)...)},
		"LVM":                    {512, []byte("LABELONE")},
		"random":                 {0, harness.Random(t, harness.MiB)},
		"one byte in the middle": {33 * harness.MiB, []byte{1}},
		"the very last byte":     {64*harness.MiB - 1, []byte{1}},
		"a partition table":      {510, []byte{0x55, 0xaa}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
			image := harness.ImageOf(d, claim.VolumeID)
			harness.Overwrite(t, image, test.offset, test.data)

			before := harness.ImageSum(t, image)

			require.NoError(t, d.Attach(t.Context(), claim))
			harness.RequireCode(t, d.Stage(t.Context(), claim), codes.FailedPrecondition, "not formatted")
			require.Equal(t, before, harness.ImageSum(t, image))
			harness.RequireUnstaged(t, d, claim)

			// As a raw block volume it can be used, and probed.
			claim.Capability = csiclient.BlockCapability(harness.Writer)
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.TakeDown(t, d, claim)
			require.Equal(t, before, harness.ImageSum(t, image))
		})
	}
}

func TestAnotherFilesystemIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.MountRequest(fsType, 300*harness.MiB))
			harness.BringUp(t, d, claim)
			harness.WriteBlock(t, claim)
			harness.TakeDown(t, d, claim)

			before := harness.ImageSum(t, harness.ImageOf(d, claim.VolumeID))

			for _, other := range []string{"ext4", "xfs", "btrfs"} {
				if other == fsType {
					continue
				}

				wrong := *claim
				wrong.Capability = csiclient.MountCapability(harness.Writer, other)
				harness.RequireCode(t, d.Stage(t.Context(), &wrong), codes.FailedPrecondition, fsType, other)
				harness.RequireUnstaged(t, d, claim)

				// The volume's filesystem is not configured, but detected.
				wrong.VolumeContext = nil
				harness.RequireCode(t, d.Stage(t.Context(), &wrong), codes.FailedPrecondition, fsType, other)
				harness.RequireUnstaged(t, d, claim)
			}

			require.Equal(t, before, harness.ImageSum(t, harness.ImageOf(d, claim.VolumeID)))
			harness.BringUp(t, d, claim)
			harness.RequireBlock(t, claim)
		})
	}
}

// TestTheFilesystemIsFixedAtCreation, long before it is made.
func TestTheFilesystemIsFixedAtCreation(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, parameters := range map[string]map[string]string{"image": nil, "directory": harness.DirectoryBacked()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: parameters})
			before := harness.Everything(t, d)
			wrong := csiclient.MountCapability(harness.Writer, "xfs")

			validated, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: claim.VolumeID, VolumeContext: claim.VolumeContext, VolumeCapabilities: []*csi.VolumeCapability{wrong},
			})
			require.NoError(t, err)
			require.Nil(t, validated.GetConfirmed(),
				"ValidateVolumeCapabilities confirms what the volume has not: %s", validated.GetMessage())
			require.Contains(t, validated.GetMessage(), "fs_type is xfs")

			other := *claim
			other.Capability = wrong
			harness.RequireCode(t, d.Attach(t.Context(), &other), codes.InvalidArgument, "xfs", "ext4")

			_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(harness.GiB), VolumeCapability: wrong,
			})
			harness.RequireCode(t, err, codes.InvalidArgument, "xfs", "ext4")
			require.Equal(t, before, harness.Everything(t, d))

			harness.AttachAndStage(t, d, claim)
			harness.RequireCode(t, d.Publish(t.Context(), &other), codes.FailedPrecondition, "xfs", "ext4")
			require.NoDirExists(t, claim.TargetPath)

			claim.Capability = csiclient.MountCapability(harness.Writer, "ext4")
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.WriteBlock(t, claim)
		})
	}
}

// TestTheFilesystemIsFixedWithoutStaging: the publication stages then.
func TestTheFilesystemIsFixedWithoutStaging(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Disabled = []string{"STAGE_UNSTAGE_VOLUME"} })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	require.NoError(t, d.Attach(t.Context(), claim))

	claim.Capability, claim.StagingPath = csiclient.MountCapability(harness.Writer, "xfs"), ""
	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition, "xfs", "ext4")
	require.Zero(t, harness.AllocatedBytes(t, harness.ImageOf(d, claim.VolumeID)), "want: nothing is written to the refused volume")
}

// TestARawVolumeHasNoFilesystem of its own: it has what its user has made on it.
func TestARawVolumeHasNoFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		CapacityRange: harness.RequiredBytes(300 * harness.MiB), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	harness.BringUp(t, d, claim)

	output, err := child.Command(t, "mkfs.xfs", "-q", "-s", "size=4096", claim.TargetPath).CombinedOutput()
	require.NoError(t, err, "%s", output)
	harness.TakeDown(t, d, claim)

	claim.Capability = csiclient.MountCapability(harness.Writer, "xfs")

	validated, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: claim.VolumeID, VolumeContext: claim.VolumeContext, VolumeCapabilities: []*csi.VolumeCapability{claim.Capability},
	})
	require.NoError(t, err)
	require.NotNil(t, validated.GetConfirmed(), validated.GetMessage())

	harness.BringUp(t, d, claim)
	harness.WriteBlock(t, claim)
	harness.RequireBlock(t, claim)
}

func filesystemBytes(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Statfs_t

	require.NoError(t, unix.Statfs(path, &stat))

	return int64(stat.Blocks) * stat.Bsize
}

// TestFilesystemGrownWhileUnstaged is that of a volume that no node has.
func TestFilesystemGrownWhileUnstaged(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.MountRequest(fsType, 300*harness.MiB))

			// Never used, it is only an image.
			grow := func(size int64) {
				answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
					VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(size),
				})
				require.NoError(t, err)
				require.Equal(t, size, answer.GetCapacityBytes(), "want: the volume has the larger size")
				require.True(t, answer.GetNodeExpansionRequired(), "want: the node has to expand the filesystem")
			}

			grow(320 * harness.MiB)
			harness.BringUp(t, d, claim)

			before := filesystemBytes(t, claim.TargetPath)
			require.Greater(t, before, int64(200*harness.MiB), "want: the filesystem fills the volume")
			harness.WriteBlock(t, claim)
			harness.TakeDown(t, d, claim)

			grow(640 * harness.MiB)
			harness.BringUp(t, d, claim)
			harness.RequireBlock(t, claim)
			require.Greater(t, filesystemBytes(t, claim.TargetPath), before+before/2, "want: the filesystem has grown when it is staged")
		})
	}
}

// TestAReadOnlyVolumeGrowsWhenItIsStaged expands a volume that is mounted read-only: the kernel
// does not let it grow, and there is nothing for its user to do.
func TestAReadOnlyVolumeGrowsWhenItIsStaged(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		for name, capability := range map[string]*csi.VolumeCapability{
			"flag": csiclient.MountCapability(harness.Writer, fsType, "ro"), "reader": csiclient.MountCapability(harness.ReaderOnly, fsType),
		} {
			t.Run(fsType+" "+name, func(t *testing.T) {
				t.Parallel()

				const larger = 640 * harness.MiB

				d := harness.Start(t)
				claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
					VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: harness.RequiredBytes(300 * harness.MiB),
				})
				harness.BringUp(t, d, claim)

				before := filesystemBytes(t, claim.TargetPath)

				_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
					VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(larger),
				})
				require.NoError(t, err)

				answer, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
					VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.RequiredBytes(larger),
				})
				require.NoError(t, err)
				require.EqualValues(t, larger, answer.GetCapacityBytes(), "want: the volume has the larger size")
				require.Equal(t, before, filesystemBytes(t, claim.TargetPath), "want: a read-only filesystem does not grow while mounted")

				harness.TakeDown(t, d, claim)
				harness.BringUp(t, d, claim)
				require.Greater(t, filesystemBytes(t, claim.TargetPath), before+before/2, "want: the filesystem has grown when it is staged")
				harness.TakeDown(t, d, claim)
				harness.RequireSound(t, fsType, harness.ImageOf(d, claim.VolumeID))
			})
		}
	}
}

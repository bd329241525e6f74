package driver_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// sumOf is the checksum of an image. What is zero does not count, so that
// holes need not be read.
func sumOf(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()

	const blockBytes = 4096

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	hash := sha256.New()
	chunk, zeros := make([]byte, mib), make([]byte, blockBytes)

	for end := int64(0); ; {
		start, err := unix.Seek(int(file.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return [sha256.Size]byte(hash.Sum(nil))
		}

		require.NoError(t, err)

		n, err := file.ReadAt(chunk, start)
		if !errors.Is(err, io.EOF) {
			require.NoError(t, err)
		}

		for block := range slices.Chunk(chunk[:n], blockBytes) {
			if !bytes.Equal(block, zeros[:len(block)]) {
				fmt.Fprintln(hash, start)
				hash.Write(block)
			}

			start += int64(len(block))
		}

		end = start
	}
}

func overwrite(t *testing.T, path string, offset int64, data []byte) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(data, offset)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

func random(t *testing.T, size int) []byte {
	t.Helper()

	data := make([]byte, size)
	_, err := rand.Read(data)
	require.NoError(t, err)

	return data
}

// requireUnstaged shows that a refusal left nothing behind.
func requireUnstaged(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	requireNothingMounted(t, d.Config.KubeletDir)
	// The kernel clears a device at its last close, which a forked child that has
	// not yet come to its exec may delay.
	require.Eventually(t, func() bool { return len(devicesOf(t, d, claim.VolumeID)) == 0 }, time.Minute, time.Millisecond)

	scratch, err := os.ReadDir(filepath.Join(d.Pool(), "scratch"))
	require.NoError(t, err)
	require.Empty(t, scratch)
}

func mountedAs(fsType string, size int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		CapacityRange: required(size), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, fsType)},
	}
}

// TestDamagedFilesystem destroys what no tool repairs unasked.
func TestDamagedFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		request *csi.CreateVolumeRequest
		damage  func(t *testing.T, image string)
		words   []string
	}{
		"ext4": {mountedAs("ext4", 64*mib), func(t *testing.T, image string) {
			t.Helper()
			overwrite(t, image, 1024+12, random(t, 32))
		}, []string{"ext4", "damaged", "e2fsck", "uperblock"}},
		// e2fsck believes a filesystem that says it is clean. The kernel does not,
		// and writes into the superblock that it met an error.
		"ext4 root": {mountedAs("ext4", 64*mib), func(t *testing.T, image string) {
			t.Helper()
			damageExt4Root(t, image)
		}, []string{"ext4", "damaged"}},
		"xfs": {mountedAs("xfs", 300*mib), func(t *testing.T, image string) {
			t.Helper()
			// The free space of the first allocation group.
			overwrite(t, image, 4096, random(t, 3*4096))
		}, []string{"xfs", "damaged"}},
		"btrfs": {mountedAs("btrfs", 256*mib), func(t *testing.T, image string) {
			t.Helper()
			damageBtrfsTrees(t, image)
		}, []string{"btrfs", "damaged"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, test.request)
			bringUp(t, d, claim)
			writeBlock(t, claim)
			takeDown(t, d, claim)

			image := imageOf(d, claim.VolumeID)
			test.damage(t, image)

			before := sumOf(t, image)

			require.NoError(t, d.Attach(t.Context(), claim))
			fails(t, d.Stage(t.Context(), claim), codes.Internal, test.words...)
			fails(t, d.Stage(t.Context(), claim), codes.Internal, test.words...)
			requireUnstaged(t, d, claim)

			if name != "ext4 root" {
				require.Equal(t, before, sumOf(t, image))
			}
		})
	}
}

// damageExt4Root points the root directory's inode elsewhere: that e2fsck asks
// about.
func damageExt4Root(t *testing.T, image string) {
	t.Helper()

	file, err := os.Open(image)
	require.NoError(t, err)

	defer file.Close()

	// The group descriptors are in the block after the superblock; the inode
	// table's number is 8 bytes into the first.
	descriptor := make([]byte, 4)
	_, err = file.ReadAt(descriptor, 4096+8)
	require.NoError(t, err)

	table := int64(descriptor[0]) | int64(descriptor[1])<<8 | int64(descriptor[2])<<16
	overwrite(t, image, table*4096+256, random(t, 128)) // inode 2
}

// damageBtrfsTrees destroys all copies of the chunk tree's and root tree's
// blocks: those are at the beginning of each metadata chunk.
func damageBtrfsTrees(t *testing.T, image string) {
	t.Helper()

	file, err := os.OpenFile(image, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	const super, node = 64 << 10, 16 << 10

	id := make([]byte, 16)
	_, err = file.ReadAt(id, super+32)
	require.NoError(t, err)

	info, err := file.Stat()
	require.NoError(t, err)

	// A tree's block has the filesystem's id 32 bytes in, as the superblock.
	block := make([]byte, 48)

	for at := int64(1 << 20); at < info.Size(); at += node {
		_, err := file.ReadAt(block, at)
		require.NoError(t, err)

		if bytes.Equal(block[32:], id) {
			_, err := file.WriteAt(random(t, node), at)
			require.NoError(t, err)
		}
	}
}

// TestCrashedFilesystem stages what a machine leaves that lost its power: the
// image as it was while mounted.
func TestCrashedFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for fsType, size := range map[string]int64{"ext4": 64 * mib, "xfs": 300 * mib, "btrfs": 256 * mib} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, mountedAs(fsType, size))
			bringUp(t, d, claim)
			writeBlock(t, claim)

			image, crashed := imageOf(d, claim.VolumeID), filepath.Join(d.Root, "crashed")
			output, err := child.Command(t, "cp", "--sparse=always", image, crashed).CombinedOutput()
			require.NoError(t, err, "%s", output)
			takeDown(t, d, claim)
			require.NoError(t, os.Rename(crashed, image))

			bringUp(t, d, claim)
			requireBlock(t, claim)
		})
	}
}

// TestWhatIsNotBlankIsNotFormatted has data of each kind in the image that no
// driver may take for empty.
func TestWhatIsNotBlankIsNotFormatted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		offset int64
		data   []byte
	}{
		"LUKS":                   {0, append([]byte("LUKS\xba\xbe\x00\x02"), make([]byte, 4088)...)},
		"LVM":                    {512, []byte("LABELONE")},
		"random":                 {0, random(t, mib)},
		"one byte in the middle": {33 * mib, []byte{1}},
		"the very last byte":     {64*mib - 1, []byte{1}},
		"a partition table":      {510, []byte{0x55, 0xaa}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, mountedAs("ext4", 64*mib))
			image := imageOf(d, claim.VolumeID)
			overwrite(t, image, test.offset, test.data)

			before := sumOf(t, image)

			require.NoError(t, d.Attach(t.Context(), claim))
			fails(t, d.Stage(t.Context(), claim), codes.FailedPrecondition, "not formatted")
			require.Equal(t, before, sumOf(t, image))
			requireUnstaged(t, d, claim)

			// As a raw block volume it can be used, and probed.
			claim.Capability = csiclient.BlockCapability(writer)
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			takeDown(t, d, claim)
			require.Equal(t, before, sumOf(t, image))
		})
	}
}

func TestAnotherFilesystemThanAsked(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, mountedAs(fsType, 300*mib))
			bringUp(t, d, claim)
			writeBlock(t, claim)
			takeDown(t, d, claim)

			before := sumOf(t, imageOf(d, claim.VolumeID))

			for _, other := range []string{"ext4", "xfs", "btrfs"} {
				if other == fsType {
					continue
				}

				wrong := *claim
				wrong.Capability = csiclient.MountCapability(writer, other)
				fails(t, d.Stage(t.Context(), &wrong), codes.InvalidArgument, fsType, other)
				requireUnstaged(t, d, claim)

				// The volume's filesystem is not configured, but detected.
				wrong.VolumeContext = nil
				fails(t, d.Stage(t.Context(), &wrong), codes.FailedPrecondition, fsType, other)
				requireUnstaged(t, d, claim)
			}

			require.Equal(t, before, sumOf(t, imageOf(d, claim.VolumeID)))
			bringUp(t, d, claim)
			requireBlock(t, claim)
		})
	}
}

// TestTheFilesystemIsFixedAtCreation, long before it is made.
func TestTheFilesystemIsFixedAtCreation(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, parameters := range map[string]map[string]string{"image": nil, "directory": directoryBacked()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: parameters})
			before := everything(t, d)
			wrong := csiclient.MountCapability(writer, "xfs")

			validated, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: claim.VolumeID, VolumeContext: claim.VolumeContext, VolumeCapabilities: []*csi.VolumeCapability{wrong},
			})
			require.NoError(t, err)
			require.Nil(t, validated.GetConfirmed(),
				"ValidateVolumeCapabilities confirms what the volume has not: %s", validated.GetMessage())
			require.Contains(t, validated.GetMessage(), "fs_type is xfs")

			other := *claim
			other.Capability = wrong
			fails(t, d.Attach(t.Context(), &other), codes.InvalidArgument, "xfs", "ext4")

			_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: claim.VolumeID, CapacityRange: required(gib), VolumeCapability: wrong,
			})
			fails(t, err, codes.InvalidArgument, "xfs", "ext4")
			require.Equal(t, before, everything(t, d))

			attachAndStage(t, d, claim)
			fails(t, d.Publish(t.Context(), &other), codes.InvalidArgument, "xfs", "ext4")
			require.NoDirExists(t, claim.TargetPath)

			claim.Capability = csiclient.MountCapability(writer, "ext4")
			require.NoError(t, d.Publish(t.Context(), claim))
			writeBlock(t, claim)
		})
	}
}

// TestTheFilesystemIsFixedWithoutStaging: the publication stages then.
func TestTheFilesystemIsFixedWithoutStaging(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Disabled = []string{"STAGE_UNSTAGE_VOLUME"} })
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	require.NoError(t, d.Attach(t.Context(), claim))

	claim.Capability, claim.StagingPath = csiclient.MountCapability(writer, "xfs"), ""
	fails(t, d.Publish(t.Context(), claim), codes.InvalidArgument, "xfs", "ext4")
	require.Zero(t, allocated(t, imageOf(d, claim.VolumeID)))
}

// TestARawVolumeHasNoFilesystem of its own: it has what its user has made on it.
func TestARawVolumeHasNoFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		CapacityRange: required(300 * mib), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})
	bringUp(t, d, claim)

	output, err := child.Command(t, "mkfs.xfs", "-q", "-s", "size=4096", claim.TargetPath).CombinedOutput()
	require.NoError(t, err, "%s", output)
	takeDown(t, d, claim)

	claim.Capability = csiclient.MountCapability(writer, "xfs")

	validated, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: claim.VolumeID, VolumeContext: claim.VolumeContext, VolumeCapabilities: []*csi.VolumeCapability{claim.Capability},
	})
	require.NoError(t, err)
	require.NotNil(t, validated.GetConfirmed(), validated.GetMessage())

	bringUp(t, d, claim)
	writeBlock(t, claim)
	requireBlock(t, claim)
}

func filesystemBytes(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Statfs_t

	require.NoError(t, unix.Statfs(path, &stat))

	return int64(stat.Blocks) * stat.Bsize
}

// TestGrownWhileUnstaged expands the volume when no node has it.
func TestGrownWhileUnstaged(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, mountedAs(fsType, 300*mib))

			// Never used, it is only an image.
			grow := func(size int64) {
				answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
					VolumeId: claim.VolumeID, CapacityRange: required(size),
				})
				require.NoError(t, err)
				require.Equal(t, size, answer.GetCapacityBytes())
				require.True(t, answer.GetNodeExpansionRequired(), "want: the node has to expand the filesystem")
			}

			grow(320 * mib)
			bringUp(t, d, claim)

			before := filesystemBytes(t, claim.TargetPath)
			require.Greater(t, before, int64(200*mib))
			writeBlock(t, claim)
			takeDown(t, d, claim)

			grow(640 * mib)
			bringUp(t, d, claim)
			requireBlock(t, claim)
			require.Greater(t, filesystemBytes(t, claim.TargetPath), before+before/2)
		})
	}
}

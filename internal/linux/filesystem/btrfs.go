package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where things are in the superblock: include/uapi/linux/btrfs_tree.h, struct
// btrfs_super_block.
const (
	btrfsSuperOffset = 64 << 10
	btrfsByteNumber  = 0x30
	btrfsMagicOffset = 0x40
	btrfsMagic       = "_BHRfS_M"
	btrfsTotalBytes  = 0x70
	btrfsSuperLength = 0x78
)

const (
	btrfsPackage = "btrfs-progs"
	// btrfsMinimumBytes is what the kernel resizes to at least: mkfs.btrfs makes
	// smaller ones, but such a volume could never grow by less than up to here.
	btrfsMinimumBytes = 256 << 20
	// btrfsSector is what the kernel rounds a device's size down to.
	btrfsSector = 4096
)

type btrfs struct{ run Runner }

func (*btrfs) Name() string        { return Btrfs }
func (*btrfs) MinimumBytes() int64 { return btrfsMinimumBytes }

var btrfsGrammar = mkfsGrammar{tool: "mkfs.btrfs", options: mergeRules(
	sameRule(withoutValueRule, "-M", "--mixed"), sameRule(labelRule, "-L", "--label"), sameRule(numberRule, "-n", "--nodesize"),
	sameRule(features("bgt", "block-group-tree", "extref", "free-space-tree", "fst", "mixed-bg", "no-holes", "quota",
		"skinny-metadata", "squota"), "-O", "--features", "-R", "--runtime-features"),
	sameRule(oneOf("dup", "single"), "-d", "--data", "-m", "--metadata"),
	sameRule(oneOf("blake2", "crc32c", "sha256", "xxhash"), "--csum", "--checksum"),
)}

// Make needs no block size: btrfs writes nothing smaller than its 4096 bytes.
func (b *btrfs) Make(ctx context.Context, path string, o MakeOptions) error {
	return mkfs(ctx, b.run, b, path, o, func(_ int, options []option) []string {
		return append([]string{"-q", "-f", "-K"}, words(options)...)
	})
}

// Check repairs nothing: btrfs check --repair is for people with a backup.
func (b *btrfs) Check(ctx context.Context, path string) (Verdict, error) {
	return b.check(ctx, path, Command{})
}

// ForceCheck: Check is all there is.
func (b *btrfs) ForceCheck(ctx context.Context, path string) (Verdict, error) {
	return b.Check(ctx, path)
}

// check fills in what is to be run.
func (b *btrfs) check(ctx context.Context, path string, command Command, options ...string) (Verdict, error) {
	_, verdict, err := inspectForCheck(path, Btrfs)
	if err != nil || verdict.State == Damaged {
		return verdict, err
	}

	command.Tool, command.Package = "btrfs", btrfsPackage
	command.Args = append(append([]string{"check", "--readonly"}, options...), "--", path)

	result, err := runCheck(ctx, b.run, path, command)

	switch {
	case err != nil:
		return Verdict{}, err
	case result.ExitCode == 0:
		return Verdict{State: Clean}, nil
	case strings.Contains(result.Output, "unsupported option features"):
		return Verdict{}, fmt.Errorf("%w: %w", ErrUnknownFeatures, toolError(command, result))
	default:
		return Verdict{State: Damaged, Detail: lastLines(result.Output)}, nil
	}
}

const (
	// BTRFS_IOC_RESIZE is _IOW(0x94, 3, struct btrfs_ioctl_vol_args).
	btrfsIocResize = 0x50009403
	// BTRFS_IOC_DEV_INFO is _IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args).
	btrfsIocDevInfo = 0xd000941e
	// BTRFS_IOC_FS_INFO is _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args).
	btrfsIocFSInfo = 0x8400941f
)

// These are the structures of include/uapi/linux/btrfs.h.
type (
	btrfsResize struct {
		_    int64
		name [4088]byte
	}
	btrfsDevInfo struct {
		device                uint64
		uuid                  [16]byte
		bytesUsed, totalBytes uint64
		_                     [379]uint64
		path                  [1024]byte
	}
	btrfsFSInfo struct {
		maxID, devices uint64
		fsid           [16]byte
		_              [992]byte
	}
)

func (b *btrfs) GrowMounted(ctx context.Context, mountpoint *os.File, deviceBytes int64) error {
	directory, _, err := openMounted(mountpoint, unix.BTRFS_SUPER_MAGIC, Btrfs)
	if err != nil {
		return err
	}
	defer directory.Close()

	device, err := btrfsOnlyDevice(directory)
	if err != nil {
		return fmt.Errorf("grow %s: %w", mountpoint.Name(), err)
	}

	want := uint64(deviceBytes) / btrfsSector * btrfsSector
	if want <= device.totalBytes {
		return nil
	}

	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}

	var resize btrfsResize

	copy(resize.name[:], strconv.FormatUint(device.device, 10)+":"+strconv.FormatUint(want, 10))

	code, err := ioctl(directory, btrfsIocResize, unsafe.Pointer(&resize))
	if err == nil && code != 0 {
		// enum btrfs_err_code: another exclusive operation, as a balance, runs.
		err = fmt.Errorf("btrfs error code %d: %w", code, ErrInUse)
	}

	return growError(mountpoint, deviceBytes, "BTRFS_IOC_RESIZE", err)
}

// btrfsOnlyDevice returns the device of a filesystem that has only one: with
// more, which of them deviceBytes is about would be a guess.
func btrfsOnlyDevice(directory *os.File) (*btrfsDevInfo, error) {
	var info btrfsFSInfo
	if _, err := ioctl(directory, btrfsIocFSInfo, unsafe.Pointer(&info)); err != nil {
		return nil, fmt.Errorf("BTRFS_IOC_FS_INFO: %w", err)
	}

	if info.devices != 1 {
		return nil, fmt.Errorf("the filesystem has %d devices: %w", info.devices, unix.EINVAL)
	}

	for id := uint64(1); id <= info.maxID; id++ {
		device := &btrfsDevInfo{device: id}

		_, err := ioctl(directory, btrfsIocDevInfo, unsafe.Pointer(device))
		if err == nil {
			return device, nil
		}

		if !errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("BTRFS_IOC_DEV_INFO: %w", err)
		}
	}

	return nil, fmt.Errorf("the filesystem names no device: %w", unix.ENODEV)
}

// GrowthSurvivesCrash is true: nothing of it counts before all of it does.
func (*btrfs) GrowthSurvivesCrash() bool { return true }

func (*btrfs) GrowUnmounted(context.Context, string) error { return ErrNeedsMount }

func (*btrfs) SizeBytes(r io.ReaderAt) (int64, error) {
	super, err := readBlock(r, btrfsSuperOffset, btrfsSuperLength)

	switch {
	case err != nil:
		return 0, fmt.Errorf("%s: %w", Btrfs, err)
	// The superblock records its own position: a copy elsewhere is not the superblock.
	case string(super[btrfsMagicOffset:][:len(btrfsMagic)]) != btrfsMagic,
		binary.LittleEndian.Uint64(super[btrfsByteNumber:]) != btrfsSuperOffset:
		return 0, fmt.Errorf("%s: %w", Btrfs, ErrNoSuperblock)
	}

	return multiplySize(Btrfs, binary.LittleEndian.Uint64(super[btrfsTotalBytes:]), 1)
}

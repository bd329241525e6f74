package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

// Where things are in the superblock: fs/ext4/ext4.h, struct ext4_super_block.
const (
	ext4SuperOffset   = 1024
	ext4SuperLength   = 1024
	ext4MagicOffset   = 0x38
	ext4Magic         = "\x53\xef"
	ext4BlocksLow     = 0x04
	ext4LogBlockSize  = 0x18
	ext4LastOrphan    = 0xe8
	ext4Incompatible  = 0x60
	ext4BlocksHigh    = 0x150
	ext4FlagRecover   = 0x04
	ext4Flag64Bit     = 0x80
	ext4FlagOrphans   = 0x10000 // of ReadOnlyCompat: ORPHAN_PRESENT
	ext4MaxLogBlock   = 6
	ext4MaxLogCluster = 30
	ext4MinBlockBytes = 1024
)

const (
	ext4Package = "e2fsprogs"
	// ext4MinimumBytes was found by trying; below 8 MiB mkfs makes no journal.
	ext4MinimumBytes = 256 << 10
)

// What e2fsck's exit code is made of.
const (
	fsckRepaired      = 1
	fsckRepairedAgain = 2 // "reboot": of no concern to what is not mounted
	fsckErrorsLeft    = 4
	fsckUnusable      = 8
)

type ext4 struct{ run Runner }

func (*ext4) Name() string        { return Ext4 }
func (*ext4) MinimumBytes() int64 { return ext4MinimumBytes }

const (
	ext4Extended      = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
	ext4ExtendedEager = "lazy_itable_init=0,lazy_journal_init=1,nodiscard"
)

var ext4Grammar = mkfsGrammar{tool: "mkfs.ext4", options: mergeRules(
	sameRule(numberRule, "-G", "-I", "-N", "-g", "-i"),
	map[string]optionRule{
		"-E": suboptions(mergeRules(sameRule(numberRule, "num_backup_sb", "orphan_file_size", "packed_meta_blocks", "resize",
			"stride", "stripe-width", "stripe_width"), map[string]optionRule{"nodiscard": withoutValueRule, "root_owner": ownerRule})),
		"-J": suboptions(sameRule(numberRule, "fast_commit_size", "size")),
		"-L": labelRule,
		"-O": features("64bit", "dir_index", "dir_nlink", "ea_inode", "ext_attr", "extent", "extents",
			"extra_isize", "fast_commit", "filetype", "flex_bg", "has_journal", "huge_file", "inline_data", "large_dir",
			"large_file", "metadata_csum", "metadata_csum_seed", "orphan_file", "project", "quota", "resize_inode",
			"sparse_super", "sparse_super2", "uninit_bg"),
		"-T": oneOf("big", "floppy", "huge", "largefile", "largefile4", "news", "small"),
		"-b": oneOf("4096"), "-j": withoutValueRule, "-m": percentRule,
	},
), refused: sameRule("resize2fs grows no filesystem with clusters", "-C", "bigalloc")}

// Make leaves zeroing inode tables and journal to the kernel after the first
// mount, which for a sparse image means never allocating most of them.
func (e *ext4) Make(ctx context.Context, path string, o MakeOptions) error {
	// 4096-byte blocks serve a device of 512-byte sectors too.
	return mkfs(ctx, e.run, e, path, o, func(_ int, options []option) []string {
		// Of several -E mkfs.ext4 heeds only the last, so they become one.
		extended, others := []string{ext4Extended}, make([]option, 0, len(options))
		if o.NoLazyInit {
			extended[0] = ext4ExtendedEager
		}

		for _, given := range options {
			if given.name == "-E" {
				extended = append(extended, given.value)
			} else {
				others = append(others, given)
			}
		}

		return append([]string{"-q", "-F", "-b", "4096", "-E", strings.Join(extended, ",")}, words(others)...)
	})
}

func (e *ext4) Check(ctx context.Context, path string) (Verdict, error) {
	return e.check(ctx, path, "-p")
}

func (e *ext4) ForceCheck(ctx context.Context, path string) (Verdict, error) {
	return e.check(ctx, path, "-f", "-p")
}

func (e *ext4) check(ctx context.Context, path string, options ...string) (Verdict, error) {
	t, verdict, err := inspectForCheck(path, Ext4)
	if err != nil || verdict.State == Damaged {
		return verdict, err
	}

	if t.readOnly {
		super, err := readFrom(path, readExt4Superblock)
		if err != nil {
			return Verdict{}, fmt.Errorf("check %s: %w", path, err)
		}

		if binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4FlagRecover != 0 {
			return Verdict{State: NeedsReplay, Detail: "the journal holds changes, and the device is read-only"}, nil
		}

		options = []string{"-n"}
	}

	held, err := lockPath(ctx, path, os.O_RDONLY)
	if err != nil {
		return Verdict{}, err
	}
	defer held.Close()

	return e.fsck(ctx, path, held, options...)
}

// fsck runs e2fsck, which inherits the lock.
func (e *ext4) fsck(ctx context.Context, path string, lock *os.File, options ...string) (Verdict, error) {
	command := Command{Tool: "e2fsck", Package: ext4Package, Args: append(options, "--", path), InheritedFile: lock}

	result, err := runCheck(ctx, e.run, path, command)
	if err != nil {
		return Verdict{}, err
	}

	return e.judge(path, command, result)
}

func (*ext4) judge(path string, command Command, result Result) (Verdict, error) {
	const known = fsckRepaired | fsckRepairedAgain | fsckErrorsLeft | fsckUnusable

	switch code := result.ExitCode; {
	case code == 0:
		return Verdict{State: Clean}, nil
	case code&^known != 0:
		return Verdict{}, fmt.Errorf("check %s: %w", path, toolError(command, result))
	case code&(fsckErrorsLeft|fsckUnusable) != 0:
		return Verdict{State: Damaged, Detail: lastLines(result.Output)}, nil
	default:
		return Verdict{State: Repaired, Detail: lastLines(result.Output)}, nil
	}
}

// EXT4_IOC_RESIZE_FS is _IOW('f', 16, __u64).
const ext4IocResizeFS = 0x40086610

func (e *ext4) GrowMounted(ctx context.Context, mountpoint *os.File, deviceBytes int64) error {
	directory, blockSize, err := openMounted(mountpoint, unix.EXT4_SUPER_MAGIC, Ext4)
	if err != nil {
		return err
	}
	defer directory.Close()

	blocks := uint64(deviceBytes / blockSize)
	if blocks == 0 || ext4ReachesEnd(directory, blocks*uint64(blockSize)) {
		return nil
	}

	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}

	_, err = ioctl(directory, ext4IocResizeFS, unsafe.Pointer(&blocks))
	if errors.Is(err, unix.EPERM) && ext4LeavesRest(directory, deviceBytes) {
		return nil
	}

	return growError(mountpoint, deviceBytes, "EXT4_IOC_RESIZE_FS", err)
}

// FS_IOC_GETFSMAP is _IOWR('X', 59, struct fsmap_head).
const fsIocGetFSMap = 0xc0c0583b

// fsmap and fsmapHead are those of include/uapi/linux/fsmap.h.
type fsmap struct {
	device, flags                   uint32
	physical, owner, offset, length uint64
	_                               [3]uint64
}

type fsmapHead struct {
	inFlags, outFlags, count, entries uint32
	_                                 [6]uint64
	low, high                         fsmap
}

// ext4ReachesEnd says whether the filesystem has a last block that ends at bytes
// or beyond. The kernel asks for CAP_SYS_RESOURCE before it notices that there
// is nothing to do, and statfs leaves the metadata out, so its map of the
// device is queried for that block. If the query fails, growing is tried.
func ext4ReachesEnd(directory *os.File, bytes uint64) bool {
	var stat unix.Stat_t
	if unix.Fstat(int(directory.Fd()), &stat) != nil {
		return false
	}

	head := fsmapHead{
		// The device in the kernel's 32-bit encoding is what stat gives.
		low:  fsmap{device: uint32(stat.Dev), physical: bytes - ext4MinBlockBytes},
		high: fsmap{device: uint32(stat.Dev), flags: ^uint32(0), physical: ^uint64(0), owner: ^uint64(0), offset: ^uint64(0)},
	}

	_, err := ioctl(directory, fsIocGetFSMap, unsafe.Pointer(&head))

	return err == nil && head.entries > 0
}

// GrowthSurvivesCrash is true: nothing of it counts before all of it does.
func (*ext4) GrowthSurvivesCrash() bool { return true }

func (e *ext4) GrowUnmounted(ctx context.Context, path string) (err error) {
	t, err := inspect(path, Ext4)
	if err != nil {
		return err
	}

	defer errdefs.Wrapf(&err, "grow %s", path)

	limit, err := readFrom(path, ext4Limit)
	if err != nil || limit.fills(t.sizeBytes) {
		return err
	}

	if err := limit.check(Ext4, t.sizeBytes); err != nil {
		return err
	}

	held, err := lockPath(ctx, path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer held.Close()

	command := Command{
		Tool: "resize2fs", Package: ext4Package, Args: []string{"--", path},
		InheritedFile: held, Uninterruptible: true,
	}

	result, err := e.run.Run(ctx, command)
	if err == nil && result.ExitCode != 0 && strings.Contains(result.Output, resizeWantsCheck) {
		verdict, checkErr := e.fsck(ctx, path, held, "-f", "-p")
		if checkErr != nil {
			return checkErr
		}

		if verdict.State == Damaged {
			return fmt.Errorf("%w: %s", ErrDamaged, verdict.Detail)
		}

		result, err = e.run.Run(ctx, command)
	}

	switch {
	case err != nil || result.ExitCode == 0:
		return err
	case strings.Contains(result.Output, resizeAborted):
		return fmt.Errorf("%w, as growing it was aborted: %w", ErrDamaged, toolError(command, result))
	default:
		return toolError(command, result)
	}
}

// What resize2fs prints if it wants a check that is newer than the last mount, and if it gave up in
// the middle; then it prints "Please run 'e2fsck -fy", too.
const (
	resizeWantsCheck = "Please run 'e2fsck -f "
	resizeAborted    = "aborted resize operation"
)

func (e *ext4) SizeBytes(r io.ReaderAt) (int64, error) {
	super, err := readExt4Superblock(r)
	if err != nil {
		return 0, err
	}

	size, _, err := ext4Size(super)

	return size, err
}

// readExt4Superblock reads a superblock. Error: ErrNoSuperblock.
func readExt4Superblock(r io.ReaderAt) ([]byte, error) {
	super, err := readBlock(r, ext4SuperOffset, ext4SuperLength)

	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", Ext4, err)
	case string(super[ext4MagicOffset:][:len(ext4Magic)]) != ext4Magic:
		return nil, fmt.Errorf("%s: %w", Ext4, ErrNoSuperblock)
	default:
		return super, nil
	}
}

// ext4Size returns the filesystem's size and block size in bytes.
func ext4Size(super []byte) (size, blockSize int64, err error) {
	exponent := binary.LittleEndian.Uint32(super[ext4LogBlockSize:])
	if exponent > ext4MaxLogBlock {
		return 0, 0, fmt.Errorf("%s: %w: block size 1024 << %d", Ext4, ErrNoSuperblock, exponent)
	}

	blocks := uint64(binary.LittleEndian.Uint32(super[ext4BlocksLow:]))
	if binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4Flag64Bit != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(super[ext4BlocksHigh:])) << 32
	}

	blockSize = ext4MinBlockBytes << exponent
	size, err = multiplySize(Ext4, blocks, uint64(blockSize))

	return size, blockSize, err
}

// lockPath opens and locks what tools are about to write. The tool inherits the
// lock: if the driver is killed while resize2fs goes on, the next driver finds
// ErrInUse instead of starting a second tool beside it. An image attached as a
// loop device is locked in the same way.
func lockPath(ctx context.Context, path string, flag int) (*os.File, error) {
	file, err := openLocked(ctx, path, flag)
	if errors.Is(err, unix.EBADF) {
		// NFS locks exclusively only what is open for writing. For a check a device is not opened so,
		// because udev reads a device again after that.
		file, err = openLocked(ctx, path, os.O_RDWR)
	}

	switch {
	case err == nil:
		return file, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%s is %w: a tool still works on it, or it is attached; try again later", path, ErrInUse)
	default:
		err = fmt.Errorf("lock %s: %w", path, err)
	}

	return nil, err
}

// openLocked opens the file and locks it, where its filesystem has locks.
func openLocked(ctx context.Context, path string, flag int) (*os.File, error) {
	file, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}

	// Several attempts, since udev holds the lock for a moment, as does a child that is just being
	// forked.
	err = fork.RetryWhile(ctx, unix.EWOULDBLOCK, lockAttempts, func() error { return flock.TryLock(file, unix.LOCK_EX) })
	if err == nil || flock.Unsupported(err) {
		return file, nil
	}

	return nil, errors.Join(err, file.Close())
}

// lockAttempts take a quarter of a second.
const lockAttempts = 13

// ioctl returns the kernel's non-negative answer, which some filesystems use
// for errors of their own. The numbers of the requests here are those of the
// architectures with the generic encoding, which is all that Go runs on but
// mips and ppc64.
func ioctl(file *os.File, request uintptr, argument unsafe.Pointer) (uintptr, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(argument))
	if errno != 0 {
		return 0, errno
	}

	return result, nil
}

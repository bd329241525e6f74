package filesystem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

var (
	// ErrUnknown is returned by ByName for a filesystem that is not supported.
	ErrUnknown = errors.New("unknown filesystem")
	// ErrTooSmall is returned by Make for an image below MinimumBytes.
	ErrTooSmall = errdefs.New(errdefs.ErrOutOfRange, "too small for the filesystem")
	// ErrOption is returned by Make for a mkfs option that is not allowed.
	ErrOption = errdefs.New(errdefs.ErrInvalidArgument, "mkfs option is not allowed")
	// ErrInUse is returned where a device is mounted, or a tool is still at work
	// on it.
	ErrInUse = errdefs.New(errdefs.ErrFailedPrecondition, "in use")
	// ErrNoSuperblock is returned by SizeBytes where there is none of this
	// filesystem, or one that makes no sense.
	ErrNoSuperblock = errors.New("no valid superblock")
	// ErrTruncated is returned by CheckFits for a filesystem that is larger than its image.
	ErrTruncated = errdefs.New(errdefs.ErrFailedPrecondition, "its image is shorter than its filesystem: data is lost; restore a snapshot")
	// ErrUnrecognized is returned for an image that has to hold a filesystem, and holds something
	// else, or nothing any more.
	ErrUnrecognized = errdefs.New(errdefs.ErrFailedPrecondition, "it holds no filesystem that is known here")
	// ErrDamaged is returned by GrowUnmounted for a filesystem whose damage the
	// check could not repair, or that the tool itself left inconsistent.
	ErrDamaged = errors.New("filesystem is damaged")
	// ErrGrowLimit is returned by CheckGrowth and GrowUnmounted for a filesystem that cannot
	// become as large.
	ErrGrowLimit = errdefs.New(errdefs.ErrOutOfRange, "filesystem cannot grow so far")
	// ErrGrowRefused is returned by GrowMounted where the kernel does not permit
	// it: ext4 wants CAP_SYS_RESOURCE, and no recorded errors.
	ErrGrowRefused = errdefs.New(errdefs.ErrFailedPrecondition, "kernel does not permit growing while mounted")
	// ErrOtherFilesystem is returned by GrowMounted where something else is
	// mounted, or nothing.
	ErrOtherFilesystem = errors.New("another filesystem is mounted there")
	// ErrNeedsMount is returned by GrowUnmounted of a filesystem that grows only
	// while it is mounted.
	ErrNeedsMount = errors.New("filesystem grows only while it is mounted")
	// ErrUnknownFeatures is returned by checks where the kernel knows features of the
	// filesystem that the tools here do not know.
	ErrUnknownFeatures = errdefs.New(errdefs.ErrFailedPrecondition, "filesystem has features that the tools do not know; update them")
	// ErrToolMissing is what every ToolMissingError is.
	ErrToolMissing = errors.New("tool is not installed")
)

// The names of the filesystems.
const (
	Ext4  = "ext4"
	XFS   = "xfs"
	Btrfs = "btrfs"
)

// Filesystem is one kind of filesystem. All methods are safe for concurrent use
// on different paths.
type Filesystem interface {
	Name() string
	// MinimumBytes is the smallest image or device on which Make succeeds.
	MinimumBytes() int64
	// Make makes a filesystem over the whole of a regular file or device and
	// overwrites what is there. Errors: ErrTooSmall, ErrOption, ErrInUse,
	// ErrToolMissing, or a ToolError.
	Make(ctx context.Context, path string, o MakeOptions) error
	// Check checks an unmounted filesystem and repairs what is safe to repair. The verdict is what
	// it found; an error means that it could not check.
	Check(ctx context.Context, path string) (Verdict, error)
	// ForceCheck is Check of all metadata, even if the superblock says that it is clean.
	ForceCheck(ctx context.Context, path string) (Verdict, error)
	// CheckReadOnly checks all of a filesystem that is not being written, and changes no byte:
	// its verdict is never Repaired. NeedsReplay means that the filesystem has to be mounted with
	// ReplayFlags, completed with FinishReplay and unmounted first.
	CheckReadOnly(ctx context.Context, path string, o ReadOnlyCheckOptions) (Verdict, error)
	// ConsistentWhileWritten says whether what CheckReadOnly finds clean while it is mounted
	// and written is clean.
	ConsistentWhileWritten() bool
	// ReplayFlags are the mount flags for a copy that is mounted only to have its
	// log replayed.
	ReplayFlags() []string
	// FinishReplay completes what the replay of the log leaves undone. The filesystem is mounted for
	// writing at the open directory (O_PATH suffices).
	FinishReplay(mountpoint *os.File) error
	// CopyMetadata takes what CheckReadOnly needs of a filesystem, which has to be at rest
	// until it returns. Complete then makes of that the file target, whose content
	// is replaced: sparse, of the same size, and without any file's data. A damaged
	// filesystem may be a ToolError, or a tool that only ctx ends.
	// errors.ErrUnsupported where there is no such copy.
	CopyMetadata(ctx context.Context, source, target string, o ReadOnlyCheckOptions) (*MetadataCopy, error)
	// GrowMounted lets the filesystem mounted at the open directory (O_PATH
	// suffices) fill its device of deviceBytes. It never shrinks, and does
	// nothing when there is nothing to gain. Error: ErrGrowRefused, or the
	// kernel's.
	GrowMounted(ctx context.Context, mountpoint *os.File, deviceBytes int64) error
	// GrowthSurvivesCrash says whether a growth that is in the log only survives a
	// power failure. Where not, the filesystem has to be unmounted or frozen
	// before the growth is relied on.
	GrowthSurvivesCrash() bool
	// GrowUnmounted lets the filesystem fill its image or device, and does
	// nothing when it does already. Errors: ErrNeedsMount, ErrGrowLimit, ErrDamaged, ErrInUse.
	GrowUnmounted(ctx context.Context, path string) error
	// SetUUID gives an unmounted and sound filesystem the UUID by which the world
	// knows it, and does nothing when it has it. After a crash at any instruction
	// the same call again completes it; until then the filesystem may not mount,
	// nor make sense to Check. Errors: ErrNotClean, ErrInUse, ErrNoSuperblock.
	SetUUID(ctx context.Context, path, uuid string) error
	// HasUUID says whether SetUUID of that UUID has nothing to do. Error:
	// ErrNoSuperblock.
	HasUUID(r io.ReaderAt, uuid string) (bool, error)
	// DuplicateUUIDFlags are the mount flags with which it mounts while another of the
	// same UUID may be mounted.
	DuplicateUUIDFlags() []string
	// SizeBytes returns the size that the superblock records. Error: ErrNoSuperblock.
	SizeBytes(r io.ReaderAt) (int64, error)
}

// CheckFits returns ErrTruncated for a filesystem that is larger than its image of that size. Where
// there is no valid superblock it returns nil: the check of the filesystem finds that.
func CheckFits(fs Filesystem, image io.ReaderAt, imageBytes int64) error {
	size, err := fs.SizeBytes(image)
	if errors.Is(err, ErrNoSuperblock) {
		return nil
	}

	if err != nil || size <= imageBytes {
		return err
	}

	return fmt.Errorf("%w: the %s has %d bytes, the image %d", ErrTruncated, fs.Name(), size, imageBytes)
}

// ReadOnlyCheckOptions are the options of CheckReadOnly.
type ReadOnlyCheckOptions struct {
	// Frozen means that the filesystem is mounted, and frozen or about to be: all
	// that its log is about has been written.
	Frozen bool
	// Urgent means that a caller waits for the result, as writers to a frozen filesystem do.
	// Otherwise the tools run with the lowest priorities.
	Urgent bool
}

// MakeOptions say how Make makes a filesystem.
type MakeOptions struct {
	// BlockSize is the logical block size in bytes of the device that the
	// filesystem will be used on: 4096 (also when 0), or 512.
	BlockSize int
	// NoLazyInit leaves nothing for the kernel to zero after the first mount. That
	// would punch holes into an image which is to keep all of its space.
	NoLazyInit bool
	// Options are further options of the filesystem's mkfs, one word each.
	Options []string
}

const (
	defaultBlockSize = 4096
	smallBlockSize   = 512
)

// State is the outcome of a check.
type State int

// The outcomes of a check.
const (
	// Clean means that nothing was found.
	Clean State = iota
	// Repaired means that everything found has been repaired; mount it.
	Repaired
	// NeedsReplay means that the log has to be replayed before the check: mount it, call
	// FinishReplay, unmount it, check again.
	NeedsReplay
	// Damaged means that there is damage which only an administrator should repair; do not mount
	// it for writing.
	Damaged
)

var stateNames = map[State]string{Clean: "clean", Repaired: "repaired", NeedsReplay: "needs replay", Damaged: "damaged"}

func (s State) String() string {
	if name := stateNames[s]; name != "" {
		return name
	}

	return fmt.Sprintf("State(%d)", int(s))
}

// Verdict is what a check found.
type Verdict struct {
	State State
	// Detail holds the last lines of what the tool said, for people; empty when
	// clean.
	Detail string
}

// CheckReplayed checks a filesystem, and again after replay if its log has to be replayed first. A
// log that is dirty after its replay is NeedsReplay.
func CheckReplayed(check func() (Verdict, error), replay func() error) (Verdict, error) {
	verdict, err := check()
	if err != nil || verdict.State != NeedsReplay {
		return verdict, err
	}

	if err := replay(); err != nil {
		return Verdict{}, err
	}

	return check()
}

// ByName returns a filesystem by its name, working with the tools that run
// starts; nil means NewRunner(). Error: ErrUnknown.
func ByName(name string, run Runner) (Filesystem, error) {
	if run == nil {
		run = NewRunner()
	}

	row, ok := typeByName(name)
	if !ok {
		return nil, fmt.Errorf("%w %q; known are %v", ErrUnknown, name, Names())
	}

	return row.new(run), nil
}

// target is the file that a tool will work on, examined beforehand so that no tool is
// started needlessly.
type target struct {
	sizeBytes int64
	regular   bool
	readOnly  bool
	// isExpectedType means that there is a superblock of the expected filesystem.
	isExpectedType bool
}

func inspect(path, name string) (target, error) {
	file, err := os.Open(path)
	if err != nil {
		return target{}, fmt.Errorf("inspect the filesystem: %w", err)
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return target{}, fmt.Errorf("inspect the filesystem: %w", err)
	}

	t := target{regular: info.Mode().IsRegular()}

	if t.regular {
		t.readOnly = unix.Access(path, unix.W_OK) != nil
	} else if t.readOnly, err = checkUnmounted(path); err != nil {
		return target{}, err
	}

	// Also right for a block device, whose stat says 0.
	if t.sizeBytes, err = file.Seek(0, io.SeekEnd); err != nil {
		return target{}, fmt.Errorf("size of %s: %w", path, err)
	}

	found, err := Detect(file)
	if err != nil {
		return target{}, err
	}

	t.isExpectedType = found == name

	return t, nil
}

// inspectForCheck inspects what is to be checked. The verdict is Damaged, and there is nothing for a
// tool to check, if it has no superblock of the filesystem.
func inspectForCheck(path, name string) (target, Verdict, error) {
	t, err := inspect(path, name)
	if err != nil || t.isExpectedType {
		return t, Verdict{}, err
	}

	return t, Verdict{State: Damaged, Detail: "there is no " + name + " superblock"}, nil
}

// checkUnmounted returns ErrInUse for a mounted device, and whether the device is read-only. The
// tools refuse mounted devices too, but distinguish that from damage only in their messages.
//
//nolint:contextcheck,nolintlint // it retries for half a second at most
func checkUnmounted(path string) (readOnly bool, err error) {
	var file *os.File

	err = fork.RetryWhile(context.Background(), unix.EBUSY, busyAttempts, func() (err error) {
		file, err = os.OpenFile(path, os.O_RDONLY|unix.O_EXCL, 0)

		return err
	})
	if errors.Is(err, unix.EBUSY) {
		return false, fmt.Errorf("%s is %w: unmount it first", path, ErrInUse)
	}

	if err != nil {
		return false, fmt.Errorf("open the device: %w", err)
	}
	defer file.Close()

	// A read-only device may well be opened for writing.
	flag, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKROGET)
	if err != nil {
		return false, fmt.Errorf("BLKROGET of %s: %w", path, err)
	}

	return flag != 0, nil
}

// busyAttempts are for a child that this process has forked, for a tool that works on another
// volume: until its exec it keeps a mount that was just closed (internal/linux/fork). For other
// programs that open a device, as udev does, the attempts take half a second.
const busyAttempts = 21

// mkfs is what Make is for all of them. arguments returns those of the program for a sector size and the
// options of the user.
func mkfs(ctx context.Context, run Runner, fs Filesystem, path string, o MakeOptions,
	arguments func(sector int, options []option) []string,
) (err error) {
	row, _ := typeByName(fs.Name())

	sector := cmp.Or(o.BlockSize, defaultBlockSize)
	if sector != defaultBlockSize && sector != smallBlockSize {
		return fmt.Errorf("%w: block size %d is neither 512 nor 4096 bytes", ErrOption, o.BlockSize)
	}

	options, err := row.mkfsOptions.parse(o.Options)
	if err != nil {
		return err
	}

	t, err := inspect(path, fs.Name())
	if err != nil {
		return err
	}

	if t.sizeBytes < fs.MinimumBytes() {
		return fmt.Errorf("%s of %d bytes is %w: %s needs %d bytes",
			path, t.sizeBytes, ErrTooSmall, fs.Name(), fs.MinimumBytes())
	}

	// "--" keeps a path that starts with a dash from being an option.
	command := Command{Tool: row.tools[0], Package: row.debianPackage, Args: append(arguments(sector, options), "--", path)}

	defer errdefs.Wrapf(&err, "make %s on %s", fs.Name(), path)

	if err := runTool(ctx, run, command); err != nil {
		return err
	}

	if t, err = inspect(path, fs.Name()); err != nil || t.isExpectedType {
		return err
	}

	// An option may have made the tool end content with having done nothing.
	return fmt.Errorf("%w: %s says it succeeded, and made none; check the options", ErrNoSuperblock, command.Tool)
}

// openMounted opens a mount point, which may have been opened with O_PATH, for ioctls. It guards
// against an ioctl meant for one filesystem reaching another because something else is mounted
// there by now.
func openMounted(mountpoint *os.File, magic int64, name string) (directory *os.File, blockSize int64, err error) {
	descriptor, err := unix.Openat(int(mountpoint.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open mount point %s: %w", mountpoint.Name(), err)
	}

	var stat unix.Statfs_t

	err = unix.Fstatfs(descriptor, &stat)
	if err != nil {
		err = fmt.Errorf("statfs %s: %w", mountpoint.Name(), err)
	} else if int64(stat.Type) != magic { //nolint:unconvert // its type depends on the architecture
		err = fmt.Errorf("grow %s: %w than %s: type %#x", mountpoint.Name(), ErrOtherFilesystem, name, stat.Type)
	}

	if err != nil {
		return nil, 0, errors.Join(err, unix.Close(descriptor))
	}

	return os.NewFile(uintptr(descriptor), mountpoint.Name()), int64(stat.Bsize), nil //nolint:unconvert // as above
}

// growError returns nil for nil.
func growError(mountpoint *os.File, deviceBytes int64, request string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("%w (ext4 wants CAP_SYS_RESOURCE and no recorded errors, xfs and btrfs want CAP_SYS_ADMIN): %w",
			ErrGrowRefused, err)
	}

	return fmt.Errorf("grow %s to %d bytes: %s: %w", mountpoint.Name(), deviceBytes, request, err)
}

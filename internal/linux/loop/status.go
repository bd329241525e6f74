package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Status is what the kernel says about an attached loop device.
type Status struct {
	Number int
	// Path is the device's node.
	Path string
	// BackingDevice and BackingInode identify the image.
	BackingDevice, BackingInode uint64
	// BackingPath is the image's present path, from sysfs.
	BackingPath string
	// BackingDeleted is true when no name leads to the image any more.
	BackingDeleted bool
	// AttachedAs is the name without a path that the image had when a Loops
	// attached it, whatever it is called by now; other programs may leave it empty.
	AttachedAs string
	// SizeBytes is the device's size, and the image's at the time of the attach
	// or of the last resize.
	SizeBytes int64
	// BlockSize is the logical block size in bytes.
	BlockSize                     int
	ReadOnly, AutoClear, DirectIO bool
	// Sequence distinguishes attachments of the same number (diskseq); 0 on a
	// kernel before 5.15.
	Sequence uint64

	offset, limit uint64
}

// Backing returns the identity of the image.
func (s *Status) Backing() Identity {
	return Identity{Device: s.BackingDevice, Inode: s.BackingInode}
}

// Status returns the state of a number, false when no image is attached to it.
func (l *Loops) Status(number int) (Status, bool, error) {
	// Asking sysfs first, since opening a node whose device is not there would
	// make one.
	if !l.attached(number) {
		return Status{}, false, nil
	}

	file, err := l.openForStatus(number)
	if err != nil {
		if l.detachedSince(number, err) {
			return Status{}, false, nil
		}

		return Status{}, false, &NumberError{Number: number, Op: opOpen, Err: err}
	}
	defer file.Close()

	return l.statusOf(file, number)
}

// BasicStatus is the part of a Status that needs no sysfs, at a fourth of the cost.
type BasicStatus struct {
	// Backing is the image, and SizeBytes the device's size.
	Backing   Identity
	SizeBytes int64
	DirectIO  bool
	// Sequence is as in Status.
	Sequence uint64
}

// BasicStatus returns those of a number, false when no image is attached to it. As
// Status it waits for an image whose filesystem hangs.
func (l *Loops) BasicStatus(number int) (BasicStatus, bool, error) {
	if !l.attached(number) {
		return BasicStatus{}, false, nil
	}

	file, err := l.openForStatus(number)
	if err != nil {
		if l.detachedSince(number, err) {
			return BasicStatus{}, false, nil
		}

		return BasicStatus{}, false, &NumberError{Number: number, Op: opOpen, Err: err}
	}
	defer file.Close()

	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return BasicStatus{}, false, nil
	}

	if err != nil {
		return BasicStatus{}, false, &NumberError{Number: number, Op: opGetStatus, Err: fmt.Errorf("%w: %w", ErrBackingUnresponsive, err)}
	}

	size, err := deviceSize(file)
	if err != nil {
		return BasicStatus{}, false, &NumberError{Number: number, Op: "read the size of", Err: err}
	}

	sequence, err := deviceSequence(file)
	if err != nil {
		return BasicStatus{}, false, &NumberError{Number: number, Op: "identify", Err: err}
	}

	return BasicStatus{
		Backing: Identity{Device: info.Device, Inode: info.Inode}, SizeBytes: size,
		DirectIO: info.Flags&unix.LO_FLAGS_DIRECT_IO != 0, Sequence: sequence,
	}, true, nil
}

// Find returns the devices to which this image is attached. It reads the state of every loop device
// of the machine, so it is for the driver's start and rare cases.
func (l *Loops) Find(image *os.File) ([]Status, error) {
	identity, err := IdentityOf(image)
	if err != nil {
		return nil, err
	}

	return l.find(image, identity)
}

// find asks those devices only that can have the image.
func (l *Loops) find(image *os.File, identity Identity) ([]Status, error) {
	alike, err := matchBackingName(image)
	if err != nil {
		return nil, err
	}

	list, err := l.statusesWhere(alike)

	return slices.DeleteFunc(list, func(s Status) bool { return s.Backing() != identity }), err
}

// matchBackingName returns a filter by the backing file's name in sysfs: a device can have this
// image if the names are equal, or if its backing file is deleted. The filter comes first because
// LOOP_GET_STATUS64 asks the image's filesystem, and an unrelated one that hangs would block every
// attach.
func matchBackingName(image *os.File) (func(path string, deleted bool) bool, error) {
	name, err := uniqueName(image)
	if err != nil {
		return nil, err
	}

	return func(path string, deleted bool) bool {
		return name == "" || deleted || filepath.Base(path) == name
	}, nil
}

// List returns the attached loop devices of the machine in order of number, without
// those whose image's filesystem is gone. It waits for one that hangs.
func (l *Loops) List() ([]Status, error) {
	return l.statusesWhere(func(string, bool) bool { return true })
}

// statusesWhere returns the state of those devices whose image, by what sysfs says of its name, is
// to be asked.
func (l *Loops) statusesWhere(whether func(path string, deleted bool) bool) ([]Status, error) {
	numbers, err := l.allNumbers()
	if err != nil {
		return nil, err
	}

	var list []Status

	for _, number := range numbers {
		path, deleted, err := l.backingPath(number)
		if err != nil {
			return nil, err
		}

		if path == "" || !whether(path, deleted) {
			continue
		}

		status, attached, err := l.Status(number)

		// Not an error: the filesystem of an unrelated image may be gone.
		if errors.Is(err, ErrBackingUnresponsive) {
			continue
		}

		if err != nil {
			return nil, err
		}

		if attached {
			list = append(list, status)
		}
	}

	return list, nil
}

// uniqueName returns the name, without a path, that the file has now, or "" when it may
// have others, too. A device reports the one by which its image was opened, and follows
// when that is renamed.
func uniqueName(file *os.File) (string, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return "", fmt.Errorf("stat %s: %w", file.Name(), err)
	}

	if stat.Nlink > 1 {
		return "", nil
	}

	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	if err != nil {
		return "", fmt.Errorf("find the name of %s: %w", file.Name(), err)
	}

	path, _ = strings.CutSuffix(path, deletedSuffix)

	return filepath.Base(path), nil
}

// Attachment is what can be said about an attached loop device without asking
// its image.
type Attachment struct {
	Number int
	// Path is the device's node.
	Path string
	// BackingPath and BackingDeleted are as in Status.
	BackingPath    string
	BackingDeleted bool
	// ReadOnly and AutoClear are as in Status.
	ReadOnly, AutoClear bool
	// Sequence is as in Status.
	Sequence uint64
}

// Attachment returns what is attached to a number, false for nothing. Other than
// Status it does not wait for an image whose filesystem hangs. An error says that
// it is unknown whether an image is attached: that sysfs could not be read, for
// lack of a descriptor for example.
func (l *Loops) Attachment(number int) (Attachment, bool, error) {
	path, deleted, err := l.backingPath(number)
	if err != nil || path == "" {
		return Attachment{}, false, err
	}

	readOnly, err := l.sysfs(number, "ro")
	if err != nil {
		return Attachment{}, false, err
	}

	autoClear, err := l.sysfs(number, "loop/autoclear")
	if err != nil {
		return Attachment{}, false, err
	}

	sequence, err := l.sequence(number)
	if err != nil {
		return Attachment{}, false, err
	}

	return Attachment{
		Number: number, Path: l.Path(number), BackingPath: path, BackingDeleted: deleted,
		ReadOnly: readOnly == "1", AutoClear: autoClear == "1", Sequence: sequence,
	}, true, nil
}

// Attachments returns those of the whole machine in order of number.
func (l *Loops) Attachments() ([]Attachment, error) {
	numbers, err := l.allNumbers()
	if err != nil {
		return nil, err
	}

	var all []Attachment

	for _, number := range numbers {
		attachment, attached, err := l.Attachment(number)
		if err != nil {
			return nil, err
		}

		if attached {
			all = append(all, attachment)
		}
	}

	return all, nil
}

// allNumbers returns those of the loop devices that the machine has, in order.
func (l *Loops) allNumbers() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(l.sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}

	var numbers []int

	for _, entry := range entries {
		digits, isLoop := strings.CutPrefix(entry.Name(), "loop")
		if number, err := strconv.Atoi(digits); isLoop && err == nil {
			numbers = append(numbers, number)
		}
	}

	slices.Sort(numbers)

	return numbers, nil
}

// openForStatus only reads, and where the node is missing makes none in the
// kernel: the caller has seen the device in sysfs.
func (l *Loops) openForStatus(number int) (*os.File, error) {
	return l.openOrMake(nodeName(number), unix.Mkdev(loopMajor, uint32(number)), unix.S_IFBLK, os.O_RDONLY)
}

func (l *Loops) statusOf(file *os.File, number int) (Status, bool, error) {
	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return Status{}, false, nil
	}

	if err != nil {
		return Status{}, false, &NumberError{Number: number, Op: opGetStatus, Err: fmt.Errorf("%w: %w", ErrBackingUnresponsive, err)}
	}

	size, err := deviceSize(file)
	if err != nil {
		return Status{}, false, &NumberError{Number: number, Op: "read the size of", Err: err}
	}

	blockSize, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKSSZGET)
	if err != nil {
		return Status{}, false, &NumberError{Number: number, Op: "BLKSSZGET of", Err: err}
	}

	sequence, err := l.sequence(number)
	if err != nil {
		return Status{}, false, err
	}

	status := Status{
		Number:        number,
		Path:          file.Name(),
		BackingDevice: info.Device,
		BackingInode:  info.Inode,
		SizeBytes:     size,
		BlockSize:     blockSize,
		ReadOnly:      info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		AutoClear:     info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		DirectIO:      l.directIO(number, info),
		Sequence:      sequence,
		AttachedAs:    unix.ByteSliceToString(info.File_name[:]),
		offset:        info.Offset,
		limit:         info.Sizelimit,
	}
	status.BackingPath, status.BackingDeleted, err = l.backingPath(number)

	return status, true, err
}

// sysfs returns the content of one of the device's attributes, "" where the kernel
// says that the device, or the attribute, does not exist. Any other failure says
// nothing about the device and is an error.
func (l *Loops) sysfs(number int, attribute string) (string, error) {
	content, err := os.ReadFile(filepath.Join(l.sys, "block", nodeName(number), attribute))

	switch {
	case isMissing(err):
		return "", nil
	case err != nil:
		return "", &NumberError{Number: number, Op: "read in sysfs about", Err: err}
	default:
		return strings.TrimSuffix(string(content), "\n"), nil
	}
}

// detachedSince says whether a device could not be opened because nothing is attached to
// the number any more. A missing node alone does not say that.
func (l *Loops) detachedSince(number int, err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || !l.attached(number)
}

// attached is true, too, where it is unknown.
func (l *Loops) attached(number int) bool {
	_, err := os.Lstat(filepath.Join(l.sys, "block", nodeName(number), "loop"))

	return !errors.Is(err, fs.ErrNotExist)
}

// deletedSuffix is what the kernel adds to the path of a file that has no name any more.
const deletedSuffix = " (deleted)"

// backingPath is "" where nothing is attached. It comes from sysfs because
// LOOP_GET_STATUS64 cuts it at 64 bytes and does not follow a rename.
func (l *Loops) backingPath(number int) (path string, deleted bool, err error) {
	path, err = l.sysfs(number, "loop/backing_file")
	path, deleted = strings.CutSuffix(path, deletedSuffix)

	return path, deleted, err
}

// directIO is read back because the kernel turns it off without an error where
// the pool's filesystem or the block size does not allow it.
func (l *Loops) directIO(number int, info *unix.LoopInfo64) bool {
	dio, err := l.sysfs(number, "loop/dio")
	if err != nil || dio == "" {
		return info.Flags&unix.LO_FLAGS_DIRECT_IO != 0
	}

	return dio == "1"
}

// sequence is 0 where the kernel has none, or the device does not exist.
func (l *Loops) sequence(number int) (uint64, error) {
	content, err := l.sysfs(number, "diskseq")
	if err != nil || content == "" {
		return 0, err
	}

	sequence, err := strconv.ParseUint(content, 10, 64)
	if err != nil {
		return 0, &NumberError{Number: number, Op: "read in sysfs about", Err: err}
	}

	return sequence, nil
}

func deviceSize(device *os.File) (int64, error) {
	var size uint64

	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, fmt.Errorf("BLKGETSIZE64 of %s: %w", device.Name(), errno)
	}

	return int64(size), nil
}

// deviceSequence returns 0 on a kernel before 5.15, which does not know the ioctl.
func deviceSequence(device *os.File) (uint64, error) {
	const blkGetDiskSeq = 0x80081280

	var sequence uint64

	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), blkGetDiskSeq, uintptr(unsafe.Pointer(&sequence)))
	switch errno {
	case 0:
		return sequence, nil
	case unix.ENOTTY, unix.EINVAL:
		return 0, nil
	default:
		return 0, fmt.Errorf("BLKGETDISKSEQ of %s: %w", device.Name(), errno)
	}
}

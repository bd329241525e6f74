package loop

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Status is what an attached loop device reports about itself. BackingPath and BackingDeleted are
// in Attachment only.
type Status struct {
	Number int
	// Path is the device's node.
	Path string
	// Backing is the image.
	Backing Identity
	// AttachedAs is the name without a path that the image had when a Loops
	// attached it, whatever it is called by now; other programs may leave it empty.
	AttachedAs string
	// SizeBytes is the device's size, and the image's at the time of the attach
	// or of the last resize.
	SizeBytes int64
	// BlockSize is the logical block size in bytes.
	BlockSize           int
	ReadOnly, AutoClear bool
	// DirectIO is false where the pool's filesystem or the block size allows only buffered I/O,
	// whatever was asked for.
	DirectIO bool
	// Sequence distinguishes attachments of the same number (diskseq); 0 on a
	// kernel before 5.15.
	Sequence uint64

	offset, limit uint64
}

// Status returns the state of a number, false when no image is attached to it. It waits for an
// image whose filesystem hangs, and returns ErrBackingUnresponsive for one whose filesystem is
// gone: the kernel asks the filesystem for the image's attributes.
func (l *Loops) Status(number int) (Status, bool, error) {
	file, err := l.openAttached(number)
	if file == nil {
		return Status{}, false, err
	}
	defer file.Close()

	return l.statusOf(file, number)
}

// openAttached opens an attached device for reading, nil where no image is attached. While the file is open
// another image can't be attached to the number.
func (l *Loops) openAttached(number int) (*os.File, error) {
	// Asking sysfs first, since opening a node whose device is not there would
	// make one.
	if !l.sysfs.attached(number) {
		return nil, nil //nolint:nilnil // documented
	}

	// Where the node is missing it is made, but no device in the kernel.
	file, err := l.nodes.openOrMake(Name(number), unix.Mkdev(Major, uint32(number)), unix.S_IFBLK, os.O_RDONLY)
	if err != nil {
		if l.sysfs.detachedSince(number, err) {
			return nil, nil //nolint:nilnil // documented
		}

		return nil, numberError(opOpen, number, err)
	}

	return file, nil
}

// statusOf reads the state of an open device, false when no image is attached to it.
func (l *Loops) statusOf(file *os.File, number int) (Status, bool, error) {
	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return Status{}, false, nil
	}

	if err != nil {
		return Status{}, false, numberError("LOOP_GET_STATUS64 of", number, fmt.Errorf("%w: %w", ErrBackingUnresponsive, err))
	}

	size, err := deviceSize(file)
	if err != nil {
		return Status{}, false, numberError("read the size of", number, err)
	}

	blockSize, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKSSZGET)
	if err != nil {
		return Status{}, false, numberError("BLKSSZGET of", number, err)
	}

	// The open file keeps the device, so sysfs describes this one.
	sequence, err := l.sysfs.sequence(number)
	if err != nil {
		return Status{}, false, err
	}

	return Status{
		Number:     number,
		Path:       file.Name(),
		Backing:    Identity{Device: info.Device, Inode: info.Inode},
		AttachedAs: unix.ByteSliceToString(info.File_name[:]),
		SizeBytes:  size,
		BlockSize:  blockSize,
		ReadOnly:   info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		AutoClear:  info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		DirectIO:   info.Flags&unix.LO_FLAGS_DIRECT_IO != 0,
		Sequence:   sequence,
		offset:     info.Offset,
		limit:      info.Sizelimit,
	}, true, nil
}

// Find returns the devices to which this image is attached. It reads the backing file's name of
// every loop device of the machine, so it is for the driver's start and rare cases.
func (l *Loops) Find(image *os.File) ([]Status, error) {
	wanted, err := matchOf(image)
	if err != nil {
		return nil, err
	}

	numbers, err := l.sysfs.numbers()
	if err != nil {
		return nil, err
	}

	var found []Status

	for _, number := range numbers {
		status, isImage, err := l.statusIfMatch(number, wanted)
		if err != nil {
			return nil, err
		}

		if isImage {
			found = append(found, status)
		}
	}

	return found, nil
}

// backingMatch recognizes the devices of one image.
type backingMatch struct {
	identity Identity
	// name is the only name of the image, without a path, or "" when it may have others, too.
	name string
}

// matchOf reads the name that the image has now: a device reports the one by which its image was
// opened, and follows when that is renamed.
func matchOf(image *os.File) (backingMatch, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &stat); err != nil {
		return backingMatch{}, fmt.Errorf("stat %s: %w", image.Name(), err)
	}

	match := backingMatch{identity: Identity{Device: stat.Dev, Inode: stat.Ino}}
	if stat.Nlink > 1 {
		return match, nil
	}

	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(image.Fd())))
	if err != nil {
		return backingMatch{}, fmt.Errorf("find the name of %s: %w", image.Name(), err)
	}

	match.name = filepath.Base(strings.TrimSuffix(path, deletedSuffix))

	return match, nil
}

// statusIfMatch returns the state of a number that this image is attached to, else false. It
// compares the backing file's name in sysfs first: a device can have the image if the names are
// equal, or if its backing file is deleted. LOOP_GET_STATUS64 asks the image's filesystem, and an
// unrelated one that hangs would block every attach.
func (l *Loops) statusIfMatch(number int, wanted backingMatch) (Status, bool, error) {
	path, deleted, err := l.sysfs.backingPath(number)
	if err != nil || path == "" || wanted.name != "" && !deleted && filepath.Base(path) != wanted.name {
		return Status{}, false, err
	}

	status, attached, err := l.Status(number)
	if errors.Is(err, ErrBackingUnresponsive) {
		return Status{}, false, nil // this image's filesystem does answer
	}

	return status, attached && status.Backing == wanted.identity, err
}

// Attachment is what can be said about an attached loop device without asking
// its image.
type Attachment struct {
	Number int
	// Path is the device's node.
	Path string
	// BackingPath is the image's present path.
	BackingPath string
	// BackingDeleted is true when no name leads to the image any more.
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
	path, deleted, err := l.sysfs.backingPath(number)
	if err != nil || path == "" {
		return Attachment{}, false, err
	}

	readOnly, readOnlyErr := l.sysfs.read(number, "ro")
	autoClear, autoClearErr := l.sysfs.read(number, "loop/autoclear")
	sequence, sequenceErr := l.sysfs.sequence(number)

	if err := cmp.Or(readOnlyErr, autoClearErr, sequenceErr); err != nil {
		return Attachment{}, false, err
	}

	return Attachment{
		Number: number, Path: l.nodes.path(number), BackingPath: path, BackingDeleted: deleted,
		ReadOnly: readOnly == "1", AutoClear: autoClear == "1", Sequence: sequence,
	}, true, nil
}

// Attachments returns those of the whole machine in order of number.
func (l *Loops) Attachments() ([]Attachment, error) {
	numbers, err := l.sysfs.numbers()
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

// deviceSize moves the offset of the file; reads and writes of a device give their own.
func deviceSize(device *os.File) (int64, error) { return device.Seek(0, io.SeekEnd) }

package btrfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// IsFilesystem reports whether an open directory is on a btrfs.
func IsFilesystem(directory *os.File) (bool, error) {
	var found unix.Statfs_t
	if err := unix.Fstatfs(int(directory.Fd()), &found); err != nil {
		return false, fmt.Errorf("statfs %s: %w", directory.Name(), err)
	}

	return found.Type == unix.BTRFS_SUPER_MAGIC, nil
}

// IsSubvolume reports whether an open directory is the root of a subvolume.
func IsSubvolume(directory *os.File) (bool, error) {
	var found unix.Stat_t
	if err := unix.Fstat(int(directory.Fd()), &found); err != nil {
		return false, fmt.Errorf("stat %s: %w", directory.Name(), err)
	}

	if found.Ino != firstFree || found.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, nil
	}

	return IsFilesystem(directory)
}

// UUID returns the id of the filesystem, which is its name in sysfs.
func UUID(directory *os.File) (string, error) {
	var info fsInfoArgs
	if err := ioctl(directory, iocFSInfo, "BTRFS_IOC_FS_INFO", &info); err != nil {
		return "", err
	}

	return uuid.UUID(info.fsid).String(), nil
}

// ID returns the id of the subvolume that contains a directory.
func ID(directory *os.File) (uint64, error) {
	lookup := inoLookupArgs{object: firstFree}
	if err := ioctl(directory, iocInoLookup, "BTRFS_IOC_INO_LOOKUP", &lookup); err != nil {
		return 0, err
	}

	return lookup.tree, nil
}

// Create makes an empty subvolume. It is durable. Errors: fs.ErrExist.
func Create(parent *os.File, name string) error {
	var arguments volumeArgs
	if err := setName(arguments.name[:], name); err != nil {
		return err
	}

	return ioctl(parent, iocSubvolCreateV2, "BTRFS_IOC_SUBVOL_CREATE_V2 "+name, &arguments)
}

// Snapshot makes a writable snapshot of a subvolume. It is durable. It does not contain the
// subvolumes inside of the source: an empty directory has the name of each. Errors: fs.ErrExist.
func Snapshot(source, parent *os.File, name string) error {
	arguments := volumeArgs{fd: int64(source.Fd())}
	if err := setName(arguments.name[:], name); err != nil {
		return err
	}

	return ioctl(parent, iocSnapCreateV2, "BTRFS_IOC_SNAP_CREATE_V2 "+name, &arguments)
}

// SetReadOnly makes a subvolume unwritable, or writable again, durably. A subvolume that is
// unwritable cannot be renamed.
func SetReadOnly(subvolume *os.File, readOnly bool) error {
	var flags uint64
	if err := ioctl(subvolume, iocSubvolGetFlags, "BTRFS_IOC_SUBVOL_GETFLAGS", &flags); err != nil {
		return err
	}

	changed := flags &^ subvolReadOnly
	if readOnly {
		changed |= subvolReadOnly
	}

	return ioctl(subvolume, iocSubvolSetFlags, "BTRFS_IOC_SUBVOL_SETFLAGS", &changed)
}

// Destroy removes a subvolume with its content. It returns ENOTEMPTY if another subvolume is inside.
// The kernel frees the space in the background.
func Destroy(parent *os.File, name string) error {
	var arguments destroyArgs
	if err := setName(arguments.name[:], name); err != nil {
		return err
	}

	return ioctl(parent, iocSnapDestroy, "BTRFS_IOC_SNAP_DESTROY "+name, &arguments)
}

// DestroyAll removes a subvolume and all subvolumes inside, also of one that is unwritable.
func DestroyAll(parent *os.File, name string, id uint64) error {
	err := Destroy(parent, name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}

	inside, err := AllInside(parent, id)
	if err != nil {
		return err
	}

	// What is inside of an unwritable subvolume cannot be removed. The innermost are removed first.
	for _, each := range inside {
		if err := makeWritable(parent, each); err != nil {
			return err
		}
	}

	for _, each := range slices.Backward(inside) {
		if err := destroyID(parent, each); err != nil {
			return err
		}
	}

	return Destroy(parent, name)
}

func makeWritable(directory *os.File, id uint64) error {
	subvolume, err := openID(directory, id)
	if err != nil {
		return err
	}
	defer subvolume.Close()

	return SetReadOnly(subvolume, false)
}

// openID opens the root of a subvolume wherever it is in the filesystem of directory, without a path,
// which its owner could change. It needs CAP_DAC_READ_SEARCH.
func openID(directory *os.File, id uint64) (*os.File, error) {
	// struct btrfs_fid: the inode, the subvolume, and a generation of which 0 is any.
	handle := binary.NativeEndian.AppendUint64(nil, firstFree)
	handle = binary.NativeEndian.AppendUint64(handle, id)
	handle = binary.NativeEndian.AppendUint32(handle, 0)

	name := fmt.Sprintf("subvolume %d of %s", id, directory.Name())

	var file int

	err := eintr.Control(directory, func(descriptor int) (err error) {
		file, err = unix.OpenByHandleAt(descriptor, unix.NewFileHandle(fileHandle, handle), unix.O_RDONLY|unix.O_DIRECTORY)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open_by_handle_at %s: %w", name, err)
	}

	return os.NewFile(uintptr(file), name), nil
}

func destroyID(directory *os.File, id uint64) error {
	arguments := volumeArgs{flags: subvolByID}
	binary.NativeEndian.PutUint64(arguments.name[:], id)

	return ioctl(directory, iocSnapDestroyV2, fmt.Sprintf("BTRFS_IOC_SNAP_DESTROY_V2 %d", id), &arguments)
}

// Inside returns the ids of the subvolumes that are directly inside of one.
func Inside(directory *os.File, id uint64) ([]uint64, error) {
	var ids []uint64

	err := search(directory, rootTree, rootRef, id, id, func(found itemKey, _ []byte) { ids = append(ids, found.offset) })

	return ids, err
}

// AllInside returns the ids of the subvolumes inside of one, each before those that are inside of it.
func AllInside(directory *os.File, id uint64) ([]uint64, error) {
	all := []uint64{id}

	for next := 0; next < len(all); next++ {
		inside, err := Inside(directory, all[next])
		if err != nil {
			return nil, err
		}

		all = append(all, inside...)
	}

	return all[1:], nil
}

// Place is where a subvolume is.
type Place struct {
	// Outer is the id of the subvolume in which it is.
	Outer uint64
	// Name is the last element of its path.
	Name string
}

// PlaceOf returns where a subvolume is. It returns false for one that is being made or removed, and
// for the outermost.
func PlaceOf(directory *os.File, id uint64) (place Place, found bool, err error) {
	err = search(directory, rootTree, rootBackref, id, id, func(at itemKey, data []byte) {
		// struct btrfs_root_ref: the inode of its directory, a sequence, the length of the name, the name.
		place, found = Place{Outer: at.offset, Name: string(data[18:])}, true
	})

	return place, found, err
}

// From returns the ids of the subvolumes from one on, in their order, which is that in which they were
// made.
func From(directory *os.File, id uint64) ([]uint64, error) {
	var ids []uint64

	err := search(directory, rootTree, rootItem, id, lastFree, func(found itemKey, _ []byte) { ids = append(ids, found.object) })

	return ids, err
}

// Exists reports whether a subvolume exists, also one that the kernel has not removed completely.
func Exists(directory *os.File, id uint64) (bool, error) {
	exists := false

	err := search(directory, rootTree, rootItem, id, id, func(itemKey, []byte) { exists = true })

	return exists, err
}

// Commit makes durable what earlier calls have changed: it ends the current transaction. Unlike
// syncfs it writes no file's data.
func Commit(directory *os.File) error {
	var transaction uint64
	if err := ioctl(directory, iocStartSync, "BTRFS_IOC_START_SYNC", &transaction); err != nil {
		return err
	}

	return ioctl(directory, iocWaitSync, "BTRFS_IOC_WAIT_SYNC", &transaction)
}

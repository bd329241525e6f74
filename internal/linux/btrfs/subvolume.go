package btrfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
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

// DestroyAll removes a subvolume and all subvolumes inside.
func DestroyAll(parent *os.File, name string, id uint64) error {
	err := Destroy(parent, name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}

	if err := destroyInside(parent, id); err != nil {
		return err
	}

	return Destroy(parent, name)
}

// destroyInside removes the subvolumes inside of one, the innermost first.
func destroyInside(directory *os.File, id uint64) error {
	pending := []uint64{id}

	for len(pending) > 0 {
		last := pending[len(pending)-1]

		inside, err := Inside(directory, last)
		if err != nil {
			return err
		}

		if len(inside) > 0 {
			pending = append(pending, inside...)

			continue
		}

		pending = pending[:len(pending)-1]
		if last == id {
			continue
		}

		if err := destroyID(directory, last); err != nil {
			return err
		}
	}

	return nil
}

func destroyID(directory *os.File, id uint64) error {
	arguments := volumeArgs{flags: subvolByID}
	binary.NativeEndian.PutUint64(arguments.name[:], id)

	return ioctl(directory, iocSnapDestroyV2, fmt.Sprintf("BTRFS_IOC_SNAP_DESTROY_V2 %d", id), &arguments)
}

// Inside returns the ids of the subvolumes that are directly inside of one.
func Inside(directory *os.File, id uint64) ([]uint64, error) {
	var ids []uint64

	err := search(directory, rootTree, itemKey{id, rootRef, 0}, itemKey{id, rootRef, maxOffset}, func(found itemKey, _ []byte) {
		ids = append(ids, found.offset)
	})

	return ids, err
}

// Exists reports whether a subvolume exists, also one that the kernel has not removed completely.
func Exists(directory *os.File, id uint64) (bool, error) {
	exists := false

	err := search(directory, rootTree, itemKey{id, rootItem, 0}, itemKey{id, rootItem, maxOffset}, func(itemKey, []byte) { exists = true })

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

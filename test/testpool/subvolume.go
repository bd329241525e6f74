package testpool

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
)

// MakeSubvolume makes a subvolume in a directory as a member of the quota groups only, and not of the
// directory's. A limit above 0 is that of its own group.
func MakeSubvolume(directory, name string, limit uint64, groups ...btrfs.Group) error {
	const (
		subvolCreateV2 = 0x50009418 // BTRFS_IOC_SUBVOL_CREATE_V2
		qgroupInherit  = 1 << 2     // BTRFS_SUBVOL_QGROUP_INHERIT
	)

	// struct btrfs_qgroup_inherit, with space for some groups.
	inherit := struct {
		flags, count, _, _  uint64
		limits, maxReferred uint64
		_                   [3]uint64
		groups              [8]btrfs.Group
	}{count: uint64(len(groups))}
	copy(inherit.groups[:], groups)

	if limit > 0 {
		inherit.flags, inherit.limits, inherit.maxReferred = 1, 1, limit
	}

	arguments := struct { // struct btrfs_ioctl_vol_args_v2
		_, _, flags, size uint64
		inherit           unsafe.Pointer
		_                 [2]uint64
		name              [4040]byte
	}{flags: qgroupInherit, inherit: unsafe.Pointer(&inherit)}
	arguments.size = uint64(unsafe.Offsetof(inherit.groups)) + 8*inherit.count
	copy(arguments.name[:], name)

	parent, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)

	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(parent), subvolCreateV2, uintptr(unsafe.Pointer(&arguments))); errno != 0 {
		return errno
	}

	return nil
}

package btrfs

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// The requests of include/uapi/linux/btrfs.h, as _IO, _IOR, _IOW and _IOWR make them of the type
// 0x94, a number and the size of the argument.
const (
	iocSnapDestroy    = 0x5000940f // _IOW(15, struct btrfs_ioctl_vol_args)
	iocTreeSearch     = 0xd0009411 // _IOWR(17, struct btrfs_ioctl_search_args)
	iocInoLookup      = 0xd0009412 // _IOWR(18, struct btrfs_ioctl_ino_lookup_args)
	iocWaitSync       = 0x40089416 // _IOW(22, __u64)
	iocSnapCreateV2   = 0x50009417 // _IOW(23, struct btrfs_ioctl_vol_args_v2)
	iocStartSync      = 0x80089418 // _IOR(24, __u64)
	iocSubvolCreateV2 = 0x50009418 // _IOW(24, struct btrfs_ioctl_vol_args_v2)
	iocSubvolGetFlags = 0x80089419 // _IOR(25, __u64)
	iocSubvolSetFlags = 0x4008941a // _IOW(26, __u64)
	iocFSInfo         = 0x8400941f // _IOR(31, struct btrfs_ioctl_fs_info_args)
	iocQuotaCtl       = 0xc0109428 // _IOWR(40, struct btrfs_ioctl_quota_ctl_args)
	iocQgroupAssign   = 0x40189429 // _IOW(41, struct btrfs_ioctl_qgroup_assign_args)
	iocQgroupCreate   = 0x4010942a // _IOW(42, struct btrfs_ioctl_qgroup_create_args)
	iocQgroupLimit    = 0x8030942b // _IOR(43, struct btrfs_ioctl_qgroup_limit_args)
	iocSnapDestroyV2  = 0x5000943f // _IOW(63, struct btrfs_ioctl_vol_args_v2)
)

const (
	// firstFree is BTRFS_FIRST_FREE_OBJECTID: the inode number of the root of each subvolume, and the
	// lowest id of a subvolume that users make.
	firstFree = 256
	// lastFree is BTRFS_LAST_FREE_OBJECTID, the highest id of a subvolume.
	lastFree = 1<<64 - 256
	// subvolReadOnly is BTRFS_SUBVOL_RDONLY.
	subvolReadOnly = 1 << 1
	// subvolByID is BTRFS_SUBVOL_SPEC_BY_ID.
	subvolByID = 1 << 4
	// fileHandle is FILEID_BTRFS_WITHOUT_PARENT, the kind of handle that has an inode and a subvolume.
	fileHandle = 0x4d
	// maxName is BTRFS_SUBVOL_NAME_MAX.
	maxName = 4039
)

// These are the structures of include/uapi/linux/btrfs.h.
type (
	// volumeArgs is struct btrfs_ioctl_vol_args_v2. The first bytes of name are the subvolume's id
	// with subvolByID.
	volumeArgs struct {
		fd    int64
		_     uint64
		flags uint64
		_     [4]uint64
		name  [maxName + 1]byte
	}
	destroyArgs struct {
		_    int64
		name [4088]byte
	}
	inoLookupArgs struct {
		tree, object uint64
		_            [4080]byte
	}
	fsInfoArgs struct {
		_, _ uint64
		fsid [16]byte
		_    [992]byte
	}
	quotaCtlArgs struct{ command, _ uint64 }
	assignArgs   struct{ assign, source, target uint64 }
	createArgs   struct{ create, group uint64 }
	limitArgs    struct {
		group, flags  uint64
		maxReferenced uint64
		maxExclusive  uint64
		_             [2]uint64
	}
)

// setName returns an error for a name that does not fit, as the kernel would truncate it.
func setName(into []byte, name string) error {
	if len(name) >= len(into) {
		return fmt.Errorf("%s: %w", name, unix.ENAMETOOLONG)
	}

	copy(into, name)

	return nil
}

// ioctl passes a structure to the kernel, which may change it.
func ioctl[T any](directory *os.File, request uint, name string, argument *T) error {
	err := eintr.Control(directory, func(descriptor int) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(descriptor), uintptr(request), uintptr(unsafe.Pointer(argument)))
		if errno != 0 {
			return errno
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, directory.Name(), err)
	}

	return nil
}

package mount

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/mount.h; x/sys has the numbers of the calls only.
const (
	statmountSuper     = 0x001      // SB_BASIC
	statmountMount     = 0x002      // MNT_BASIC
	statmountRoot      = 0x008      // MNT_ROOT
	statmountPoint     = 0x010      // MNT_POINT
	statmountType      = 0x020      // FS_TYPE
	statmountOptions   = 0x080      // MNT_OPTS, Linux 6.11
	statmountSubtype   = 0x100      // FS_SUBTYPE, Linux 6.13
	statmountSource    = 0x200      // SB_SOURCE, Linux 6.13
	listmountRoot      = ^uint64(0) // LSMT_ROOT: the whole namespace
	mountIDRequestSize = 24         // MNT_ID_REQ_SIZE_VER0

	statmountAll = statmountSuper | statmountMount | statmountRoot | statmountPoint | statmountType |
		statmountOptions | statmountSubtype | statmountSource
)

// errGone says that no mount has that id (any more).
var errGone = errors.New("no such mount")

// mountIDRequest is struct mnt_id_req.
type mountIDRequest struct {
	size  uint32
	spare uint32
	id    uint64
	param uint64
}

// statmountHeader is struct statmount up to its strings. The string fields are
// offsets into them.
type statmountHeader struct {
	size              uint32
	options           uint32
	mask              uint64
	major, minor      uint32
	magic             uint64
	superFlags        uint32
	fsType            uint32
	id                uint64
	parentID          uint64
	mountinfoID       uint32
	mountinfoParentID uint32
	attributes        uint64
	propagation       uint64
	peerGroup         uint64
	master            uint64
	propagateFrom     uint64
	root              uint32
	point             uint32
	namespaceID       uint64
	subtype           uint32
	source            uint32
	_                 [48]uint64
}

// statmountBuffer starts with space for ordinary strings and grows. Its words
// keep the header aligned.
type statmountBuffer []uint64

func newStatmountBuffer() statmountBuffer { return make(statmountBuffer, 256) }

// query asks for the mount with a unique id; errGone when there is none.
func (b *statmountBuffer) query(id, mask uint64) (*statmountHeader, error) {
	const enough = 1 << 17

	request := mountIDRequest{size: mountIDRequestSize, id: id, param: mask}

	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT,
			uintptr(unsafe.Pointer(&request)), uintptr(unsafe.Pointer(&(*b)[0])), uintptr(len(*b)*8), 0, 0, 0)

		switch {
		case errno == 0:
			return (*statmountHeader)(unsafe.Pointer(&(*b)[0])), nil
		case errno == unix.EOVERFLOW && len(*b) < enough:
			*b = make(statmountBuffer, 2*len(*b))
		case errno == unix.EINTR || errno == unix.EAGAIN:
		case errno == unix.ENOENT:
			return nil, errGone
		default:
			return nil, fmt.Errorf("statmount: %w", errno)
		}
	}
}

// text copies the string at offset.
func (b *statmountBuffer) text(offset uint32) string {
	whole := unsafe.Slice((*byte)(unsafe.Pointer(&(*b)[0])), len(*b)*8)
	start := min(int(unsafe.Sizeof(statmountHeader{}))+int(offset), len(whole))
	text, _, _ := bytes.Cut(whole[start:], []byte{0})

	return string(text)
}

// point reads one mount; errGone when there is none.
func (b *statmountBuffer) point(id uint64) (Point, error) {
	header, err := b.query(id, statmountAll)
	if err != nil {
		return Point{}, err
	}

	point := Point{
		ID:            header.id,
		Major:         header.major,
		Minor:         header.minor,
		ReadOnly:      header.attributes&unix.MOUNT_ATTR_RDONLY != 0,
		SuperReadOnly: header.superFlags&unix.MS_RDONLY != 0,
		Options:       attributeNames(header.attributes),
		SuperOptions:  flagNames(uint64(header.superFlags), superFlagNameTable),
		Shared:        header.propagation&unix.MS_SHARED != 0,
		Slave:         header.propagation&unix.MS_SLAVE != 0,
	}

	texts := []struct {
		bit    uint64
		offset uint32
		into   *string
	}{
		{statmountRoot, header.root, &point.Root},
		{statmountPoint, header.point, &point.Path},
		{statmountType, header.fsType, &point.FSType},
		{statmountSource, header.source, &point.Source},
	}
	for _, text := range texts {
		if header.mask&text.bit != 0 {
			*text.into = b.text(text.offset)
		}
	}

	if header.mask&statmountSubtype != 0 {
		point.FSType += "." + b.text(header.subtype)
	}

	if header.mask&statmountOptions != 0 {
		point.SuperOptions = append(point.SuperOptions, splitOptions(b.text(header.options))...)
	}

	return point, nil
}

// listmount returns the unique ids of all mounts of the namespace.
func listmount() ([]uint64, error) {
	ids := make([]uint64, 0, 1024)
	request := mountIDRequest{size: mountIDRequestSize, id: listmountRoot}

	for {
		ids = slices.Grow(ids, 1)
		free := ids[len(ids):cap(ids)]

		count, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT,
			uintptr(unsafe.Pointer(&request)), uintptr(unsafe.Pointer(&free[0])), uintptr(len(free)), 0, 0, 0)

		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return nil, fmt.Errorf("listmount: %w", errno)
		case count == 0:
			return ids, nil
		}

		ids = ids[:len(ids)+int(count)]
		request.param = ids[len(ids)-1]
	}
}

// flagName is a bit and its name in mountinfo.
type flagName struct {
	bit  uint64
	name string
}

var (
	attributeNameTable = []flagName{
		{unix.MOUNT_ATTR_NOSUID, "nosuid"},
		{unix.MOUNT_ATTR_NODEV, "nodev"},
		{unix.MOUNT_ATTR_NOEXEC, "noexec"},
		{unix.MOUNT_ATTR_NOATIME, "noatime"},
		{unix.MOUNT_ATTR_NODIRATIME, "nodiratime"},
		{unix.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow"},
	}
	superFlagNameTable = []flagName{
		{unix.MS_SYNCHRONOUS, "sync"},
		{unix.MS_DIRSYNC, "dirsync"},
		{unix.MS_MANDLOCK, "mand"},
		{unix.MS_LAZYTIME, "lazytime"},
	}
)

// attributeNames spells MOUNT_ATTR_* as mountinfo does.
func attributeNames(attributes uint64) []string {
	names := flagNames(attributes, attributeNameTable)

	if attributes&unix.MOUNT_ATTR__ATIME == unix.MOUNT_ATTR_RELATIME {
		names = append(names, "relatime")
	}

	return names
}

// flagNames spells the flags of a mount or a superblock as mountinfo does. Both have the same bit for read-only.
func flagNames(flags uint64, table []flagName) []string {
	names := append(make([]string, 0, 8), "rw")
	if flags&unix.MS_RDONLY != 0 {
		names[0] = "ro"
	}

	for _, each := range table {
		if flags&each.bit != 0 {
			names = append(names, each.name)
		}
	}

	return names
}

// splitOptions splits at commas that are not quoted (an SELinux context may
// have some) and drops what is empty.
func splitOptions(list string) []string {
	quoted := false

	return strings.FieldsFunc(list, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}

		return r == ',' && !quoted
	})
}

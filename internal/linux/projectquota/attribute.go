package projectquota

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// From linux/fs.h, which x/sys/unix lacks.
const (
	fsIocFsGetXattr = 0x801c581f // _IOR('X', 31, struct fsxattr)
	fsIocFsSetXattr = 0x401c5820 // _IOW('X', 32, struct fsxattr)

	fsXflagProjInherit = 0x200
)

// fsxattr is struct fsxattr.
type fsxattr struct {
	xflags, extsize, nextents, projid, cowextsize uint32
	_                                             [8]byte
}

// Membership is what a directory has of projects.
type Membership struct {
	// Project is the id of the project to which the directory belongs; 0 is that of files without
	// one.
	Project uint32
	// Inherited is true if new entries belong to the project, too. A rename or hard link into such a
	// directory fails with EXDEV unless the file belongs to the same project.
	Inherited bool
}

// MembershipOf returns the project of a directory. Errors: errors.ErrUnsupported on a filesystem
// that has no such attributes.
func MembershipOf(directory *os.File) (Membership, error) {
	attributes, err := getAttributes(directory)
	if err != nil {
		return Membership{}, err
	}

	return Membership{Project: attributes.projid, Inherited: attributes.xflags&fsXflagProjInherit != 0}, nil
}

// Join makes a directory, and all entries that are created in it later, belong to a project.
// Existing entries are not changed. Errors: errors.ErrUnsupported on an ext4 without the feature
// project; EPERM outside of the initial user namespace.
func Join(directory *os.File, project uint32) error {
	return change(directory, func(attributes *fsxattr) {
		attributes.projid = project
		attributes.xflags |= fsXflagProjInherit
	})
}

// Return makes a file belong to a project, and the entries that are created later in a directory. It
// returns true if they did not.
func Return(file *os.File, project uint32, directory bool) (bool, error) {
	attributes, err := getAttributes(file)
	if err != nil || attributes.projid == project && (!directory || attributes.xflags&fsXflagProjInherit != 0) {
		return false, err
	}

	return true, change(file, func(attributes *fsxattr) {
		attributes.projid = project

		if directory {
			attributes.xflags |= fsXflagProjInherit
		}
	})
}

// Leave ends that new entries of a directory belong to its project. The directory and its entries
// are not changed otherwise.
func Leave(directory *os.File) error {
	return change(directory, func(attributes *fsxattr) { attributes.xflags &^= fsXflagProjInherit })
}

func change(directory *os.File, edit func(*fsxattr)) error {
	attributes, err := getAttributes(directory)
	if err != nil {
		return err
	}

	edit(&attributes)

	if err := ioctl(directory, fsIocFsSetXattr, &attributes); err != nil {
		return fmt.Errorf("set project %d of %s: %w", attributes.projid, directory.Name(), err)
	}

	return nil
}

func getAttributes(directory *os.File) (fsxattr, error) {
	var attributes fsxattr

	err := ioctl(directory, fsIocFsGetXattr, &attributes)
	if err != nil {
		return fsxattr{}, fmt.Errorf("project of %s: %w", directory.Name(), err)
	}

	return attributes, nil
}

// ioctl reports ENOTTY, of a filesystem without the ioctl, as errors.ErrUnsupported.
func ioctl(directory *os.File, request uintptr, attributes *fsxattr) error {
	return eintr.Control(directory, func(descriptor int) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(descriptor), request, uintptr(unsafe.Pointer(attributes)))

		switch errno {
		case 0:
			return nil
		case unix.ENOTTY:
			return unix.EOPNOTSUPP
		default:
			return errno
		}
	})
}

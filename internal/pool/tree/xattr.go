package tree

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxXattrBytes is the kernel's limit, for a value and for the list of names.
const maxXattrBytes = 64 << 10

// copyXattrs gives target the extended attributes of source, which include ACLs, capabilities and
// labels, and removes others. source is the path of a descriptor and is followed; target is not
// followed, so it must not be such a path.
func copyXattrs(source, target string) error {
	wanted, err := xattrNames(unix.Listxattr, source)
	if err != nil {
		return err
	}

	had, err := xattrNames(unix.Llistxattr, target)
	if err != nil {
		return err
	}

	// An inherited default ACL of the pool, for example. Labels that security modules assign stay.
	for _, name := range had {
		if slices.Contains(wanted, name) || strings.HasPrefix(name, "security.") {
			continue
		}

		if err := unix.Lremovexattr(target, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("remove extended attribute %s: %w", name, err)
		}
	}

	for _, name := range wanted {
		if err := copyXattr(source, target, name); err != nil {
			return fmt.Errorf("extended attribute %s: %w", name, err)
		}
	}

	return nil
}

func copyXattr(source, target, name string) error {
	value, err := xattr(unix.Getxattr, source, name)
	if errors.Is(err, unix.ENODATA) {
		return nil // removed since the names were read
	}

	if err != nil {
		return err
	}

	// Some attributes can be read, but not set, without privilege.
	if same, err := xattr(unix.Lgetxattr, target, name); err == nil && bytes.Equal(value, same) {
		return nil
	}

	err = unix.Lsetxattr(target, name, value, 0)
	if errors.Is(err, unix.EOPNOTSUPP) && !mustBeCopied(name) {
		return nil
	}

	return err
}

// mustBeCopied reports whether an attribute was set on this file.
// Others (labels of a whole mount, compression of another filesystem) are copied only where the
// target supports them.
func mustBeCopied(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "user.") ||
		strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "system.posix_acl_")
}

func xattrNames(list func(path string, target []byte) (int, error), path string) ([]string, error) {
	length, err := list(path, nil)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && length == 0 {
		return nil, nil // most files have none: allocate nothing
	}

	if err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}

	names := make([]byte, maxXattrBytes)
	if length, err = list(path, names); err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}

	found := strings.FieldsFunc(string(names[:length]), func(r rune) bool { return r == 0 })

	// XFS also lists the attribute in which it stores an ACL; that follows the ACL.
	return slices.DeleteFunc(found, func(name string) bool { return strings.HasPrefix(name, "trusted.SGI_ACL_") }), nil
}

func xattr(get func(path, name string, target []byte) (int, error), path, name string) ([]byte, error) {
	value := make([]byte, maxXattrBytes)

	length, err := get(path, name, value)
	if err != nil {
		return nil, err
	}

	return value[:length], nil
}

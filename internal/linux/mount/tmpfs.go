package mount

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

const (
	// privateDirMode and privateMode keep everybody but root from what NewReadOnlyTmpfs makes.
	privateDirMode = "0700"
	privateMode    = 0o600
	// tmpfsBytes is more than the files take, and all of the machine's memory that a process could use
	// which makes the filesystem writable again.
	tmpfsBytes = 64 << 10
	spareNodes = 2
)

// NewReadOnlyTmpfs makes a small filesystem in memory with the files of these names, and
// leaves the mount detached. Only root may read it. The filesystem is read-only, and not only this
// mount, since a bind mount of it may clear the flags of a mount. The mount table shows source
// instead of a device. Error: ErrKernelUnsupported where fsopen is missing.
func NewReadOnlyTmpfs(source string, files map[string][]byte) (_ *Detached, err error) {
	defer errdefs.Wrapf(&err, "mount files of %s", source)

	tree, err := mountDetached(source, "tmpfs", Options{
		set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC,
		parameters: []parameter{
			{key: "mode", value: privateDirMode, hasValue: true},
			{key: "size", value: strconv.Itoa(tmpfsBytes), hasValue: true},
			{key: "nr_inodes", value: strconv.Itoa(len(files) + spareNodes), hasValue: true},
		},
	})
	if err != nil {
		return nil, err
	}

	if err := tree.fill(files); err != nil {
		tree.Close()

		return nil, err
	}

	return tree, nil
}

// fill writes the files and makes the filesystem read-only.
func (t *Detached) fill(files map[string][]byte) error {
	for name, content := range files {
		if err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/%s", t.root.Fd(), name), content, privateMode); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}

	return t.makeReadOnly()
}

// makeReadOnly makes the filesystem read-only, and the mount as well.
func (t *Detached) makeReadOnly() error {
	root := int(t.root.Fd())

	// The files were just closed, but a child that is being forked has copies of
	// descriptors that are open for writing.
	if err := retryBusy(busyAttempts, func() error { return makeSuperblockReadOnly(root) }); err != nil {
		return fmt.Errorf("make it read-only: %w", err)
	}

	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("make the mount read-only: %w", err)
	}

	return nil
}

// makeSuperblockReadOnly makes the filesystem of the mount read-only. The kernel accepts no
// further reconfiguration through a descriptor of fspick after one that failed, so
// each call opens its own.
func makeSuperblockReadOnly(root int) error {
	fd, err := unix.Fspick(root, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return err
	}

	defer func() { _ = unix.Close(fd) }()

	err = unix.FsconfigSetFlag(fd, "ro")
	if err == nil {
		err = unix.FsconfigReconfigure(fd)
	}

	if err != nil {
		return fmt.Errorf("%w%s", err, kernelMessages(fd, Options{}))
	}

	return nil
}

package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// Detached is a mount that is not attached to any mount target yet, and so invisible. Closing it
// without attaching it, also by the end of the process, removes it.
type Detached struct {
	// root is the mount's root, nil once it is attached or closed.
	root   *os.File
	source string
}

// Mount mounts the filesystem on device, an absolute path, and leaves the mount
// detached. The error has what the filesystem said. ErrMountFlag for a flag that the
// filesystem refuses, ErrBusy for a device that is in exclusive use, ErrCorrupted for damage,
// ErrKernelUnsupported for a filesystem that the kernel lacks.
func Mount(device, fsType string, opts Options) (tree *Detached, err error) {
	// A child that was just forked may hold what claims the device.
	err = retryBusy(mountAttempts, func() error {
		tree, err = mountSELinux(device, fsType, opts)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mount %s as %s: %w", device, fsType, err)
	}

	return tree, nil
}

func mountDetached(device, fsType string, opts Options) (tree *Detached, err error) {
	opts = opts.withSafeErrors(fsType)

	fd, err := openFilesystemType(fsType)
	if err != nil {
		return nil, err
	}

	defer func() {
		if err != nil {
			err = fmt.Errorf("%w%s", err, kernelMessages(fd, opts))
		}

		_ = unix.Close(fd)
	}()

	if err := unix.FsconfigSetString(fd, "source", device); err != nil {
		return nil, fmt.Errorf("set the device: %w", err)
	}

	if err := opts.configure(fd); err != nil {
		return nil, err
	}

	err = unix.FsconfigCreate(fd)

	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("%w: the device is mounted with other flags or held by another program: %w", ErrBusy, err)
	case errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.EBADMSG):
		return nil, fmt.Errorf("%w: %w", ErrCorrupted, err)
	case err != nil:
		return nil, err
	}

	root, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, int(opts.set))
	if err != nil {
		return nil, fmt.Errorf("make a mount of it: %w", err)
	}

	return &Detached{root: os.NewFile(uintptr(root), device), source: device}, nil
}

// Replay mounts the filesystem with the flags and unmounts it, so that the kernel writes its log
// back. It calls finish with the root meanwhile. Errors: those of ParseFlags, Mount and finish.
func Replay(device, fsType string, flags []string, finish func(root *os.File) error) error {
	options, err := ParseFlags(flags)
	if err != nil {
		return err
	}

	tree, err := Mount(device, fsType, options)
	if err != nil {
		return fmt.Errorf("replay the log: %w", err)
	}
	defer tree.Close()

	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}

	return errors.Join(finish(root), root.Close())
}

// CheckSupport returns nil when the kernel can mount filesystems of that type. It has the
// kernel load the module that is needed for that, as Mount would. Errors: ErrKernelUnsupported
// for one that it lacks, or the kernel's, such as EPERM without CAP_SYS_ADMIN.
func CheckSupport(fsType string) error {
	fd, err := openFilesystemType(fsType)
	if err != nil {
		return fmt.Errorf("find %s in the kernel: %w", fsType, err)
	}

	_ = unix.Close(fd)

	return nil
}

func openFilesystemType(fsType string) (int, error) {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)

	switch {
	case errors.Is(err, unix.ENODEV):
		return 0, fmt.Errorf("%w: it lacks this filesystem; load its module: %w", ErrKernelUnsupported, err)
	case errors.Is(err, unix.ENOSYS):
		return 0, fmt.Errorf("%w: fsopen needs Linux 5.2: %w", ErrKernelUnsupported, err)
	case err != nil:
		return 0, fmt.Errorf("open the filesystem type: %w", err)
	}

	return fd, nil
}

// configure hands the filesystem its parameters. It returns ErrMountFlag only if the errno is about the flag.
func (o Options) configure(fd int) error {
	parameters := o.parameters
	if o.ReadOnly() {
		// Of the filesystem, too, so that it does not replay or write anything
		// on a device that cannot be written.
		parameters = append([]parameter{{key: "ro"}}, parameters...)
	}

	for _, each := range parameters {
		var err error
		if each.hasValue {
			err = unix.FsconfigSetString(fd, each.key, each.value)
		} else {
			err = unix.FsconfigSetFlag(fd, each.key)
		}

		switch {
		case errors.Is(err, unix.EINVAL):
			return fmt.Errorf("%w %q: %w", ErrMountFlag, each.key, err)
		case err != nil:
			return fmt.Errorf("set the mount flag %q: %w", each.key, err)
		}
	}

	return nil
}

// kernelMessages reads what the filesystem had to say, in the form of an end to
// a sentence.
func kernelMessages(fd int, opts Options) string {
	const longest = 4096

	var messages strings.Builder

	buffer := make([]byte, longest)

	for {
		count, err := eintr.RetryValue(func() (int, error) { return unix.Read(fd, buffer) })
		if err != nil || count <= 0 {
			break
		}

		// Each message starts with a letter for its level: e, w or i.
		message := strings.TrimSpace(string(buffer[:count]))
		if _, text, found := strings.Cut(message, " "); found && len(message)-len(text) == 2 {
			message = text
		}

		messages.WriteString("; the kernel says: " + message)
	}

	return opts.redact(messages.String())
}

// redact replaces the values of flags that a filesystem may quote. Values of a few characters stay:
// they reveal nothing, and replacing them would garble the rest.
func (o Options) redact(text string) string {
	const sensitive = 4

	for _, parameter := range o.parameters {
		if len(parameter.value) >= sensitive {
			text = strings.ReplaceAll(text, parameter.value, "…")
		}
	}

	return text
}

// Bind makes a second mount of what from (opened with O_PATH, see Target.Open)
// shows: a directory of a filesystem, or one file such as a device node. It
// leaves it detached, with its flags already in force: a read-only bind is never
// writable at any moment. What is mounted beneath does not come along.
//
// Flags for the filesystem have no effect on a bind and are ignored; a CO sends
// the same ones for staging and for publishing.
func Bind(from *os.File, opts Options) (*Detached, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH

	fd, err := unix.OpenTree(int(from.Fd()), "", flags)
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", from.Name(), err)
	}

	tree := &Detached{root: os.NewFile(uintptr(fd), from.Name()), source: from.Name()}

	if opts.set|opts.clear == 0 {
		return tree, nil
	}

	attr := unix.MountAttr{Attr_set: opts.set, Attr_clr: opts.clear &^ opts.set}
	// The kernel takes the kinds of atime as one field that is cleared whole.
	attr.Attr_clr |= opts.clear & unix.MOUNT_ATTR__ATIME

	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		tree.Close()

		if errors.Is(err, unix.ENOSYS) {
			err = fmt.Errorf("%w: mount_setattr needs Linux 5.12: %w", ErrKernelUnsupported, err)
		}

		return nil, fmt.Errorf("bind %s with the flags %s: %w", from.Name(), opts, err)
	}

	return tree, nil
}

// OpenRoot opens the root directory of the detached mount for reading and for
// ioctls: a filesystem can be grown before it becomes visible. The file keeps the
// mount busy.
func (t *Detached) OpenRoot() (*os.File, error) {
	if t.root == nil {
		return nil, fmt.Errorf("open the mount of %s: %w", t.source, ErrAttached)
	}

	fd, err := openBeneath(int(t.root.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open the mount of %s: %w", t.source, err)
	}

	return os.NewFile(uintptr(fd), t.source), nil
}

// Attach makes the mount appear at a mount target, on top of what may be mounted there
// already. Directory goes onto directory and file onto file, else ErrWrongType;
// onto a symlink nothing goes (ErrSymlink), and nothing there is fs.ErrNotExist.
// After it the Detached is used up.
func (t *Detached) Attach(at *Target) error {
	if t.root == nil {
		return at.wrapError("attach a mount at", ErrAttached)
	}

	// By descriptor: a symlink put there between two lookups changes nothing.
	onto, err := at.open(unix.O_PATH)
	if err != nil {
		return at.wrapError("attach a mount at", err)
	}

	defer func() { _ = onto.Close() }()

	err = unix.MoveMount(int(t.root.Fd()), "", int(onto.Fd()), "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)

	switch {
	case err == nil:
		t.Close()
	case isDir(t.root) != isDir(onto):
		// Kernels answer EINVAL or ENOTDIR.
		err = fmt.Errorf("%w: a directory goes onto a directory and a file onto a file: %w", ErrWrongType, err)
	}

	return at.wrapError("attach a mount at", err)
}

func isDir(file *os.File) bool {
	info, err := file.Stat()

	return err == nil && info.IsDir()
}

// Close drops the mount unless it was attached. A second call does nothing.
func (t *Detached) Close() {
	if t.root != nil {
		_ = t.root.Close()
		t.root = nil
	}
}

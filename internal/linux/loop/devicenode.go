package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Major is the major number of all loop devices.
const Major = 7

const (
	// controlMajor and controlMinor are those of /dev/loop-control: the misc
	// device number 237 is fixed in the kernel's devices.txt.
	controlMajor = 10
	controlMinor = 237
	nodeMode     = 0o600
)

// Name returns the kernel's name of a loop device.
func Name(number int) string { return "loop" + strconv.Itoa(number) }

// nodes are the device nodes of loop devices, in /dev and in the directory for own nodes.
type nodes struct{ dev, own string }

// path returns where the node of a number is, or will be.
func (n nodes) path(number int) string {
	path := filepath.Join(n.dev, Name(number))
	if _, err := os.Lstat(path); err != nil {
		return filepath.Join(n.own, Name(number))
	}

	return path
}

// open opens the device node of a number and makes what is missing for
// that: the device in the kernel, the node in a private /dev. The caller closes
// the file.
func (n nodes) open(number, flags int) (*os.File, error) {
	device := unix.Mkdev(Major, uint32(number))

	file, err := openDevice(filepath.Join(n.dev, Name(number)), device, unix.S_IFBLK, flags)
	if !isMissing(err) {
		return file, err
	}

	if err := n.add(number); err != nil {
		return nil, everyNumberError{err}
	}

	return n.openOrMake(Name(number), device, unix.S_IFBLK, flags)
}

// add makes the device in the kernel. One that exists already is fine: devices are kept after
// use, since removing one takes 44 ms.
func (n nodes) add(number int) error {
	return n.control("LOOP_CTL_ADD", unix.LOOP_CTL_ADD, number, unix.EEXIST)
}

// remove removes the device from the kernel. A missing one is fine. Error: EBUSY while a
// program has it open.
func (n nodes) remove(number int) error {
	return n.control("LOOP_CTL_REMOVE", unix.LOOP_CTL_REMOVE, number, unix.ENODEV)
}

// control sends a request about a number. The errno done says that there is nothing to do.
func (n nodes) control(name string, request uint, number int, done unix.Errno) error {
	control, err := n.openOrMake("loop-control", unix.Mkdev(controlMajor, controlMinor), unix.S_IFCHR, os.O_RDWR)
	if errors.Is(err, unix.ENODEV) && done == unix.ENODEV {
		return nil // without the loop driver there is no device
	}

	if err != nil {
		return fmt.Errorf("%s: open loop-control (is the kernel's loop driver there?): %w", name, err)
	}
	defer control.Close()

	if err := unix.IoctlSetInt(int(control.Fd()), request, number); err != nil && !errors.Is(err, done) {
		return fmt.Errorf("%s: %w", name, err)
	}

	return nil
}

// openOrMake opens a device node in /dev, or in the directory for own nodes,
// where it is made when it is missing.
func (n nodes) openOrMake(name string, device uint64, kind uint32, flags int) (*os.File, error) {
	file, err := openDevice(filepath.Join(n.dev, name), device, kind, flags)
	if !isMissing(err) {
		return file, err
	}

	if err := os.MkdirAll(n.own, 0o700); err != nil {
		return nil, everyNumberError{fmt.Errorf("make the directory for device nodes: %w", err)}
	}

	path := filepath.Join(n.own, name)

	err = unix.Mknod(path, kind|nodeMode, int(device))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, everyNumberError{&fs.PathError{Op: "mknod", Path: path, Err: err}}
	}

	file, err = openDevice(path, device, kind, flags)
	if errors.Is(err, unix.EACCES) && flags&unix.O_ACCMODE == os.O_RDONLY {
		return nil, fmt.Errorf("%w; is %s on a filesystem mounted with nodev?", err, n.own)
	}

	return file, err
}

// removeNode removes a node that openOrMake has made; those in devtmpfs go with
// their device.
func (n nodes) removeNode(number int) error {
	var stat unix.Stat_t

	path := filepath.Join(n.own, Name(number))

	switch err := unix.Lstat(path, &stat); {
	case isMissing(err):
		return nil
	case err != nil:
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	case stat.Mode&unix.S_IFMT != unix.S_IFBLK || stat.Rdev != unix.Mkdev(Major, uint32(number)):
		return nil
	}

	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the node: %w", err)
	}

	return nil
}

// errWrongNode means that a path exists which is not the device node meant: a
// stale node in a private /dev, or a plain file. It counts as missing.
var errWrongNode = fmt.Errorf("not the device node meant: %w", fs.ErrNotExist)

// openDevice checks the node before it opens it, since opening a wrong device can have effects, and
// again afterwards, since the path may have changed.
func openDevice(path string, device uint64, kind uint32, flags int) (*os.File, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}

	if stat.Mode&unix.S_IFMT != kind || stat.Rdev != device {
		return nil, &fs.PathError{Op: opOpen, Path: path, Err: errWrongNode}
	}

	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}

	err = unix.Fstat(int(file.Fd()), &stat)
	if err == nil && stat.Rdev != device {
		err = errWrongNode
	}

	if err != nil {
		return nil, errors.Join(&fs.PathError{Op: opOpen, Path: path, Err: err}, file.Close())
	}

	return file, nil
}

// everyNumberError is an error that no other number would avoid: the driver may not make devices or
// nodes, or the kernel has no loop driver.
type everyNumberError struct{ error }

func (e everyNumberError) Unwrap() error { return e.error }

// isMissing: ENXIO and ENODEV are the answers of a node whose device the kernel
// does not have.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

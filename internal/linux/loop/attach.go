package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/fork"
)

// AttachOptions say how an image is attached. PreferredNumber has no useful zero
// value: -1 means none.
type AttachOptions struct {
	// ReadOnly makes the device refuse all writes: a read-only bind mount of a device node does
	// not.
	ReadOnly bool
	// Buffered asks for no direct I/O.
	Buffered bool
	// BlockSize is the logical block size in bytes, 512 to the page size; 0
	// means DefaultBlockSize.
	BlockSize int
	// AutoClear detaches at the last close or unmount: right under a mounted
	// filesystem, wrong for raw block, since a bind-mounted node holds nothing.
	AutoClear bool
	// Exclusive refuses to share a device that the image has already, as another node
	// on this machine may have attached it: detaching would take it from both.
	// For a writer the image then counts as locked.
	Exclusive bool
	// AlreadyLocked says that the image is locked by the caller already, for longer than it
	// will be attached: it is attached nowhere.
	AlreadyLocked bool
	// NoDiscard makes the device refuse discards, which would give the image's space
	// back to its filesystem.
	NoDiscard bool
	// PreferredNumber is the number to try first, inside or outside of the own range.
	PreferredNumber int
}

// Device is an attached loop device, held open until Close.
type Device struct {
	// Status is the state at the attach.
	Status

	file *os.File
}

// File is the open device; it is closed by Close.
func (d *Device) File() *os.File { return d.file }

// Close closes the device. With AutoClear, and when it is not open or mounted elsewhere, that
// detaches it; call Detach afterwards in any case, which
// waits for the end and makes the number known as free.
func (d *Device) Close() error {
	return numberError("close", d.Number, d.file.Close())
}

// Attach attaches an image, or finds where it is attached already in the same
// way. An image is attached for writing once at most; beside that it may be
// attached read-only once more. The caller keeps, and closes, its file.
//
// Errors: ErrNotImage, ErrImageLocked, ErrNoNumber, or the kernel's.
func (l *Loops) Attach(ctx context.Context, imageFile *os.File, o AttachOptions) (*Device, error) {
	if o.BlockSize == 0 {
		o.BlockSize = DefaultBlockSize
	}

	img, err := openImage(imageFile, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	// Where it was attached, the kernel holds the file by now, and with it the
	// lock.
	defer img.file.Close()

	if !o.AlreadyLocked {
		device, err := l.adoptOrLock(ctx, img, o)
		if device != nil || err != nil {
			return device, err
		}
	}

	return l.attach(ctx, img, o)
}

// adoptOrLock returns the device that has the image already, or none when the
// image is ours to attach.
func (l *Loops) adoptOrLock(ctx context.Context, img *image, o AttachOptions) (*Device, error) {
	retries, pause := fork.NewRetry(lockAttempts), newBackoff()

	for {
		free, err := img.lock(o.ReadOnly)
		if free || err != nil {
			return nil, err
		}

		found, err := l.Find(img.file)
		if err != nil {
			return nil, err
		}

		for i := range found {
			device, err := l.adopt(&found[i], img, o)
			if device != nil || err != nil {
				return device, err
			}
		}

		beside, err := attachableBeside(found, img, o)
		if beside || err != nil {
			return nil, err
		}

		if !retries.Again() {
			return nil, fmt.Errorf("attach %s: %w by another node, a program, or a loop device that was attached with other "+
				"options or does not go because another mount namespace still has the volume mounted",
				img.file.Name(), ErrImageLocked)
		}

		if err := pause.wait(ctx); err != nil {
			return nil, fmt.Errorf("attach %s: %w: %w", img.file.Name(), ErrImageLocked, err)
		}
	}
}

// attachableBeside allows what the image's attachments on this machine do not
// contradict: one device for writing, and read-only ones.
func attachableBeside(found []Status, img *image, o AttachOptions) (bool, error) {
	switch {
	case o.ReadOnly && len(found) > 0:
		return true, nil
	case !o.ReadOnly && (len(found) == 0 || slices.ContainsFunc(found, func(s Status) bool { return !s.ReadOnly })):
		return false, nil
	}

	// The others that hold it are readers, of this node or, for a reader, of other nodes.
	return img.tryFlock(unix.LOCK_SH)
}

// lockAttempts is for an attach of the same image that another process has just
// begun (about 0.1 ms), or a detach that is about to end: some 150 ms in all. A child
// that is just being forked has the lock of a file that was closed meanwhile, too.
const lockAttempts = 12

// attach tries numbers until one takes the image.
func (l *Loops) attach(ctx context.Context, img *image, o AttachOptions) (*Device, error) {
	l.numbers.releaseDetached(l.sysfs.attached)

	for {
		number, ok := l.numbers.claim(o.PreferredNumber)
		if !ok {
			return nil, fmt.Errorf("attach %s: %w between %d and %d",
				img.file.Name(), ErrNoNumber, l.numbers.first, l.numbers.last)
		}

		device, err := l.configure(number, img, o)
		if err == nil {
			return device, nil
		}

		if !errors.Is(err, errUnusable) {
			l.numbers.free(number)

			return nil, numberError("attach "+img.file.Name()+" to", number, err)
		}

		l.numbers.mark(number, true)

		// EBUSY with the same image behind it: it is attached already.
		device, err = l.adoptNumber(number, img, o)
		if device != nil || err != nil {
			return device, err
		}

		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("attach %s: %w", img.file.Name(), context.Cause(ctx))
		}
	}
}

// errUnusable means that it was the number's fault and another may do.
var errUnusable = errors.New("unusable")

//nolint:cyclop // each step of the kernel has its own failure
func (l *Loops) configure(number int, img *image, o AttachOptions) (*Device, error) {
	flags := os.O_RDWR
	if o.ReadOnly {
		flags = os.O_RDONLY
	}

	if !o.NoDiscard {
		if err := l.allowDiscards(number); err != nil {
			return nil, err
		}
	}

	node, err := l.nodes.open(number, flags)
	if err != nil {
		if isOfNumber(err) {
			return nil, fmt.Errorf("%w: %w", errUnusable, err)
		}

		return nil, err
	}

	err = unix.IoctlLoopConfigure(int(node.Fd()), configOf(img, o))
	if errors.Is(err, unix.EINVAL) && !o.Buffered {
		// Kernels differ in whether impossible direct I/O is an error.
		o.Buffered = true
		err = unix.IoctlLoopConfigure(int(node.Fd()), configOf(img, o))
	}

	if err != nil {
		_ = node.Close()

		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO) {
			return nil, fmt.Errorf("%w: %w", errUnusable, err)
		}

		return nil, fmt.Errorf("LOOP_CONFIGURE: %w", err)
	}

	if o.NoDiscard {
		// After it: kernels before 6.9 set the limit again in it.
		if err := l.sysfs.refuseDiscards(number); err != nil {
			return nil, errors.Join(err, unix.IoctlSetInt(int(node.Fd()), unix.LOOP_CLR_FD, 0), node.Close())
		}
	}

	status, attached, err := l.statusOf(node, number)
	if err == nil && !attached {
		err = ErrNotAttached // by another program, at once
	}

	if err != nil {
		// The image is attached: if that is not undone it stays locked.
		return nil, errors.Join(err, unix.IoctlSetInt(int(node.Fd()), unix.LOOP_CLR_FD, 0), node.Close())
	}

	return &Device{Status: status, file: node}, nil
}

func configOf(img *image, o AttachOptions) *unix.LoopConfig {
	config := &unix.LoopConfig{Fd: uint32(img.file.Fd()), Size: uint32(o.BlockSize)}

	if o.ReadOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}

	if !o.Buffered {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}

	if o.AutoClear {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}

	// It outlives a renaming of the image; sysfs knows the whole path of now.
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(img.file.Name()))

	return config
}

// adoptNumber adopts the device of that number if it has this image.
func (l *Loops) adoptNumber(number int, img *image, o AttachOptions) (*Device, error) {
	wanted, err := matchOf(img.file)
	if err != nil {
		return nil, err
	}

	status, isImage, err := l.statusIfMatch(number, wanted)
	if err != nil || !isImage {
		return nil, err
	}

	return l.adopt(&status, img, o)
}

// adopt returns a device that has the image already, or nil when it is attached
// in another way, or by now no more. An error says that this is unknown.
func (l *Loops) adopt(status *Status, img *image, o AttachOptions) (*Device, error) {
	if o.Exclusive || !compatible(status, o) {
		return nil, nil //nolint:nilnil // documented
	}

	node, err := l.Open(status.Number)
	if err != nil {
		if l.sysfs.detachedSince(status.Number, err) {
			err = nil
		}

		return nil, err
	}

	// Only now, held open, can it no longer go away.
	held, attached, err := l.statusOf(node, status.Number)
	adoptable := err == nil && attached && held.Backing == img.identity && compatible(&held, o)

	if adoptable {
		err = setAutoClear(node, o.AutoClear)
	}

	if adoptable && err == nil && o.NoDiscard {
		err = l.sysfs.refuseDiscards(status.Number)
	}

	if !adoptable || err != nil {
		return nil, errors.Join(err, node.Close())
	}

	l.numbers.mark(status.Number, false)

	return &Device{Status: held, file: node}, nil
}

// compatible says whether an attachment is as if Attach had made it. Direct I/O
// is not part of it, since asking for it does not mean getting it.
func compatible(status *Status, o AttachOptions) bool {
	return status.ReadOnly == o.ReadOnly && status.BlockSize == o.BlockSize &&
		status.offset == 0 && status.limit == 0
}

// setAutoClear also takes back a detach that was asked for while the device was
// in use: that is a mere AUTOCLEAR.
func setAutoClear(node *os.File, want bool) error {
	info, err := unix.IoctlLoopGetStatus64(int(node.Fd()))
	if err != nil {
		return fmt.Errorf("LOOP_GET_STATUS64: %w", err)
	}

	if want == (info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0) {
		return nil
	}

	info.Flags ^= unix.LO_FLAGS_AUTOCLEAR

	if err := unix.IoctlLoopSetStatus64(int(node.Fd()), info); err != nil {
		return fmt.Errorf("LOOP_SET_STATUS64: %w", err)
	}

	return nil
}

// isOfNumber reports whether another number may be opened although this one was not.
func isOfNumber(err error) bool {
	if _, every := errors.AsType[everyNumberError](err); every {
		return false
	}

	return isReadOnly(err) || errors.Is(err, unix.EBUSY) || isMissing(err)
}

func isReadOnly(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS)
}

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// adoptOrMount returns the root of the mounted image, which keeps it mounted.
func (s *mounter) adoptOrMount(ctx context.Context, image *os.File) (*os.File, error) {
	root, err := s.adoptMount(ctx, image)
	if err != nil {
		return nil, err
	}

	if root == nil {
		if !s.privileged {
			return nil, s.needsPrivilege()
		}

		if root, err = s.mount(ctx, image); err != nil {
			return nil, s.explainFullHost(err)
		}
	}

	if instant, err := Reflinks(s.target.Path()); err == nil && !instant {
		s.Log.WarnContext(ctx, "the embedded pool's XFS was made without reflink=1: copies of volumes take their time", "pool", s.Directory)
	}

	return root, nil
}

// mount attaches the image, makes or checks its filesystem and mounts it. The mount is
// private until it is checked and large enough. The device clears itself: whatever fails,
// it goes with its last user.
func (s *mounter) mount(ctx context.Context, image *os.File) (*os.File, error) {
	if err := s.makeMountPoint(); err != nil {
		return nil, err
	}

	device, err := s.attach(ctx, image)
	if err != nil {
		return nil, err
	}
	defer device.Close()

	if err := s.check(ctx, device); err != nil {
		return nil, err
	}

	tree, err := s.mountDetached(device)
	if err != nil {
		return nil, err
	}
	defer tree.Close()

	root, err := tree.OpenRoot()
	if err != nil {
		return nil, err
	}

	if err = s.setRootOwner(root); err == nil {
		err = s.grow(ctx, image, device.Number, root)
	}

	if err == nil {
		err = tree.Attach(s.target)
	}

	if err != nil {
		return nil, errors.Join(err, root.Close())
	}

	return root, nil
}

// makeMountPoint refuses a directory whose content the mount would hide.
func (s *mounter) makeMountPoint() error {
	made, err := s.target.MakeDir(directoryMode)
	if made || err != nil {
		return err
	}

	home, err := os.OpenRoot(s.Directory)
	if err != nil {
		return fmt.Errorf("look into %s: %w", s.target.Path(), err)
	}
	defer home.Close()

	name, err := firstEntry(home, layout.EmbeddedMountPoint)
	if err != nil {
		return fmt.Errorf("look into %s: %w", s.target.Path(), err)
	}

	if name != "" {
		return fmt.Errorf("%s holds %q, which the mount would hide: %w; move it away", s.target.Path(), name, ErrForeign)
	}

	return nil
}

// attach finds the device that the image has already, where only its mount is
// gone: volumes in use keep it alive beyond their driver's mount namespace.
func (s *mounter) attach(ctx context.Context, image *os.File) (*loop.Device, error) {
	before, err := s.Loops.Find(image)
	if err != nil {
		return nil, err
	}

	device, err := s.Loops.Attach(ctx, image, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	if err != nil {
		return nil, err
	}

	// Other programs do not lock what they attach. Two devices of one image see
	// each other's writes too late.
	ours := func(status loop.Status) bool { return status.Number == device.Number }
	if len(before) > 0 && !slices.ContainsFunc(before, ours) {
		return nil, errors.Join(fmt.Errorf("%s is attached to %s already: %w; unmount and detach that",
			layout.EmbeddedImage, before[0].Path, ErrForeign), device.Close())
	}

	return device, nil
}

// check replays the log and checks the unmounted filesystem.
func (s *mounter) check(ctx context.Context, device *loop.Device) error {
	verdict, err := s.xfs.Check(ctx, device.Path)
	if errors.Is(err, filesystem.ErrInUse) {
		// Mounted where we can't see it, in a namespace that is gone or going: a
		// second mount is the same filesystem, which is in order.
		return nil
	}

	if err == nil && verdict.State == filesystem.NeedsReplay {
		var tree *mount.Detached
		if tree, err = s.mountDetached(device); err == nil {
			tree.Close()
			verdict, err = s.checkReplayed(ctx, device)
		}
	}

	if err != nil {
		return err
	}

	if verdict.State == filesystem.Damaged || verdict.State == filesystem.NeedsReplay {
		return s.damaged(verdict.Detail)
	}

	return nil
}

const (
	replayChecks = 50
	replayPause  = 20 * time.Millisecond
)

// checkReplayed waits for the end of the unmount: a child that was just forked
// may hold the detached mount until its exec.
func (s *mounter) checkReplayed(ctx context.Context, device *loop.Device) (filesystem.Verdict, error) {
	for attempt := 1; ; attempt++ {
		verdict, err := s.xfs.Check(ctx, device.Path)
		if !errors.Is(err, filesystem.ErrInUse) || attempt == replayChecks {
			return verdict, err
		}

		select {
		case <-ctx.Done():
			return verdict, context.Cause(ctx)
		case <-time.After(replayPause):
		}
	}
}

func (s *mounter) damaged(detail string) error {
	return fmt.Errorf("%w and was not mounted; copy %s, then repair it with xfs_repair -f %s: %s",
		ErrDamaged, layout.EmbeddedImage, s.path(layout.EmbeddedImage), detail)
}

// mountDetached lets space that is deleted inside go back to the host's
// filesystem.
func (s *mounter) mountDetached(device *loop.Device) (*mount.Detached, error) {
	options, err := mount.ParseFlags([]string{"discard", "noatime"})
	if err != nil {
		return nil, err
	}

	tree, err := mount.Mount(device.Path, s.xfs.Name(), options)
	if errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG) {
		// A check believes a filesystem that says it is clean.
		return nil, s.damaged(err.Error())
	}

	return tree, err
}

// setRootOwner gives the root of an empty filesystem to the owner of the directory: a controller
// without privilege makes volumes in it.
func (s *mounter) setRootOwner(root *os.File) error {
	if _, err := root.Readdirnames(1); !errors.Is(err, io.EOF) {
		return err
	}

	var stat unix.Stat_t

	err := unix.Fstat(int(s.directory.Fd()), &stat)
	if err == nil {
		err = errors.Join(root.Chown(int(stat.Uid), int(stat.Gid)), unix.Fchmod(int(root.Fd()), stat.Mode&0o7777))
	}

	if err != nil {
		return fmt.Errorf("give the filesystem to the owner of %s: %w", s.Directory, err)
	}

	return nil
}

// grow makes image, device and filesystem be at least Bytes large, in this
// order; whatever of it a crash kept from being done is done now.
func (s *mounter) grow(ctx context.Context, image *os.File, number int, root *os.File) error {
	info, err := image.Stat()
	if err != nil {
		return fmt.Errorf("size of %s: %w", layout.EmbeddedImage, err)
	}

	size := info.Size()

	switch wanted := roundUpToBlock(s.Bytes); {
	case wanted < size && s.Bytes > 0:
		s.Log.WarnContext(ctx, "the embedded pool is larger than asked and stays so: it never shrinks",
			"image", s.path(layout.EmbeddedImage), "bytes", size, "asked", wanted)
	case wanted > size:
		if short, err := s.tooFullToGrow(wanted - size); err != nil || short {
			s.Log.ErrorContext(ctx, "the embedded pool does not grow: its directory's filesystem is full; free some space and restart",
				"image", s.path(layout.EmbeddedImage), "bytes", size, "asked", wanted, "error", err)

			return nil
		}

		if err := errors.Join(image.Truncate(wanted), image.Sync()); err != nil {
			return fmt.Errorf("grow %s to %d bytes: %w", layout.EmbeddedImage, wanted, err)
		}

		size = wanted
	}

	return s.growFilesystem(ctx, size, number, root)
}

// growFilesystem grows the device to the image's size, and the filesystem to the device's.
func (s *mounter) growFilesystem(ctx context.Context, size int64, number int, root *os.File) error {
	status, attached, err := s.Loops.Status(number)
	if err != nil || !attached {
		return errors.Join(err, fmt.Errorf("size of loop device %d: %w", number, loop.ErrNotAttached))
	}

	device := status.SizeBytes
	if device < size {
		if device, err = s.Loops.Resize(number); err != nil {
			return err
		}

		s.Log.InfoContext(ctx, "an embedded pool grows", "image", s.path(layout.EmbeddedImage), "bytes", device)
	}

	return s.xfs.GrowMounted(ctx, root, device)
}

// tooFullToGrow says whether the new metadata would not fit: XFS takes that for
// a broken device and shuts down.
func (s *mounter) tooFullToGrow(bytes int64) (bool, error) {
	// Each allocation group, of at least 16 MiB, gets some blocks.
	const groundwork, share = 16 << 20, 1024

	free, err := s.hostFree()

	return free < groundwork+bytes/share, err
}

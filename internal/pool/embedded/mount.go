package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
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

	if instant, err := filecopy.Reflinks(s.target.Path()); err == nil && !instant {
		s.Log.WarnContext(ctx, "the embedded pool's filesystem was made without reflinks: copies of volumes take their time",
			"pool", s.Directory, "filesystem", s.kind.name)
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
		err = s.grow(ctx, image, device.Status, root)
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

	name, err := s.firstEntry(layout.EmbeddedMountPoint)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.target.Path(), err)
	}

	if name != "" {
		return fmt.Errorf("%s holds %q, which the mount would hide: %w; move it away", s.target.Path(), name, ErrForeign)
	}

	return nil
}

// attach finds the device that the image has already, where only its mount is
// gone: volumes in use keep it alive beyond their driver's mount namespace.
func (s *mounter) attach(ctx context.Context, image *os.File) (*loop.Device, error) {
	before, err := s.loops.Find(image)
	if err != nil {
		return nil, err
	}

	// The device will have the size of the image, which an earlier start may have failed to sync.
	if len(before) == 0 {
		if err := image.Sync(); err != nil {
			return nil, fmt.Errorf("sync %s: %w", layout.EmbeddedImage, err)
		}
	}

	device, err := s.loops.Attach(ctx, image, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	if err != nil {
		return nil, err
	}

	// Other programs do not lock what they attach. Two devices of one image see
	// each other's writes too late.
	isDevice := func(status loop.Status) bool { return status.Number == device.Number }
	if len(before) > 0 && !slices.ContainsFunc(before, isDevice) {
		return nil, errors.Join(fmt.Errorf("%s is attached to %s already: %w; unmount and detach that",
			layout.EmbeddedImage, before[0].Path, ErrForeign), device.Close())
	}

	return device, nil
}

// check replays the log and checks the unmounted filesystem.
func (s *mounter) check(ctx context.Context, device *loop.Device) error {
	replayed := false

	verdict, err := filesystem.CheckReplayed(func() (filesystem.Verdict, error) {
		return s.kind.tools.Check(ctx, device.Path)
	}, func() error {
		replayed = true

		// With the same flags: after a mount without quotas, the next one counts all inodes.
		return s.kind.withQuotas(func(flags []string) error {
			return mount.Replay(device.Path, s.kind.name, flags, s.kind.tools.FinishReplay)
		})
	})

	switch {
	case errors.Is(err, filesystem.ErrInUse) && !replayed:
		// It is mounted in a mount namespace that is gone or going: a second mount is
		// the same filesystem, which was checked.
		return nil
	case errors.Is(err, filesystem.ErrUnknownFeatures):
		// Simple quotas and btrfs-progs before 6.7. A btrfs needs no check after a power failure, and
		// the kernel verifies all that it reads.
		return nil
	case errors.Is(err, mount.ErrCorrupted):
		return s.damaged(err.Error())
	case err != nil:
		return err
	case verdict.State == filesystem.Damaged, verdict.State == filesystem.NeedsReplay:
		return s.damaged(verdict.Detail)
	default:
		return nil
	}
}

func (s *mounter) damaged(detail string) error {
	return fmt.Errorf("%w and was not mounted; copy %s, then repair it with %s: %s",
		ErrDamaged, layout.EmbeddedImage, fmt.Sprintf(s.kind.repair, s.path(layout.EmbeddedImage)), detail)
}

func (s *mounter) mountDetached(device *loop.Device) (*mount.Detached, error) {
	var tree *mount.Detached

	err := s.kind.withQuotas(func(flags []string) error {
		options, err := mount.ParseFlags(flags)
		if err != nil {
			return err
		}

		tree, err = mount.Mount(device.Path, s.kind.name, options)

		return err
	})
	if errors.Is(err, mount.ErrCorrupted) {
		// The check trusts a filesystem that is marked clean.
		return nil, s.damaged(err.Error())
	}

	return tree, err
}

// setRootOwner gives the root of an empty filesystem to the owner of the directory: a controller
// without privilege makes volumes in it.
func (s *mounter) setRootOwner(root *os.File) (err error) {
	if _, err := root.Readdirnames(1); !errors.Is(err, io.EOF) {
		return err
	}

	defer errdefs.Wrapf(&err, "give the filesystem to the owner of %s", s.Directory)

	var stat unix.Stat_t
	if err := unix.Fstat(int(s.directory.Fd()), &stat); err != nil {
		return err
	}

	return errors.Join(root.Chown(int(stat.Uid), int(stat.Gid)), unix.Fchmod(int(root.Fd()), stat.Mode&0o7777))
}

// grow makes image, device and filesystem be at least Bytes large, in this
// order; whatever of it a crash kept from being done is done now.
func (s *mounter) grow(ctx context.Context, image *os.File, device loop.Status, root *os.File) error {
	info, err := image.Stat()
	if err != nil {
		return fmt.Errorf("size of %s: %w", layout.EmbeddedImage, err)
	}

	size := info.Size()
	if size < device.SizeBytes {
		return fmt.Errorf("%w: %s was truncated while it was mounted, and has %d of %d bytes; restore a backup of it",
			ErrDamaged, s.path(layout.EmbeddedImage), size, device.SizeBytes)
	}

	switch wanted := roundUpToBlock(s.Bytes); {
	case wanted < size && s.Bytes > 0:
		s.Log.WarnContext(ctx, "the embedded pool is larger than asked and stays so: it never shrinks",
			"image", s.path(layout.EmbeddedImage), "bytes", size, "asked", wanted)
	case wanted > size:
		if free, err := s.hostFree(); err != nil || free < spaceToGrow(wanted-size) {
			s.Log.ErrorContext(ctx, "the embedded pool does not grow: its directory's filesystem is full; free some space and restart",
				"image", s.path(layout.EmbeddedImage), "bytes", size, "asked", wanted, "error", err)

			return nil
		}

		if err := image.Truncate(wanted); err != nil {
			return fmt.Errorf("grow %s to %d bytes: %w", layout.EmbeddedImage, wanted, err)
		}

		size = wanted
	}

	if device.SizeBytes < size {
		if err := image.Sync(); err != nil {
			return fmt.Errorf("sync %s: %w", layout.EmbeddedImage, err)
		}

		if device.SizeBytes, err = s.loops.Resize(device.Number); err != nil {
			return err
		}

		s.Log.InfoContext(ctx, "an embedded pool grows", "image", s.path(layout.EmbeddedImage), "bytes", device.SizeBytes)
	}

	return s.kind.tools.GrowMounted(ctx, root, device.SizeBytes)
}

// spaceToGrow is what the new metadata of a filesystem takes that grows by so many bytes. Without that space the
// filesystem takes it for a broken device and shuts down.
func spaceToGrow(bytes int64) int64 {
	// Each allocation group of an XFS, of at least 16 MiB, gets some blocks. A btrfs writes less.
	const groundwork, share = 16 << 20, 1024

	return groundwork + bytes/share
}

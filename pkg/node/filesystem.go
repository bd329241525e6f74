package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// mountImage attaches the image, sees to its filesystem and mounts it. The
// device clears itself: whatever fails, and whenever the process dies, it goes
// with its last user.
func (s *Service) mountImage(ctx context.Context, use *staged.Volume, place *mount.Target, options mount.Options) error {
	made, err := filesystem.ByName(use.FSType(), s.config.Run)
	if err != nil {
		return rpc.Invalid("volume_capability: %w", err)
	}

	fresh, err := s.formatIfBlank(ctx, use, made)
	if err != nil {
		return err
	}

	if use.Copy && options.ReadOnly() && len(use.Publications) == 0 {
		if err := s.settleCopy(ctx, use, made); err != nil {
			return fmt.Errorf("make a copy fit to be read: %w", err)
		}
	}

	device, err := s.attachImage(ctx, use, use.SharedByReaders())
	if err != nil {
		return err
	}
	defer device.Close()

	// Where it is published still, it is mounted, and sound since its staging.
	checked := !fresh && !use.SharedByReaders() && len(use.Publications) == 0
	if checked {
		if err := s.makeSound(ctx, use, made, device); err != nil {
			return err
		}
	}

	began := time.Now()
	err = mountDevice(ctx, made, device, place, options)

	switch {
	case err != nil:
		s.checker.RecordMountFailure(ctx, use, began, err)
	case fresh:
		s.checker.RecordFormatted(ctx, use)
	case checked:
		s.acceptErrorCount(use, device.Number, place)
	}

	return err
}

// attachImage attaches the image until its last user has gone.
func (s *Service) attachImage(ctx context.Context, use *staged.Volume, readOnly bool) (*loop.Device, error) {
	return s.attachNamed(ctx, use, readOnly, true)
}

// attachNamed attaches the file that is the volume's image. Another node that
// formats it may replace the image between its opening and its locking; what was
// attached then is a file without a name, and is detached again.
func (s *Service) attachNamed(ctx context.Context, use *staged.Volume, readOnly, autoClear bool) (*loop.Device, error) {
	place, err := s.poolOf(use)
	if err != nil {
		return nil, err
	}

	for {
		device, current, err := s.attachOnce(ctx, use, place, readOnly, autoClear)
		if err != nil {
			return nil, err
		}

		if current {
			return device, nil
		}

		if err := errors.Join(device.Close(), s.detachNew(ctx, use, device.Number)); err != nil {
			return nil, err
		}
	}
}

// attachOnce also reports whether what it has attached is still the volume's image.
func (s *Service) attachOnce(ctx context.Context, use *staged.Volume, place *pool.Pool, readOnly, autoClear bool) (*loop.Device, bool, error) {
	image, err := place.OpenImage(use.VolumeID, openFlag(readOnly))
	if err != nil {
		return nil, false, err
	}
	defer image.Close()

	device, err := s.attach(ctx, use, image, readOnly, autoClear)
	if err != nil {
		return nil, false, err
	}

	current, err := place.IsCurrentImage(use.VolumeID, image)
	if err != nil {
		return nil, false, errors.Join(err, device.Close(), s.detachNew(ctx, use, device.Number))
	}

	return device, current, nil
}

// formatIfBlank makes the filesystem of a volume that holds nothing yet, and
// says whether it did. What is neither blank nor known is never formatted.
func (s *Service) formatIfBlank(ctx context.Context, use *staged.Volume, wanted filesystem.Filesystem) (bool, error) {
	place, err := s.poolOf(use)
	if err != nil {
		return false, err
	}

	image, err := place.OpenImage(use.VolumeID, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer image.Close()

	found, err := filesystem.Detect(image)
	if err != nil {
		return false, fmt.Errorf("look for a filesystem: %w", err)
	}

	if found == wanted.Name() {
		return false, nil
	}

	if found != "" {
		return false, rpc.Errorf(codes.FailedPrecondition, "it holds %s, not %s; ask for that filesystem", found, wanted.Name())
	}

	if use.SharedByReaders() {
		return false, rpc.Errorf(codes.FailedPrecondition, "it holds no filesystem and can't be formatted while several nodes read it")
	}

	return s.format(ctx, use, place, wanted)
}

// format makes the filesystem if the image is blank, which it checks while it has
// the image locked: another node may be formatting it, or have it attached.
func (s *Service) format(ctx context.Context, use *staged.Volume, place *pool.Pool, wanted filesystem.Filesystem) (bool, error) {
	words := strings.Fields(use.Parameters.MkfsOptions)
	if err := filesystem.CheckOptions(wanted.Name(), words); err != nil {
		return false, rpc.Invalid("%s: %w", volume.KeyMkfsOptions, err)
	}

	thick := use.Parameters.Provisioning == volume.Thick
	options := filesystem.MakeOptions{BlockSize: use.Parameters.BlockSize, NoLazyInit: thick, Options: words}

	filled, err := place.FillImage(ctx, use.VolumeID, pool.FillOptions{
		Thick: thick,
		Blank: func(image *os.File) (bool, error) { return mayFormat(image, wanted) },
		Fill:  func(ctx context.Context, path string) error { return wanted.Make(ctx, path, options) },
	})
	if err != nil {
		if len(words) > 0 && errors.As(err, new(*filesystem.ToolError)) {
			err = rpc.Invalid("with mkfsOptions %q: %w", use.Parameters.MkfsOptions, err)
		}

		return false, fmt.Errorf("format as %s: %w", wanted.Name(), err)
	}

	return filled, nil
}

// mayFormat reports whether the image is blank. One that another node has given
// the wanted filesystem meanwhile is not, and is no error.
func mayFormat(image *os.File, wanted filesystem.Filesystem) (bool, error) {
	found, err := filesystem.Detect(image)
	if err != nil || found == wanted.Name() {
		return false, err
	}

	blank, err := filesystem.IsBlank(image)
	if err != nil {
		return false, fmt.Errorf("probe whether the image is blank: %w", err)
	}

	if !blank {
		return false, rpc.Errorf(codes.FailedPrecondition,
			"it holds data but no filesystem that is known here, so it is not formatted; use it as raw block")
	}

	return true, nil
}

// makeSound checks a filesystem that has been used before, repairs what is
// safe, refuses what is not, and lets it fill a device that has grown.
// A copy gets a UUID of its own: the volume's id.
func (s *Service) makeSound(ctx context.Context, use *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	err := finishCopy(ctx, use, used, device)
	if err == nil {
		err = s.checker.CheckAtStaging(ctx, use, used, device.Path, func() error { return replay(use, used, device) })
	}

	if err == nil && use.Copy {
		err = used.SetUUID(ctx, device.Path, use.VolumeID)
	}

	if err != nil {
		return err
	}

	err = used.GrowUnmounted(ctx, device.Path)
	if err != nil && !errors.Is(err, filesystem.ErrNeedsMount) {
		return fmt.Errorf("grow %s: %w", used.Name(), err)
	}

	return nil
}

// replay mounts the filesystem where nobody sees it, so that its log is
// written back.
func replay(use *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	var flags []string
	if use.Copy {
		// What it is a copy of may be mounted.
		flags = used.DuplicateUUIDFlags()
	}

	options, err := mount.ParseFlags(flags)
	if err != nil {
		return err
	}

	tree, err := mount.Mount(device.Path, used.Name(), options)
	if err != nil {
		return rpc.Errorf(codes.Internal, "the log can't be replayed: %w", err)
	}

	tree.Close()

	return nil
}

// mountDevice mounts the filesystem, grown if need be before anybody sees it.
func mountDevice(ctx context.Context, used filesystem.Filesystem, device *loop.Device,
	place *mount.Target, options mount.Options,
) error {
	if !options.ReadOnly() && !used.GrowthSurvivesCrash() {
		// Unmounted again, the growth is no longer in the log only.
		if err := fill(ctx, used, device, options); err != nil {
			return err
		}
	}

	tree, err := mountSound(used, device, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	if !options.ReadOnly() {
		if err := growTree(ctx, used, device, tree); err != nil {
			return err
		}
	}

	return tree.Attach(place)
}

func mountSound(used filesystem.Filesystem, device *loop.Device, options mount.Options) (*mount.Detached, error) {
	tree, err := mount.Mount(device.Path, used.Name(), options)
	if errors.Is(err, unix.EBADMSG) || errors.Is(err, unix.EUCLEAN) {
		// A check believes a filesystem that says it is clean.
		return nil, rpc.Errorf(codes.Internal, "the %s is damaged; repair it by hand: %w", used.Name(), err)
	}

	if err != nil {
		return nil, blame(err, used, device, options)
	}

	return tree, nil
}

// blame finds out whether a mount failed for its flags: most of them are the
// filesystem's, whose kernel module alone knows what they may be. They are to
// blame if it succeeds without them and fails again with them.
func blame(failure error, used filesystem.Filesystem, device *loop.Device, options mount.Options) error {
	without := mount.Options{}
	if options.ReadOnly() {
		without = without.WithReadOnly()
	}

	if mounts(used, device, without) && !mounts(used, device, options) {
		return rpc.Invalid("volume_capability: with its mount_flags: %w", failure)
	}

	return failure
}

func mounts(used filesystem.Filesystem, device *loop.Device, options mount.Options) bool {
	tree, err := mount.Mount(device.Path, used.Name(), options)
	if err != nil {
		return false
	}

	tree.Close()

	return true
}

func growTree(ctx context.Context, used filesystem.Filesystem, device *loop.Device, tree *mount.Detached) error {
	size, err := device.SizeBytes()
	if err != nil {
		return err
	}

	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}
	defer root.Close()

	if err := used.GrowMounted(ctx, root, size); err != nil {
		return fmt.Errorf("grow %s: %w", used.Name(), err)
	}

	return nil
}

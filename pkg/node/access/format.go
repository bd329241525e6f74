package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Filesystems makes, checks and grows the filesystems of images before they are mounted.
type Filesystems struct {
	pools   staged.Pools
	devices *device.Devices
	loops   *loop.Loops
	checker Checker
	run     filesystem.Runner
	point   operation.Hook
	// templates make the filesystems of blank images.
	templates filesystem.Templates
}

// Of returns the filesystem of the volume. Error: INVALID_ARGUMENT for an unknown one.
func (f *Filesystems) Of(v *staged.Volume) (filesystem.Filesystem, error) {
	fs, err := filesystem.ByName(v.FSType(), f.run)
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_capability: %w", err)
	}

	return fs, nil
}

// FormatIfBlank makes the filesystem of a volume whose image is empty, and reports whether it
// did. An image with other data is never formatted.
func (f *Filesystems) FormatIfBlank(ctx context.Context, v *staged.Volume, wanted filesystem.Filesystem) (bool, error) {
	stored, err := f.pools.Of(v)
	if err != nil {
		return false, err
	}

	image, err := stored.Images.Open(v.ObjectID(), os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer image.Close()

	found, err := filesystem.Detect(image)
	if err != nil {
		return false, fmt.Errorf("detect the filesystem: %w", err)
	}

	if found == wanted.Name() {
		return false, checkFits(v, wanted, image)
	}

	if found != "" {
		return false, errdefs.Errorf(errdefs.ErrFailedPrecondition, "it holds %s, not %s; ask for that filesystem", found, wanted.Name())
	}

	if v.SharedByReaders() {
		return false, errdefs.Errorf(errdefs.ErrFailedPrecondition, "it holds no filesystem and can't be formatted while several nodes read it")
	}

	formatted, err := f.format(ctx, v, stored, wanted)
	if err != nil || !formatted {
		return formatted, err
	}

	return true, f.point.At(ctx, operation.ImageFormatted, v.VolumeID)
}

// checkFits returns filesystem.ErrTruncated for an image that is shorter than its filesystem, before
// a check or a mount writes to it. While a publication has it mounted, that must go on.
func checkFits(v *staged.Volume, wanted filesystem.Filesystem, image *os.File) error {
	if len(v.Publications) > 0 {
		return nil
	}

	info, err := image.Stat()
	if err != nil {
		return fmt.Errorf("stat the image: %w", err)
	}

	return filesystem.CheckFits(wanted, image, info.Size())
}

// format makes the filesystem if the image is blank, which it checks while it has locked the
// image: another node may be formatting it, or have it attached.
func (f *Filesystems) format(
	ctx context.Context, v *staged.Volume, stored *pool.Pool, wanted filesystem.Filesystem,
) (formatted bool, err error) {
	if err := filesystem.CheckOptions(wanted.Name(), strings.Fields(v.Parameters.MkfsOptions)); err != nil {
		return false, errdefs.Errorf(errdefs.ErrInvalidArgument, "%s: %w", volume.KeyMkfsOptions, err)
	}

	defer errdefs.Wrapf(&err, "format as %s", wanted.Name())

	filling, err := stored.Images.BeginFill(v.ObjectID(), v.Parameters.Provisioning == volume.Thick)
	if err != nil {
		return false, err
	}

	defer func() { err = filling.Close(err) }()

	if may, err := mayFormat(filling.Old(), wanted, f.checker.HasRecord(v.VolumeID)); !may || err != nil {
		return false, err
	}

	path, err := filling.Reserve()
	if err != nil {
		return false, err
	}

	if err := f.Make(ctx, v, stored, wanted, path); err != nil {
		return false, err
	}

	return true, filling.Commit()
}

// Make makes a volume's filesystem in a file of zeros in its pool, which is in no other use. It
// returns INVALID_ARGUMENT if mkfs refuses the volume's options, or the kernel what mkfs makes with
// them, and pool.ErrNoSpace if the pool is full.
func (f *Filesystems) Make(
	ctx context.Context, v *staged.Volume, stored *pool.Pool, made filesystem.Filesystem, path string,
) error {
	words, thick := strings.Fields(v.Parameters.MkfsOptions), v.Parameters.Provisioning == volume.Thick

	err := f.templates.Make(ctx, made, path, filesystem.MakeOptions{
		BlockSize: v.Parameters.BlockSize, NoLazyInit: thick, Options: words,
	})
	if err != nil {
		if !thick {
			err = stored.ExplainToolFailure(err)
		}

		if len(words) > 0 && errors.As(err, new(*filesystem.ToolError)) && !errors.Is(err, pool.ErrNoSpace) {
			err = errdefs.Errorf(errdefs.ErrInvalidArgument, "with mkfsOptions %q: %w", v.Parameters.MkfsOptions, err)
		}

		return err
	}

	if len(words) == 0 || v.IsDirect() {
		return nil
	}

	return f.tryMount(ctx, v, made, path)
}

// tryMount returns INVALID_ARGUMENT if the kernel does not mount a filesystem that mkfs has made with
// options: it may lack features that mkfs knows. No other program may have
// the file attached.
func (f *Filesystems) tryMount(ctx context.Context, v *staged.Volume, made filesystem.Filesystem, path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()

	attached, err := f.loops.Attach(ctx, file, loop.AttachOptions{
		Buffered: true, BlockSize: v.Parameters.BlockSize, AutoClear: true, AlreadyLocked: true, NoDiscard: true,
		PreferredNumber: device.None,
	})
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, f.devices.CloseAndDetach(ctx, v, attached)) }()

	options, err := mount.ParseFlags(made.ReplayFlags())
	if err != nil {
		return err
	}

	tree, err := mount.Mount(attached.Path, made.Name(), options)
	if err == nil {
		tree.Close()

		return nil
	}

	for _, refusal := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS} {
		if errors.Is(err, refusal) {
			return errdefs.Errorf(errdefs.ErrInvalidArgument,
				"%s %q: the kernel of this node does not mount what mkfs makes with them (its log has the reason; %s): %w",
				volume.KeyMkfsOptions, v.Parameters.MkfsOptions, filesystem.KernelNeeds(made.Name()), err)
		}
	}

	return err
}

// mayFormat reports whether the image is blank. One that another node has given the wanted
// filesystem meanwhile is not, and is no error. An image that had a filesystem on this node is not
// formatted again: that would hide the loss of its data.
func mayFormat(image *os.File, wanted filesystem.Filesystem, hadFilesystem bool) (bool, error) {
	found, err := filesystem.Detect(image)
	if err != nil || found == wanted.Name() {
		return false, err
	}

	blank, err := filesystem.IsBlank(image)
	if err != nil {
		return false, fmt.Errorf("probe whether the image is blank: %w", err)
	}

	switch {
	case !blank:
		return false, fmt.Errorf("%w, though it holds data, so it is not formatted; repair a copy of its image by hand, "+
			"restore a snapshot, or use it as raw block", filesystem.ErrUnrecognized)
	case hadFilesystem:
		return false, fmt.Errorf("%w any more: its data is lost, so it is not formatted; restore a snapshot", filesystem.ErrUnrecognized)
	default:
		return true, nil
	}
}

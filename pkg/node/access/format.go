package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/faults"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// formatIfBlank makes the filesystem of a volume whose image is empty, and reports whether it
// did. An image with other data is never formatted.
func (p *Provider) formatIfBlank(ctx context.Context, v *staged.Volume, wanted filesystem.Filesystem) (bool, error) {
	stored, err := p.PoolOf(v)
	if err != nil {
		return false, err
	}

	image, err := stored.OpenImage(v.VolumeID, os.O_RDONLY)
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
		return false, rpc.Errorf(codes.FailedPrecondition, "it holds %s, not %s; ask for that filesystem", found, wanted.Name())
	}

	if v.SharedByReaders() {
		return false, rpc.Errorf(codes.FailedPrecondition, "it holds no filesystem and can't be formatted while several nodes read it")
	}

	formatted, err := p.format(ctx, v, stored, wanted)
	if err == nil && formatted {
		err = p.config.Faults.At(ctx, faults.ImageFormatted, v.VolumeID)
	}

	return formatted, err
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
func (p *Provider) format(ctx context.Context, v *staged.Volume, stored *pool.Pool, wanted filesystem.Filesystem) (bool, error) {
	words := strings.Fields(v.Parameters.MkfsOptions)
	if err := filesystem.CheckOptions(wanted.Name(), words); err != nil {
		return false, rpc.Invalid("%s: %w", volume.KeyMkfsOptions, err)
	}

	thick := v.Parameters.Provisioning == volume.Thick
	options := filesystem.MakeOptions{BlockSize: v.Parameters.BlockSize, NoLazyInit: thick, Options: words}

	filled, err := stored.FillImage(ctx, v.VolumeID, pool.FillOptions{
		Thick: thick,
		Blank: func(image *os.File) (bool, error) {
			return mayFormat(image, wanted, p.config.Checker.HasRecord(v.VolumeID))
		},
		Fill: func(ctx context.Context, path string) error { return p.templates.Make(ctx, wanted, path, options) },
	})
	if err != nil {
		if len(words) > 0 && errors.As(err, new(*filesystem.ToolError)) {
			err = rpc.Invalid("with mkfsOptions %q: %w", v.Parameters.MkfsOptions, err)
		}

		return false, fmt.Errorf("format as %s: %w", wanted.Name(), err)
	}

	return filled, nil
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
		return false, fmt.Errorf("%w, but data, so it is not formatted; use it as raw block", filesystem.ErrUnrecognized)
	case hadFilesystem:
		return false, fmt.Errorf("%w any more: its data is lost, so it is not formatted; restore a snapshot", filesystem.ErrUnrecognized)
	default:
		return true, nil
	}
}

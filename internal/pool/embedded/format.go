package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// format makes the image under another name: until the rename there is none, so
// that a half-made filesystem is never seen.
func (s *mounter) format(ctx context.Context, size int64) (*os.File, error) {
	size = roundUpToBlock(size)

	if err := s.makeImage(ctx, size); err != nil {
		return nil, s.explainFullHost(fmt.Errorf("make %s: %w", layout.EmbeddedImage, errors.Join(err, s.removeScratch())))
	}

	s.Log.InfoContext(ctx, "an embedded pool was made", "image", s.path(layout.EmbeddedImage), "bytes", size, "filesystem", s.kind.name)

	return s.openImage()
}

func (s *mounter) makeImage(ctx context.Context, size int64) error {
	// The lock is held: a crash left it.
	if err := s.removeScratch(); err != nil {
		return err
	}

	image, err := s.root.OpenFile(layout.EmbeddedImageScratch, os.O_RDWR|os.O_CREATE|os.O_EXCL, imageMode)
	if err != nil {
		return err
	}
	defer image.Close()

	if err := image.Truncate(size); err != nil {
		return err
	}

	err = s.kind.tools.Make(ctx, image.Name(), filesystem.MakeOptions{BlockSize: loop.DefaultBlockSize, Options: s.kind.mkfsOptions})
	if err != nil {
		return err
	}

	if err := image.Sync(); err != nil {
		return err
	}

	if err := s.root.Rename(layout.EmbeddedImageScratch, layout.EmbeddedImage); err != nil {
		return err
	}

	return s.directory.Sync()
}

func (h *host) removeScratch() error {
	err := h.root.Remove(layout.EmbeddedImageScratch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	return err
}

// roundUpToBlock rounds an image's size up to the device's blocks.
func roundUpToBlock(size int64) int64 {
	return (size + loop.DefaultBlockSize - 1) / loop.DefaultBlockSize * loop.DefaultBlockSize
}

// hostFullBytes is so little free space that it explains a failure, in bytes.
const hostFullBytes = 64 << 20

// explainFullHost says so where the filesystem that carries the image is full: inside
// of the image that looks like a broken device.
func (h *host) explainFullHost(err error) error {
	free, statErr := h.hostFree()
	if statErr != nil || free >= hostFullBytes {
		return err
	}

	return fmt.Errorf("%w (%w: %s has %d bytes free; free some there)", err, ErrHostFull, h.Directory, free)
}

// hostFree is what the filesystem that carries the image has left, in bytes.
func (h *host) hostFree() (int64, error) {
	usage, err := mount.UsageOf(h.directory)
	if err != nil {
		return 0, fmt.Errorf("space of %s: %w", h.Directory, err)
	}

	return usage.Bytes.Available, nil
}

package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// format makes the image under another name: until the rename there is none, so
// that a half-made filesystem is never seen.
func (s *mounter) format(ctx context.Context, size int64) (*os.File, error) {
	image, err := s.formatScratch(ctx, roundUpToBlock(size))
	if err != nil {
		return nil, s.explainFullHost(fmt.Errorf("make %s: %w", layout.EmbeddedImage, err))
	}

	s.Log.InfoContext(ctx, "an embedded pool was made", "image", s.path(layout.EmbeddedImage), "bytes", roundUpToBlock(size))

	return image, nil
}

func (s *mounter) formatScratch(ctx context.Context, size int64) (*os.File, error) {
	home := int(s.directory.Fd())

	// The lock is ours: it is a crash's.
	if err := unix.Unlinkat(home, layout.EmbeddedImageScratch, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove what a crash left: %w", err)
	}

	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC

	descriptor, err := unix.Openat(home, layout.EmbeddedImageScratch, flags, imageMode)
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}

	image := os.NewFile(uintptr(descriptor), s.path(layout.EmbeddedImage))

	if err = image.Truncate(size); err == nil {
		err = s.xfs.Make(ctx, s.path(layout.EmbeddedImageScratch), filesystem.MakeOptions{
			BlockSize: loop.DefaultBlockSize, Options: []string{"-m", "reflink=1"},
		})
	}

	if err == nil {
		err = image.Sync()
	}

	if err == nil {
		err = unix.Renameat(home, layout.EmbeddedImageScratch, home, layout.EmbeddedImage)
	}

	if err != nil {
		return nil, errors.Join(err, image.Close(), unix.Unlinkat(home, layout.EmbeddedImageScratch, 0))
	}

	if err := s.directory.Sync(); err != nil {
		return nil, errors.Join(err, image.Close())
	}

	return image, nil
}

// roundUpToBlock rounds an image's size up to the device's blocks.
func roundUpToBlock(size int64) int64 {
	return (size + loop.DefaultBlockSize - 1) / loop.DefaultBlockSize * loop.DefaultBlockSize
}

// scarce is so little free space that it explains a failure, in bytes.
const hostFullBytes = 64 << 20

// explainFullHost says so where the filesystem that carries the image is full: inside
// of the image that looks like a broken device.
func (s *mounter) explainFullHost(err error) error {
	free, statErr := s.hostFree()
	if err == nil || statErr != nil || free >= hostFullBytes {
		return err
	}

	return fmt.Errorf("%w (%w: %s has %d bytes free; free some there)", err, ErrHostFull, s.Directory, free)
}

// hostFree is what the filesystem that carries the image has left, in bytes.
func (s *mounter) hostFree() (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(s.directory.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("space of %s: %w", s.Directory, err)
	}

	return int64(stat.Bavail) * stat.Bsize, nil
}

package embedded

import (
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// Locate returns the directory with the pool's objects, without changing
// anything: where its image is mounted or, without one, the directory itself.
// Errors: ErrNotMounted, ErrForeign.
func Locate(directory string) (string, error) {
	options := Options{Directory: directory}

	if hasImage, err := options.hasAny(layout.EmbeddedImage); err != nil || !hasImage {
		return directory, err
	}

	if err := checkMounted(options); err != nil {
		return "", fmt.Errorf("embedded pool in %s: %w", directory, err)
	}

	return options.path(layout.EmbeddedMountPoint), nil
}

// checkMounted returns ErrNotMounted or ErrForeign unless the image is mounted.
func checkMounted(options Options) error {
	s, err := open(options)
	defer s.close()

	if err != nil {
		return err
	}

	_, _, mounted, err := s.mountedImage()
	if err != nil || mounted {
		return err
	}

	return fmt.Errorf("%w: mount it while no driver runs (mount -o loop,discard %s %s), and unmount it again afterwards",
		ErrNotMounted, s.path(layout.EmbeddedImage), s.target.Path())
}

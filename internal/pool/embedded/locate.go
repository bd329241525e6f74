package embedded

import (
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// Locate returns the directory with the pool's objects, without changing
// anything: where its image is mounted or, without one, the directory itself.
// Errors: ErrNotMounted, ErrForeign.
func Locate(directory string) (_ string, err error) {
	options := Options{Directory: directory}

	if hasImage, err := options.hasAny(layout.EmbeddedImage); err != nil || !hasImage {
		return directory, err
	}

	defer errdefs.Wrapf(&err, "embedded pool in %s", directory)

	s, err := open(options)
	defer s.close()

	if err != nil {
		return "", err
	}

	_, _, mounted, err := s.mountedImage()
	if err != nil {
		return "", err
	}

	if !mounted {
		return "", fmt.Errorf("%w: mount it while no driver runs (mount -o loop,discard %s %s), and unmount it again afterwards",
			ErrNotMounted, s.path(layout.EmbeddedImage), s.target.Path())
	}

	return options.path(layout.EmbeddedMountPoint), nil
}

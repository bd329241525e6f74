package embedded

import (
	"fmt"

	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// Locate returns the directory with the pool's objects, without changing
// anything: where its image is mounted or, without one, the directory itself.
// Errors: ErrNotMounted, ErrForeign.
func Locate(directory string) (string, error) {
	options := Options{Directory: directory}
	options.complete()

	if !options.has(layout.EmbeddedImage) {
		return directory, nil
	}

	if err := options.mounted(); err != nil {
		return "", fmt.Errorf("embedded pool in %s: %w", directory, err)
	}

	return options.path(layout.EmbeddedMountPoint), nil
}

// mounted returns nil if the image is.
func (o *Options) mounted() error {
	s, err := open(*o)
	if err != nil {
		return err
	}
	defer s.close()

	point, mounted, err := s.target.Mounted()
	if err != nil {
		return err
	}

	if !mounted {
		image, place := o.path(layout.EmbeddedImage), o.path(layout.EmbeddedMountPoint)

		return fmt.Errorf("%w: mount it while no driver runs (mount -o loop,discard %s %s), and unmount it again afterwards",
			ErrNotMounted, image, place)
	}

	image, err := s.openImage()
	if err != nil {
		return err
	}

	if image == nil {
		return ErrForeign
	}
	defer image.Close()

	_, err = s.verifyMount(point, image)

	return err
}

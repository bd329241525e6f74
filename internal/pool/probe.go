package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

var (
	// ErrReplaced is returned if the directory at a pool's path is not the one that was opened: its
	// filesystem was unmounted, or another one mounted over it.
	ErrReplaced = errors.New("it was replaced by another directory")
	// ErrReadOnly is returned for a pool in which no file can be created.
	ErrReadOnly = errors.New("it is read-only")
)

// Size returns the size of the object's image; for a directory it only checks that it exists. It
// opens nothing: 3 µs. Errors: ErrMissing, also if the file is of another type.
func (p *Pool) Size(object Object) (int64, error) {
	info, err := p.lstat(object)
	if err != nil {
		return 0, err
	}

	wanted := fs.FileMode(0)
	if object.Backing == volume.BackingDirectory {
		wanted = fs.ModeDir
	}

	if info.Mode().Type() != wanted {
		return 0, fmt.Errorf("%s: %w %q at %s: a file of another type (%s) has its path",
			object, ErrMissing, p.name, p.path, info.Mode())
	}

	return info.Size(), nil
}

// Probe returns the reason why the pool cannot be used, or nil. It may block as long as the pool's
// filesystem does. Errors: ErrReplaced; ErrReadOnly, or ErrNoSpace, for a pool that can be read;
// any other error for one that cannot.
func (p *Pool) Probe() error {
	found, err := os.Stat(filepath.Join(p.path, layout.Images))
	if err != nil {
		return fmt.Errorf("stat pool %q at %s: %w", p.name, p.path, err)
	}

	opened, err := p.images.Stat(".")
	if err != nil {
		return fmt.Errorf("stat pool %q at %s: %w", p.name, p.path, err)
	}

	if !os.SameFile(found, opened) {
		return fmt.Errorf("pool %q at %s: %w", p.name, p.path, ErrReplaced)
	}

	err = p.checkWritable()
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}

	return p.spaceError(err)
}

// CheckGrowth returns filesystem.ErrGrowLimit if the filesystem of an image cannot become as large.
// Errors: ErrMissing.
func (p *Pool) CheckGrowth(object Object, bytes int64) error {
	image, err := p.open(object)
	if err != nil {
		return err
	}
	defer image.Close()

	if err := filesystem.CheckGrowth(image, bytes); err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}

	return nil
}

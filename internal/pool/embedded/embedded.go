package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

const (
	directoryMode = 0o700
	imageMode     = 0o600
)

// Options say which pool it is about.
type Options struct {
	// Directory is the pool's, an absolute path.
	Directory string
	// Bytes is the least size of the image. 0 makes none; one that is there is
	// used nevertheless, since the volumes are in it.
	Bytes int64
	// Filesystem is that of a new image, one of Filesystems; empty means DefaultFilesystem. An
	// image that is there keeps its own.
	Filesystem string
	// MustExist: the pool has an image already; a missing one is neither created nor
	// formatted.
	MustExist bool
	// Log may be nil.
	Log *slog.Logger
}

func (o *Options) path(name string) string { return filepath.Join(o.Directory, name) }

// hasAny reports whether the directory has one of the names; what is no directory has none. An error means
// that this is unknown: a pool that is taken for one without an image would be served without its volumes.
func (o *Options) hasAny(names ...string) (bool, error) {
	for _, name := range names {
		_, err := os.Lstat(o.path(name))
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return err == nil, err
		}
	}

	return false, nil
}

// Pool is where a pool's volumes are. It keeps the filesystem mounted until
// Close.
type Pool struct {
	options Options
	// root is the mount's root, nil for a pool without an image.
	root *os.File
	// unprivileged means that this process had no right to make the mount: the process
	// that made it removes it.
	unprivileged bool
}

// Ensure makes sure that the pool's filesystem is there and mounted, and at
// least Bytes large. No image is made where the directory's own filesystem
// reflinks. What is there is checked before it is mounted, and never formatted
// when it holds anything. Errors: ErrForeign, ErrDamaged, ErrPrivilege, ErrHostFull, ErrBusy,
// filesystem.ErrUnknown, those of internal/linux/filesystem and internal/linux/loop, or ctx's.
func Ensure(ctx context.Context, options Options) (made *Pool, err error) {
	defer errdefs.Wrapf(&err, "embedded pool in %s", options.Directory)

	if options.Bytes > 0 {
		if err := os.MkdirAll(options.Directory, directoryMode); err != nil {
			return nil, fmt.Errorf("make the directory: %w", err)
		}
	}

	made = &Pool{options: options}

	// An ordinary pool is left alone, locks included.
	if options.Bytes == 0 {
		if isEmbedded, err := options.hasAny(layout.EmbeddedImage, layout.EmbeddedMountPoint); err != nil || !isEmbedded {
			return made, err
		}
	}

	s, err := open(options)
	defer s.close()

	if err != nil {
		return nil, err
	}

	if err := s.lock(ctx); err != nil {
		return nil, err
	}

	image, err := s.findOrMakeImage(ctx)
	if err != nil {
		return nil, err
	}

	if image == nil {
		return made, nil
	}
	defer image.Close()

	made.unprivileged = !s.privileged
	if made.root, err = s.adoptOrMount(ctx, image); err != nil {
		return nil, err
	}

	return made, nil
}

// Directory returns the directory with the pool's objects.
func (p *Pool) Directory() string {
	if p.root == nil {
		return p.options.Directory
	}

	return p.options.path(layout.EmbeddedMountPoint)
}

// Image is the path of the file that holds the pool's filesystem, empty for a
// pool without one.
func (p *Pool) Image() string {
	if p.root == nil {
		return ""
	}

	return p.options.path(layout.EmbeddedImage)
}

// Close unmounts the filesystem, unless volumes or other processes use it: then
// it stays for the next Ensure. A second call does nothing.
func (p *Pool) Close(ctx context.Context) (err error) {
	if p.root == nil {
		return nil
	}

	_ = p.root.Close()
	p.root = nil

	if p.unprivileged {
		return nil
	}

	defer errdefs.Wrapf(&err, "embedded pool in %s", p.options.Directory)

	s, err := open(p.options)
	defer s.close()

	if err != nil {
		return err
	}

	// No process adopts a mount that is being removed, or removes one being adopted.
	if err := s.lock(ctx); err != nil {
		return err
	}

	return s.unmount(ctx)
}

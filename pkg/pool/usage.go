package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Usage is what one volume's directory holds.
type Usage struct {
	// Bytes are those that are allocated, not the lengths of sparse files.
	Bytes  int64
	Inodes int64
}

// DirectoryUsage walks the directory of a volume: it takes time in proportion
// to the number of files, until ctx ends. Errors: ErrMissing, ctx's.
func (p *Pool) DirectoryUsage(ctx context.Context, id string) (Usage, error) {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return Usage{}, err
	}
	defer directory.Close()

	usage, err := usageOfTree(ctx, directory)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of volume %s in pool %q: %w", id, p.name, err)
	}

	return usage, nil
}

// Usage says what is in the place of an object, whatever it is. For a directory
// it takes time in proportion to the number of files. Errors: ErrMissing, ctx's.
func (p *Pool) Usage(ctx context.Context, object Object) (Usage, error) {
	if err := checkID(object.ID); err != nil {
		return Usage{}, err
	}

	usage, err := usageIn(ctx, p.parentOf(object), object.fileName())
	if err != nil {
		return Usage{}, p.notFoundError(object.String(), err)
	}

	return usage, nil
}

func usageIn(ctx context.Context, room *os.Root, name string) (Usage, error) {
	info, err := room.Lstat(name)
	if err != nil {
		return Usage{}, err //nolint:wrapcheck // the callers name the object
	}

	if !info.IsDir() {
		return Usage{Bytes: allocatedBytes(info), Inodes: 1}, nil
	}

	directory, err := OpenIn(room, name, unix.O_DIRECTORY, 0)
	if err != nil {
		return Usage{}, err
	}
	defer directory.Close()

	return usageOfTree(ctx, directory)
}

// AllocatedBytes says how many bytes of the pool a volume holds. For a directory
// it takes time in proportion to the number of files. Errors: ErrMissing, ctx's.
func (p *Pool) AllocatedBytes(ctx context.Context, id string, backing volume.Backing) (int64, error) {
	if backing == volume.BackingDirectory {
		usage, err := p.DirectoryUsage(ctx, id)

		return usage.Bytes, err
	}

	if err := checkID(id); err != nil {
		return 0, err
	}

	info, err := p.images.Lstat(id + layout.ImageSuffix)
	if err != nil {
		return 0, p.notFoundError("volume "+id, err)
	}

	return allocatedBytes(info), nil
}

func usageOfTree(ctx context.Context, directory *os.File) (Usage, error) {
	found, err := statx(directory)
	if err != nil {
		return Usage{}, err
	}

	var counting usageCounter

	counting.add(found, 1)

	// The caller keeps its own descriptor.
	opened, err := openForReading(directory, unix.O_DIRECTORY)
	if err != nil {
		return Usage{}, err
	}
	defer opened.Close()

	err = counting.within(ctx, opened, "")

	return Usage{Bytes: int64(math.Round(counting.bytes)), Inodes: int64(math.Round(counting.inodes))}, err
}

// counter counts a tree. A file with several names adds an equal part for each of
// them, which needs no memory of the files seen: a link never leaves a volume.
type usageCounter struct {
	bytes, inodes float64
	// extents, unless nil, counts the blocks of regular files instead of bytes: on a
	// filesystem where files can share blocks.
	extents *Allocation
}

func (c *usageCounter) add(found *unix.Statx_t, names uint32) {
	c.bytes += float64(found.Blocks) * statBlock / float64(names)
	c.inodes += 1 / float64(names)
}

// within counts what is in a directory.
func (c *usageCounter) within(ctx context.Context, directory *os.File, path string) error {
	return eachName(ctx, directory, path, func(name, path string) error {
		pinned, err := openPath(directory, name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
			return nil // it is gone, or it is not the volume's
		}

		if err != nil {
			return copyError(path, err)
		}
		defer pinned.Close()

		found, err := statx(pinned)
		if err != nil {
			return copyError(path, err)
		}

		if found.Mode&unix.S_IFMT == unix.S_IFDIR {
			c.add(found, 1)

			return c.enter(ctx, pinned, path)
		}

		names := max(found.Nlink, 1)
		if c.extents != nil && found.Mode&unix.S_IFMT == unix.S_IFREG && found.Blocks > 0 {
			return copyError(path, c.extents.addFile(ctx, pinned, names))
		}

		c.add(found, names)

		return nil
	})
}

func (c *usageCounter) enter(ctx context.Context, pinned *os.File, path string) error {
	opened, err := openForReading(pinned, unix.O_DIRECTORY)
	if err != nil {
		return copyError(path, err)
	}
	defer opened.Close()

	// One descriptor a level is enough.
	_ = pinned.Close()

	return c.within(ctx, opened, path)
}

// eachName calls visit for the names in a directory, and their paths from the
// root of the tree, as path is the directory's.
func eachName(ctx context.Context, directory *os.File, path string, visit func(name, path string) error) error {
	if strings.Count(path, "/") >= maxDepth {
		return copyError(path, fmt.Errorf("%w: a tree of more than %d directories in each other", errors.ErrUnsupported, maxDepth))
	}

	for {
		names, err := directory.Readdirnames(listBatch)
		for _, name := range names {
			if ctx.Err() != nil {
				return ctx.Err()
			}

			if err := visit(name, filepath.Join(path, name)); err != nil {
				return err
			}
		}

		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil // a directory that is gone has no names left
		}

		if err != nil {
			return copyError(path, err)
		}
	}
}

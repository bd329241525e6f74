package tree

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
)

// maxDepth is more than a path can have. A tree made deeper, step by step, would use up the
// descriptors of other volumes.
const maxDepth = 2048

// readdirBatch bounds the memory for a directory with very many names.
const readdirBatch = 4096

// Usage is the space of a directory tree.
type Usage struct {
	// Bytes are allocated ones, not the lengths of sparse files.
	Bytes  int64
	Inodes int64
}

// FileVisitor measures the data of a regular file with this number of hard links. The descriptor
// was opened with O_PATH. Measure then does not count the file itself.
type FileVisitor func(ctx context.Context, pinned *os.File, links uint32) error

// Measure walks a directory and returns what it has allocated, without following symlinks or
// crossing mounts. visit, unless nil, is called for each regular file that has blocks.
func Measure(ctx context.Context, directory *os.File, visit FileVisitor) (Usage, error) {
	found, err := Stat(directory)
	if err != nil {
		return Usage{}, err
	}

	counter := usageCounter{visit: visit}

	counter.add(found, 1)

	// The caller keeps its own descriptor.
	opened, err := openForReading(directory, unix.O_DIRECTORY)
	if err != nil {
		return Usage{}, err
	}
	defer opened.Close()

	err = counter.within(ctx, opened, "")

	return Usage{Bytes: int64(math.Round(counter.bytes)), Inodes: int64(math.Round(counter.inodes))}, err
}

// usageCounter adds up a tree. A file with several links adds an equal part for each of them, which
// needs no list of the files already counted: a link never leaves its volume.
type usageCounter struct {
	bytes, inodes float64
	visit         FileVisitor
}

func (c *usageCounter) add(found *unix.Statx_t, links uint32) {
	c.bytes += float64(found.Blocks) * statBlock / float64(links)
	c.inodes += 1 / float64(links)
}

// within counts the content of a directory.
func (c *usageCounter) within(ctx context.Context, directory *os.File, path string) error {
	return eachName(ctx, directory, path, func(name, path string) error {
		pinned, err := openPath(directory, name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
			return nil // removed since, or a mount
		}

		if err != nil {
			return copyError(path, err)
		}
		defer pinned.Close()

		found, err := Stat(pinned)
		if err != nil {
			return copyError(path, err)
		}

		if found.Mode&unix.S_IFMT == unix.S_IFDIR {
			c.add(found, 1)

			return c.enter(ctx, pinned, path)
		}

		links := max(found.Nlink, 1)
		if c.visit != nil && found.Mode&unix.S_IFMT == unix.S_IFREG && found.Blocks > 0 {
			return copyError(path, c.visit(ctx, pinned, links))
		}

		c.add(found, links)

		return nil
	})
}

func (c *usageCounter) enter(ctx context.Context, pinned *os.File, path string) error {
	opened, err := openForReading(pinned, unix.O_DIRECTORY)
	if err != nil {
		return copyError(path, err)
	}
	defer opened.Close()

	// Bound the descriptors to one per level.
	_ = pinned.Close()

	return c.within(ctx, opened, path)
}

// eachName calls visit for the names in a directory and their paths relative to the root of the
// tree.
func eachName(ctx context.Context, directory *os.File, path string, visit func(name, path string) error) error {
	if strings.Count(path, "/") >= maxDepth {
		return copyError(path, fmt.Errorf("%w: a tree of more than %d directories in each other", errors.ErrUnsupported, maxDepth))
	}

	for {
		names, err := directory.Readdirnames(readdirBatch)
		for _, name := range names {
			if ctx.Err() != nil {
				return ctx.Err()
			}

			if err := visit(name, filepath.Join(path, name)); err != nil {
				return err
			}
		}

		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil // the directory was removed
		}

		if err != nil {
			return copyError(path, err)
		}
	}
}

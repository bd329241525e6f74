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
// crossing mounts. visit, unless nil, is called for each regular file that has blocks. The first error ends it.
func Measure(ctx context.Context, directory *os.File, visit FileVisitor) (Usage, error) {
	// A file with several links adds an equal part for each of them, which needs no list of the files
	// already counted: a link never leaves its volume.
	var bytes, inodes float64

	err := walk(ctx, directory, true, func(file *os.File, found *unix.Statx_t) error {
		kind, links := found.Mode&unix.S_IFMT, max(found.Nlink, 1)
		if kind == unix.S_IFDIR {
			links = 1
		}

		if visit != nil && kind == unix.S_IFREG && found.Blocks > 0 {
			return visit(ctx, file, links)
		}

		bytes += float64(found.Blocks) * statBlock / float64(links)
		inodes += 1 / float64(links)

		return nil
	})

	return Usage{Bytes: int64(math.Round(bytes)), Inodes: int64(math.Round(inodes))}, err
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

package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

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
	if err := checkID(id); err != nil {
		return Usage{}, err
	}

	root, err := p.directories.OpenRoot(id)
	if err != nil {
		return Usage{}, p.missing("volume "+id, err)
	}
	defer root.Close()

	var usage Usage

	linked := map[uint64]struct{}{}

	err = fs.WalkDir(root.FS(), ".", func(_ string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}

		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}

		// Workloads remove files while we look.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}

		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 && !info.IsDir() {
			if _, counted := linked[stat.Ino]; counted {
				return nil
			}

			linked[stat.Ino] = struct{}{}
		}

		usage.Bytes += allocatedBytes(info)
		usage.Inodes++

		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("usage of volume %s in pool %q: %w", id, p.name, err)
	}

	return usage, nil
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

	info, err := p.images.Lstat(id + ImageSuffix)
	if err != nil {
		return 0, p.missing("volume "+id, err)
	}

	return allocatedBytes(info), nil
}

package pool

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// DirectoryUsage walks the directory of a volume. It takes time in proportion to the number of
// files. Errors: ErrMissing, ctx's.
func (p *Pool) DirectoryUsage(ctx context.Context, id string) (tree.Usage, error) {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return tree.Usage{}, err
	}
	defer directory.Close()

	usage, err := tree.Measure(ctx, directory, nil)
	if err != nil {
		return tree.Usage{}, fmt.Errorf("usage of volume %s in pool %q: %w", id, p.name, err)
	}

	return usage, nil
}

// Usage measures what has the name of an object, whatever it is. For a directory
// it takes time in proportion to the number of files. Errors: ErrMissing, ctx's.
func (p *Pool) Usage(ctx context.Context, object Object) (tree.Usage, error) {
	if err := checkID(object.ID); err != nil {
		return tree.Usage{}, err
	}

	usage, err := usageIn(ctx, p.parentOf(object), object.fileName())
	if err != nil {
		return tree.Usage{}, p.notFoundError(object.String(), err)
	}

	return usage, nil
}

func usageIn(ctx context.Context, room *os.Root, name string) (tree.Usage, error) {
	info, err := room.Lstat(name)
	if err != nil {
		return tree.Usage{}, err
	}

	if !info.IsDir() {
		return tree.Usage{Bytes: allocatedBytes(info), Inodes: 1}, nil
	}

	directory, err := tree.OpenIn(room, name, unix.O_DIRECTORY, 0)
	if err != nil {
		return tree.Usage{}, err
	}
	defer directory.Close()

	return tree.Measure(ctx, directory, nil)
}

// AllocatedBytes returns the space of a volume in the pool. For a directory without a size limit it
// takes time in proportion to the number of files. Errors: ErrMissing, ctx's.
func (p *Pool) AllocatedBytes(ctx context.Context, id string, backing volume.Backing) (int64, error) {
	if backing == volume.BackingDirectory {
		counted, limited, err := p.DirectoryQuota(id)
		if err != nil || limited {
			return counted.Bytes, err
		}

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

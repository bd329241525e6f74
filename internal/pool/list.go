package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// listBatch bounds the memory that a pool with very many volumes takes.
const listBatch = 4096

// Entry is a file or directory in the pool that is named like a volume.
type Entry struct {
	ID      string
	Backing volume.Backing
}

// List calls visit for every volume in the pool, in no order, until visit returns an error.
func (p *Pool) List(ctx context.Context, visit func(Entry) error) error {
	err := listIDs(ctx, p.images, layout.ImageSuffix, func(id string) error {
		return visit(Entry{ID: id, Backing: volume.BackingImage})
	})
	if err != nil {
		return fmt.Errorf("list images of pool %q: %w", p.name, err)
	}

	err = listIDs(ctx, p.directories, "", func(id string) error {
		return visit(Entry{ID: id, Backing: volume.BackingDirectory})
	})
	if err != nil {
		return fmt.Errorf("list directories of pool %q: %w", p.name, err)
	}

	return nil
}

// RemoveEmptyOrphan removes an orphan that has no data: an image without blocks that is not
// attached, or an empty directory. It reports whether it did.
func (p *Pool) RemoveEmptyOrphan(ctx context.Context, entry Entry) (bool, error) {
	if err := checkID(entry.ID); err != nil {
		return false, err
	}

	if entry.Backing == volume.BackingDirectory {
		return p.removeEmptyDirectory(ctx, entry.ID)
	}

	info, err := p.images.Lstat(entry.ID + layout.ImageSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("orphan %s in pool %q: %w", entry.ID, p.name, err)
	}

	if !info.Mode().IsRegular() || allocatedBytes(info) > 0 {
		return false, nil
	}

	removed, err := p.removeUnused(entry.ID)
	if err != nil {
		return false, fmt.Errorf("orphan %s in pool %q: %w", entry.ID, p.name, err)
	}

	return removed, nil
}

// removeEmptyDirectory uses AT_REMOVEDIR, so that the kernel checks that it is an empty directory:
// os.Root would also remove a file. A subvolume has a quota group, too.
func (p *Pool) removeEmptyDirectory(ctx context.Context, id string) (bool, error) {
	room, err := p.directories.Open(".")
	if err != nil {
		return false, fmt.Errorf("orphan %s in pool %q: %w", id, p.name, err)
	}
	defer room.Close()

	empty, err := isEmpty(room, id)
	if err != nil || !empty {
		return false, nil // it has files, is no directory, or cannot be read
	}

	removed, err := p.quotas.Remove(ctx, room, id)
	if err != nil || removed {
		return removed, err
	}

	err = unix.Unlinkat(int(room.Fd()), id, unix.AT_REMOVEDIR)

	return err == nil || errors.Is(err, fs.ErrNotExist), nil
}

// isEmpty reports whether a name is an empty directory, or missing.
func isEmpty(parent *os.File, name string) (bool, error) {
	directory, err := tree.OpenAt(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}

	if err != nil {
		return false, err
	}
	defer directory.Close()

	_, err = directory.Readdirnames(1)

	return errors.Is(err, io.EOF), nil
}

// removeUnused removes an empty image unless it is locked: an attached image is
// (internal/linux/loop), and may be written at any time.
func (p *Pool) removeUnused(id string) (bool, error) {
	image, err := p.OpenImage(id, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer image.Close()

	err = flock.TryLock(image, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}

	if err != nil {
		return false, lockError(image.Name(), err)
	}

	// It could be written before it was locked.
	info, err := image.Stat()
	if err != nil || allocatedBytes(info) > 0 {
		return false, err
	}

	return true, p.images.Remove(id + layout.ImageSuffix)
}

func listIDs(ctx context.Context, root *os.Root, suffix string, visit func(id string) error) error {
	return listNames(ctx, root, func(name string) error {
		if id, ok := strings.CutSuffix(name, suffix); ok && volume.IsID(id) {
			return visit(id)
		}

		return nil
	})
}

func listNames(ctx context.Context, root *os.Root, visit func(name string) error) error {
	if root == nil {
		return nil // a directory that is missing in a pool opened with NoCreate
	}

	directory, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("open %s: %w", root.Name(), err)
	}
	defer directory.Close()

	for {
		names, err := directory.Readdirnames(listBatch)
		for _, name := range names {
			if err := visit(name); err != nil {
				return err
			}
		}

		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", root.Name(), err)
		case ctx.Err() != nil:
			return fmt.Errorf("read %s: %w", root.Name(), ctx.Err())
		}
	}
}

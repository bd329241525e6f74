package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// ScratchObject is an object in scratch.
type ScratchObject struct {
	ID, Path string
	// Bytes is its space in the pool.
	Bytes int64
	// InProgress means that a process has it locked.
	InProgress bool
}

// ListScratch calls visit for each object that is being made, or that a crash left, in no order,
// until visit returns an error.
func (p *Pool) ListScratch(ctx context.Context, visit func(ScratchObject) error) error {
	found := map[string]struct{}{}
	note := func(id string) error {
		found[id] = struct{}{}

		return nil
	}

	err := errors.Join(listIDs(ctx, p.scratch, layout.ImageSuffix, note), listIDs(ctx, p.scratch, "", note))
	if err != nil {
		return fmt.Errorf("list the scratch of pool %q: %w", p.name, err)
	}

	for id := range found {
		if err := p.visitScratch(ctx, id, visit); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("scratch of %s in pool %q: %w", id, p.name, err)
		}
	}

	return nil
}

// visitScratch passes the image and the directory of an id to visit as one object.
func (p *Pool) visitScratch(ctx context.Context, id string, visit func(ScratchObject) error) error {
	left := ScratchObject{ID: id}

	for _, name := range []string{id + layout.ImageSuffix, id} {
		usage, err := usageIn(ctx, p.scratch, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if err != nil {
			return err
		}

		left.Path = filepath.Join(p.scratch.Name(), name)
		left.Bytes += usage.Bytes
	}

	var err error
	if left.InProgress, err = p.scratchLocked(id); err != nil {
		return err
	}

	return visit(left)
}

// scratchLocked reports whether a process has locked the scratch of an id, without creating it.
func (p *Pool) scratchLocked(id string) (bool, error) {
	file, err := tree.OpenIn(p.scratch, id+layout.ImageSuffix, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}

	if err != nil {
		return false, err
	}
	defer file.Close()

	err = flock.TryLock(file, unix.LOCK_SH)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}

	if flock.Unsupported(err) {
		return false, nil
	}

	return false, err
}

// ListForeign calls visit with the path of each file in the pool's directories whose name is not
// one of the pool's, in no order, until visit returns an error.
func (p *Pool) ListForeign(ctx context.Context, visit func(path string) error) error {
	for _, directory := range []struct {
		root     *os.Root
		suffixes []string
	}{
		{p.images, []string{layout.ImageSuffix}},
		{p.directories, []string{""}},
		{p.snapshots, []string{layout.ImageSuffix, ""}},
		{p.scratch, []string{layout.ImageSuffix, "", layout.LinksSuffix}},
	} {
		err := listNames(ctx, directory.root, func(name string) error {
			for _, suffix := range directory.suffixes {
				if id, ok := strings.CutSuffix(name, suffix); ok && volume.IsID(id) {
					return nil
				}
			}

			return visit(filepath.Join(directory.root.Name(), name))
		})
		if err != nil {
			return fmt.Errorf("list pool %q: %w", p.name, err)
		}
	}

	return nil
}

package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// maxShared bounds the memory of an Allocation, to 16 MiB.
const maxShared = 1 << 20

// Allocation is a sum of the space that objects have allocated in the filesystem of
// their pool. Blocks that several of them share count once. Where a file's shared
// blocks cannot be determined the sum is too small, never too large.
type Allocation struct {
	bytes int64
	// shared are the ranges that another file may have as well.
	shared []span
	// full means that no more ranges are kept.
	full bool
}

// span is a range of a filesystem's device.
type span struct{ start, end uint64 }

// Add adds the space of an object, or of its unfinished copy in scratch. An object
// that is in neither adds nothing. A directory that no quota counts takes time in proportion to the number
// of its files. Errors: ctx's.
func (a *Allocation) Add(ctx context.Context, from *Pool, object Object) error {
	parent, err := from.parentOf(object)
	if err != nil {
		return err
	}

	for _, room := range []*os.Root{parent, from.roots[layout.Scratch]} {
		err := a.addEntry(ctx, from, room, object.fileName())
		if err == nil {
			return nil
		}

		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("space of %s in pool %q: %w", object, from.name, err)
		}
	}

	return nil
}

func (a *Allocation) addEntry(ctx context.Context, from *Pool, room *os.Root, name string) error {
	info, err := room.Lstat(name)

	switch {
	case err != nil:
		return err
	case info.IsDir():
		return a.addTree(ctx, from, room, name)
	case from.Images.reflinks && allocatedBytes(info) > 0:
		return a.addImage(ctx, room, name)
	default:
		a.bytes += allocatedBytes(info)

		return nil
	}
}

// Bytes is the sum.
func (a *Allocation) Bytes() int64 {
	a.merge()

	sum := a.bytes
	for _, each := range a.shared {
		sum += int64(each.end - each.start)
	}

	return sum
}

func (a *Allocation) addImage(ctx context.Context, room *os.Root, name string) error {
	image, err := tree.OpenIn(room, name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer image.Close()

	return a.addExtents(ctx, image, 1)
}

func (a *Allocation) addTree(ctx context.Context, from *Pool, room *os.Root, name string) error {
	directory, err := tree.OpenIn(room, name, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer directory.Close()

	counted, known, err := from.Directories.quotas.Allocated(directory)
	if err != nil || known {
		a.bytes += counted

		return err
	}

	var visit tree.FileVisitor
	if from.Images.reflinks {
		visit = a.addFile
	}

	usage, err := tree.Measure(ctx, directory, visit)
	if err != nil {
		return err
	}

	a.bytes += usage.Bytes

	return nil
}

// addFile adds a file with so many hard links, one of which is in the directory.
// A file that cannot be opened adds nothing.
func (a *Allocation) addFile(ctx context.Context, pinned *os.File, names uint32) error {
	file, err := tree.OpenPinned(pinned)
	if errors.Is(err, tree.ErrLeased) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer file.Close()

	return a.addExtents(ctx, file, names)
}

// addExtents adds nothing on a filesystem without FIEMAP.
func (a *Allocation) addExtents(ctx context.Context, file *os.File, links uint32) error {
	for found, err := range extent.Allocated(ctx, file) {
		if errors.Is(err, errors.ErrUnsupported) {
			return nil
		}

		if err != nil {
			return err
		}

		a.addExtent(found, links)
	}

	return nil
}

// addExtent adds an extent of a file with so many hard links.
func (a *Allocation) addExtent(found extent.Extent, links uint32) {
	switch {
	case found.Encoded:
		// Its length is that of the data, not of the blocks.
	case found.Shared && found.Located:
		a.addShared(span{uint64(found.Physical), uint64(found.Physical + found.End - found.Start)})
	case !found.Shared:
		a.bytes += (found.End - found.Start) / int64(links)
	}
}

func (a *Allocation) addShared(at span) {
	if a.full {
		return
	}

	a.shared = append(a.shared, at)
	if len(a.shared) == maxShared {
		a.merge()
		// Otherwise each further range could cost another merge.
		a.full = len(a.shared) > maxShared/2
	}
}

// merge joins ranges that overlap or touch.
func (a *Allocation) merge() {
	slices.SortFunc(a.shared, func(x, y span) int { return cmp.Compare(x.start, y.start) })

	merged := a.shared[:0]
	for _, each := range a.shared {
		if last := len(merged) - 1; last >= 0 && each.start <= merged[last].end {
			merged[last].end = max(merged[last].end, each.end)
		} else {
			merged = append(merged, each)
		}
	}

	a.shared = merged
}

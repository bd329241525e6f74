package changedblocks

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// BlockBytes is the unit to which ranges are rounded, outwards. No device has larger sectors, so
// the ranges can be read with direct I/O.
const BlockBytes = 4096

// compareBytes is how much of each of two files is read at once.
const compareBytes = 1 << 20

// ErrNotImmutable is returned if a file changed while it was read.
var ErrNotImmutable = errors.New("the file is being changed")

// Allocated calls visit, in order, for the ranges of file from the given offset that have ever been
// written; all others read as zeros. Ranges do not touch; they start and end at multiples of
// BlockBytes, or at from and at the end of the file. The file must be a snapshot: the result for
// one that is being written is undefined. Errors: those of visit and ctx, ErrNotImmutable for one
// that has another size at the end.
func Allocated(ctx context.Context, file *os.File, from int64, visit func(extent.Range) error) error {
	size, err := sizeOf(file)
	if err != nil {
		return err
	}

	joined := &rangeJoiner{from: from, size: size, visit: visit}
	if err := addAllocated(ctx, file, from, joined); err != nil {
		return err
	}

	if err := checkSize(file, size); err != nil {
		return err
	}

	return joined.flush()
}

// Changed calls visit for the ranges of target from the given offset that may differ from base; all
// others are equal. A range beyond the end of base counts as changed where target is allocated. The
// ranges are as those of Allocated. Both files must be snapshots. Errors: those of visit and ctx,
// ErrNotImmutable.
//
// If the files share a block, the time is proportional to the number of their extents; otherwise
// (no reflinks, different filesystems) their allocated bytes are compared. See
// docs/decisions/0018-changed-blocks-by-shared-extents.md.
func Changed(ctx context.Context, base, target *os.File, from int64, visit func(extent.Range) error) error {
	baseSize, err := sizeOf(base)
	if err != nil {
		return err
	}

	targetSize, err := sizeOf(target)
	if err != nil {
		return err
	}

	both := min(baseSize, targetSize)
	joined := &rangeJoiner{from: from, size: targetSize, visit: visit}

	if from < both {
		found := &comparison{base: base, target: target, joined: joined}
		if found.related, err = related(ctx, base, target, both); err != nil {
			return err
		}

		written := func(file *os.File) (iter.Seq2[extent.Extent, error], func()) {
			return readAhead(ctx, func(ctx context.Context) iter.Seq2[extent.Extent, error] {
				return extent.Written(ctx, file, from, both)
			})
		}

		ofBase, stopBase := written(base)
		defer stopBase()

		ofTarget, stopTarget := written(target)
		defer stopTarget()

		if err := merge(ctx, ofBase, ofTarget, found.visitSegment); err != nil {
			return err
		}
	}

	if err := addAllocated(ctx, target, max(from, both), joined); err != nil {
		return err
	}

	if err := errors.Join(checkSize(base, baseSize), checkSize(target, targetSize)); err != nil {
		return err
	}

	return joined.flush()
}

// related reports whether the files share a block. Two reflink copies of one image do, and then a
// block that they do not share was written. If they share none, nothing follows.
func related(ctx context.Context, base, target *os.File, end int64) (bool, error) {
	same, err := extent.ComparablePhysical(base, target)
	if err != nil || !same {
		return false, err
	}

	err = merge(ctx, extent.Written(ctx, base, 0, end), extent.Written(ctx, target, 0, end), func(_ context.Context, s segment) error {
		if s.shared() {
			return errShared
		}

		return nil
	})
	if errors.Is(err, errShared) {
		return true, nil
	}

	return false, err
}

// errShared ends a merge at the first shared block.
var errShared = errors.New("a block is shared")

func addAllocated(ctx context.Context, file *os.File, from int64, to *rangeJoiner) error {
	for found, err := range extent.Written(ctx, file, from, to.size) {
		if err != nil {
			return err
		}

		if err := to.add(ctx, found.Start, found.End); err != nil {
			return err
		}
	}

	return nil
}

// rangeJoiner rounds ranges, which it is given in order, and joins those that touch.
type rangeJoiner struct {
	from, size int64
	visit      func(extent.Range) error
	pending    extent.Range
}

func (j *rangeJoiner) add(ctx context.Context, start, end int64) error {
	start = max(start/BlockBytes*BlockBytes, j.from)
	end = min((end+BlockBytes-1)/BlockBytes*BlockBytes, j.size)

	if j.pending.Length > 0 && start <= j.pending.End() {
		j.pending.Length = max(j.pending.Length, end-j.pending.Offset)

		return nil
	}

	if err := ctx.Err(); err != nil {
		return err
	}

	if err := j.flush(); err != nil {
		return err
	}

	j.pending = extent.Range{Offset: start, Length: end - start}

	return nil
}

func (j *rangeJoiner) flush() error {
	if j.pending.Length == 0 {
		return nil
	}

	return j.visit(j.pending)
}

func sizeOf(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", file.Name(), err)
	}

	return info.Size(), nil
}

// checkSize returns ErrNotImmutable if the file does not have the size that it had: the extents of what
// it has lost were taken for ranges that are not allocated.
func checkSize(file *os.File, size int64) error {
	now, err := sizeOf(file)
	if err != nil || now == size {
		return err
	}

	return fmt.Errorf("%s: %w: it had %d bytes and has %d", file.Name(), ErrNotImmutable, size, now)
}

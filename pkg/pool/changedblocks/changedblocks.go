package changedblocks

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// BlockBytes is what ranges of Allocated and Changed are rounded to, outwards:
// no device that an image is attached to has larger sectors, so whoever reads
// the ranges can do so directly.
const BlockBytes = 4096

// compareBytes is how much of each of two files is read at once.
const compareBytes = 1 << 20

// ErrNotImmutable says that a file changed while it was looked at.
var ErrNotImmutable = errors.New("the file is being changed")

// Allocated calls visit, in order, for the ranges of file from the given offset
// that have ever been written; all others read as zeros. Ranges do not touch
// each other; they begin and end at multiples of BlockBytes, or at from and at
// the end of the file. file must be a snapshot's: one that is written meanwhile
// gives no moment's answer. Errors: visit's, ctx's.
func Allocated(ctx context.Context, file *os.File, from int64, visit func(extent.Range) error) error {
	size, err := sizeOf(file)
	if err != nil {
		return err
	}

	joined := &rangeJoiner{from: from, size: size, visit: visit}
	if err := addAllocated(ctx, file, from, joined); err != nil {
		return err
	}

	return joined.flush()
}

// Changed calls visit for the ranges of target from the given offset that differ
// from base, or may: what it leaves out is the same in both, for sure. A part
// that base is too short for counts as changed where target is allocated. The
// ranges are as Allocated's. Both files must be snapshots'. Errors: visit's,
// ctx's, ErrNotImmutable.
//
// The time it takes is that of two files' extents, if they share any block; else
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

		ofBase, stopBase := prefetch(ctx, extent.Written(base, from, both))
		ofTarget, stopTarget := prefetch(ctx, extent.Written(target, from, both))
		err := merge(ctx, ofBase, ofTarget, found.visitSegment)

		stopBase()
		stopTarget()

		if err != nil {
			return err
		}
	}

	if err := addAllocated(ctx, target, max(from, both), joined); err != nil {
		return err
	}

	return joined.flush()
}

// related says whether the files share a block. Two copies of one image do,
// where copies are reflinks: then a block that they do not share was written.
// Where they share none, nothing is known.
func related(ctx context.Context, base, target *os.File, end int64) (bool, error) {
	same, err := extent.ComparablePhysical(base, target)
	if err != nil || !same {
		return false, err
	}

	err = merge(ctx, extent.Written(base, 0, end), extent.Written(target, 0, end), func(_ context.Context, s segment) error {
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

// errShared ends a merge that has found what it looked for.
var errShared = errors.New("a block is shared")

func addAllocated(ctx context.Context, file *os.File, from int64, to *rangeJoiner) error {
	for walked := extent.Written(file, from, to.size); ; {
		found, ok, err := walked.Next(ctx)
		if err != nil || !ok {
			return err
		}

		if err := to.add(ctx, found.Start, found.End); err != nil {
			return err
		}
	}
}

// joiner makes ranges of what it is given in order: rounded, and as few as
// possible.
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

	last := j.pending
	j.pending = extent.Range{}

	return j.visit(last)
}

func sizeOf(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", file.Name(), err)
	}

	return info.Size(), nil
}

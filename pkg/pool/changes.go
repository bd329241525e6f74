package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// ChangeBytes is what ranges of Allocated and Changed are rounded to, outwards:
// no device that an image is attached to has larger sectors, so whoever reads
// the ranges can do so directly.
const ChangeBytes = 4096

// compareBytes is how much of each of two files is read at once.
const compareBytes = 1 << 20

// ErrNotImmutable says that a file changed while it was looked at.
var ErrNotImmutable = errors.New("the file is being changed")

// Range is a part of an image, in bytes. Its Length is more than 0.
type Range struct{ Offset, Length int64 }

// End is the first byte behind the range.
func (r Range) End() int64 { return r.Offset + r.Length }

// Allocated calls visit, in order, for the ranges of file from the given offset
// that have ever been written; all others read as zeros. Ranges do not touch
// each other; they begin and end at multiples of ChangeBytes, or at from and at
// the end of the file. file must be a snapshot's: one that is written meanwhile
// gives no moment's answer. Errors: visit's, ctx's.
func Allocated(ctx context.Context, file *os.File, from int64, visit func(Range) error) error {
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
func Changed(ctx context.Context, base, target *os.File, from int64, visit func(Range) error) error {
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

		ofBase, stopBase := prefetch(ctx, WrittenExtents(base, from, both))
		ofTarget, stopTarget := prefetch(ctx, WrittenExtents(target, from, both))
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
	same, err := ComparablePhysical(base, target)
	if err != nil || !same {
		return false, err
	}

	err = merge(ctx, WrittenExtents(base, 0, end), WrittenExtents(target, 0, end), func(_ context.Context, s segment) error {
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
	for walked := WrittenExtents(file, from, to.size); ; {
		found, ok, err := walked.Next(ctx)
		if err != nil || !ok {
			return err
		}

		if err := to.add(ctx, found.Start, found.End); err != nil {
			return err
		}
	}
}

// segment is a run of bytes that is in one extent, or in none, of either file.
type segment struct {
	start, end int64
	// base and target begin at start; nil is a hole.
	base, target *Extent
}

// shared says that both files have the very same bytes there.
func (s segment) shared() bool {
	return s.base != nil && s.target != nil && s.base.Located && s.target.Located && s.base.Physical == s.target.Physical
}

// located says that it is known of each file where its bytes are, or that it
// has none.
func (s segment) located() bool {
	return (s.base == nil || s.base.Located) && (s.target == nil || s.target.Located)
}

// merge calls visit for the segments of two files in order, but for those that
// are holes in both.
func merge(ctx context.Context, base, target ExtentReader, visit func(context.Context, segment) error) error {
	of := [2]cursor{{ExtentReader: base}, {ExtentReader: target}}

	for position := int64(0); ; {
		for i := range of {
			if err := of[i].advance(ctx, position); err != nil {
				return err
			}
		}

		if !of[0].ok && !of[1].ok {
			return nil
		}

		position = max(position, min(of[0].start(), of[1].start()))
		end := min(of[0].boundary(position), of[1].boundary(position))

		if err := visit(ctx, segment{position, end, of[0].at(position), of[1].at(position)}); err != nil {
			return err
		}

		position = end
	}
}

// cursor stands before or in one extent; ok is false behind the last.
type cursor struct {
	ExtentReader

	current Extent
	ok      bool
	ended   bool
}

// pass leaves the extents that end at position.
func (c *cursor) advance(ctx context.Context, position int64) error {
	for !c.ended && (!c.ok || c.current.End <= position) {
		var err error
		if c.current, c.ok, err = c.Next(ctx); err != nil {
			return err
		}

		c.ended = !c.ok
	}

	return nil
}

func (c *cursor) start() int64 {
	if !c.ok {
		return math.MaxInt64
	}

	return c.current.Start
}

// border is where what is at position ends.
func (c *cursor) boundary(position int64) int64 {
	switch {
	case !c.ok:
		return math.MaxInt64
	case position < c.current.Start:
		return c.current.Start
	default:
		return c.current.End
	}
}

func (c *cursor) at(position int64) *Extent {
	if !c.ok || position < c.current.Start {
		return nil
	}

	rest := c.current.From(position)

	return &rest
}

// comparison decides what has changed between two files.
type comparison struct {
	base, target *os.File
	related      bool
	joined       *rangeJoiner

	baseBytes, targetBytes []byte
}

func (c *comparison) visitSegment(ctx context.Context, s segment) error {
	switch {
	case !c.related || !s.located():
		return c.compare(ctx, s.start, s.end)
	case s.shared():
		return nil
	default:
		return c.joined.add(ctx, s.start, s.end)
	}
}

// compare adds the blocks whose bytes differ.
func (c *comparison) compare(ctx context.Context, start, end int64) error {
	if c.baseBytes == nil {
		c.baseBytes, c.targetBytes = make([]byte, compareBytes), make([]byte, compareBytes)
	}

	for start < end {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("compare %s with %s: %w", c.target.Name(), c.base.Name(), err)
		}

		// Only the first chunk may begin within a block.
		length := min(end, (start+compareBytes)/ChangeBytes*ChangeBytes) - start
		base, target := c.baseBytes[:length], c.targetBytes[:length]

		if err := errors.Join(readAt(c.base, base, start), readAt(c.target, target, start)); err != nil {
			return err
		}

		if err := c.addDiffering(ctx, base, target, start); err != nil {
			return err
		}

		start += length
	}

	return nil
}

func (c *comparison) addDiffering(ctx context.Context, base, target []byte, offset int64) error {
	if bytes.Equal(base, target) {
		return nil
	}

	for start := 0; start < len(base); {
		end := min(len(base), start+ChangeBytes-int((offset+int64(start))%ChangeBytes))

		if !bytes.Equal(base[start:end], target[start:end]) {
			if err := c.joined.add(ctx, offset+int64(start), offset+int64(end)); err != nil {
				return err
			}
		}

		start = end
	}

	return nil
}

func readAt(file *os.File, into []byte, offset int64) error {
	_, err := file.ReadAt(into, offset)

	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("read %d bytes at %d of %s: %w: it became shorter", len(into), offset, file.Name(), ErrNotImmutable)
	case err != nil:
		return fmt.Errorf("read %d bytes at %d of %s: %w", len(into), offset, file.Name(), err)
	default:
		return nil
	}
}

// joiner makes ranges of what it is given in order: rounded, and as few as
// possible.
type rangeJoiner struct {
	from, size int64
	visit      func(Range) error
	pending    Range
}

func (j *rangeJoiner) add(ctx context.Context, start, end int64) error {
	start = max(start/ChangeBytes*ChangeBytes, j.from)
	end = min((end+ChangeBytes-1)/ChangeBytes*ChangeBytes, j.size)

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

	j.pending = Range{Offset: start, Length: end - start}

	return nil
}

func (j *rangeJoiner) flush() error {
	if j.pending.Length == 0 {
		return nil
	}

	last := j.pending
	j.pending = Range{}

	return j.visit(last)
}

func sizeOf(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", file.Name(), err)
	}

	return info.Size(), nil
}

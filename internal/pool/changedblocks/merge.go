package changedblocks

import (
	"context"
	"iter"
	"math"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

// segment is a range that lies in at most one extent of either file.
type segment struct {
	start, end int64
	// base and target start at start; nil is a hole.
	base, target *extent.Extent
}

// shared reports whether both files have the same blocks there.
func (s segment) shared() bool {
	return s.base != nil && s.target != nil && s.base.Located && s.target.Located && s.base.Physical == s.target.Physical
}

// located reports whether the physical offset is defined in each file that has data there.
func (s segment) located() bool {
	return (s.base == nil || s.base.Located) && (s.target == nil || s.target.Located)
}

// merge calls visit for the segments of two files, in order, except for holes in both.
func merge(ctx context.Context, base, target iter.Seq2[extent.Extent, error], visit func(context.Context, segment) error) error {
	nextBase, stopBase := iter.Pull2(base)
	defer stopBase()

	nextTarget, stopTarget := iter.Pull2(target)
	defer stopTarget()

	of := [2]cursor{{next: nextBase}, {next: nextTarget}}

	for position := int64(0); ; {
		for i := range of {
			if err := of[i].advance(position); err != nil {
				return err
			}
		}

		position = max(position, min(of[0].current.Start, of[1].current.Start))
		if position == behindLast.Start {
			return nil
		}

		end := min(of[0].boundary(position), of[1].boundary(position))
		if err := visit(ctx, segment{position, end, of[0].at(position), of[1].at(position)}); err != nil {
			return err
		}

		position = end
	}
}

// cursor is a position before or in one extent.
type cursor struct {
	next    func() (extent.Extent, error, bool)
	current extent.Extent
}

// behindLast is the current extent of a cursor behind the last one.
var behindLast = extent.Extent{Start: math.MaxInt64, End: math.MaxInt64}

// advance skips the extents that end at position or before.
func (c *cursor) advance(position int64) error {
	for c.current.End <= position {
		found, err, ok := c.next()
		if err != nil {
			return err
		}

		if !ok {
			found = behindLast
		}

		c.current = found
	}

	return nil
}

// boundary returns where the extent or hole at position ends.
func (c *cursor) boundary(position int64) int64 {
	if position < c.current.Start {
		return c.current.Start
	}

	return c.current.End
}

func (c *cursor) at(position int64) *extent.Extent {
	if position < c.current.Start {
		return nil
	}

	rest := c.current.From(position)

	return &rest
}

package changedblocks

import (
	"context"
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
func merge(ctx context.Context, base, target extent.Reader, visit func(context.Context, segment) error) error {
	of := [2]cursor{{Reader: base}, {Reader: target}}

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

// cursor is a position before or in one extent; ok is false behind the last.
type cursor struct {
	extent.Reader

	current extent.Extent
	ok      bool
	ended   bool
}

// advance skips the extents that end at position or before.
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

// boundary returns where the extent or hole at position ends.
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

func (c *cursor) at(position int64) *extent.Extent {
	if !c.ok || position < c.current.Start {
		return nil
	}

	rest := c.current.From(position)

	return &rest
}

package changedblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// comparison reports what changed between two files.
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

// compare adds the blocks whose content differs.
func (c *comparison) compare(ctx context.Context, start, end int64) error {
	if c.baseBytes == nil {
		c.baseBytes, c.targetBytes = make([]byte, compareBytes), make([]byte, compareBytes)
	}

	for start < end {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("compare %s with %s: %w", c.target.Name(), c.base.Name(), err)
		}

		// Only the first chunk may start within a block.
		length := min(end, (start+compareBytes)/BlockBytes*BlockBytes) - start
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
	for start := 0; start < len(base); {
		end := min(len(base), start+BlockBytes-int((offset+int64(start))%BlockBytes))

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

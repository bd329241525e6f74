package changedblocks

import (
	"context"
	"iter"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

const (
	// batchExtents are sent at once, to make the channel operation cheap.
	batchExtents = 512
	// maxBatches are read ahead.
	maxBatches = 4
)

// readAhead begins to read the extents that of returns, in a goroutine, and returns them. So two files are mapped
// concurrently: the kernel spends processor time on finding out which blocks are shared. stop must be called; it
// waits for the goroutine.
func readAhead(
	ctx context.Context, of func(context.Context) iter.Seq2[extent.Extent, error],
) (ahead iter.Seq2[extent.Extent, error], stop func()) {
	var (
		reading sync.WaitGroup
		failure error
		batches = make(chan []extent.Extent, maxBatches)
	)

	ctx, cancel := context.WithCancel(ctx)

	reading.Go(func() {
		defer close(batches)

		failure = send(ctx, of(ctx), batches)
	})

	ahead = func(yield func(extent.Extent, error) bool) {
		for batch := range batches {
			for _, each := range batch {
				if !yield(each, nil) {
					return
				}
			}
		}

		if failure != nil {
			yield(extent.Extent{}, failure)
		}
	}

	return ahead, func() {
		cancel()
		reading.Wait()
	}
}

// send sends extents in batches. Errors: that of the sequence, ctx's.
func send(ctx context.Context, extents iter.Seq2[extent.Extent, error], to chan<- []extent.Extent) error {
	batch := make([]extent.Extent, 0, batchExtents)
	flush := func() error {
		select {
		case to <- batch:
			batch = make([]extent.Extent, 0, batchExtents)

			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	for each, err := range extents {
		if err != nil {
			return err
		}

		if batch = append(batch, each); len(batch) == batchExtents {
			if err := flush(); err != nil {
				return err
			}
		}
	}

	return flush()
}

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

// readAhead yields the extents that of returns, which a goroutine reads ahead, so that two files are mapped
// concurrently: the kernel spends processor time on finding out which blocks are shared.
func readAhead(ctx context.Context, of func(context.Context) iter.Seq2[extent.Extent, error]) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
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
		defer reading.Wait()
		defer cancel()

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

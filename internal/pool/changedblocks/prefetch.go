package changedblocks

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

const (
	// batchExtents are sent at once, to make the channel operation cheap.
	batchExtents = 512
	// maxBatches are read ahead.
	maxBatches = 4
)

// prefetcher reads extents ahead in a goroutine, so that two files are mapped concurrently: the
// kernel spends CPU time on finding out which blocks are shared.
type prefetcher struct {
	batches chan []extent.Extent
	current []extent.Extent
	// err is set before batches is closed.
	err error
}

// prefetch returns a reader of the same extents. stop must be called; it waits for the goroutine.
func prefetch(ctx context.Context, of extent.Reader) (a *prefetcher, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	a = &prefetcher{batches: make(chan []extent.Extent, maxBatches)}
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		defer close(a.batches)

		a.err = a.fill(ctx, of)
	}()

	return a, func() {
		cancel()
		<-ended
	}
}

func (a *prefetcher) fill(ctx context.Context, of extent.Reader) error {
	for more := true; more; {
		batch := make([]extent.Extent, 0, batchExtents)

		for len(batch) < batchExtents {
			found, ok, err := of.Next(ctx)
			if err != nil {
				return err
			}

			if more = ok; !more {
				break
			}

			batch = append(batch, found)
		}

		select {
		case a.batches <- batch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	return nil
}

func (a *prefetcher) Next(ctx context.Context) (extent.Extent, bool, error) {
	for len(a.current) == 0 {
		select {
		case batch, ok := <-a.batches:
			if !ok {
				return extent.Extent{}, false, a.err
			}

			a.current = batch
		case <-ctx.Done():
			return extent.Extent{}, false, context.Cause(ctx)
		}
	}

	found := a.current[0]
	a.current = a.current[1:]

	return found, true, nil
}

package changedblocks

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
)

const (
	// batchExtents are handed over at once, so that handing over costs little.
	batchExtents = 512
	// maxBatches are asked for before they are wanted.
	maxBatches = 4
)

// ahead asks for extents before they are wanted, so that two files are mapped at
// the same time: finding out which blocks are shared keeps a processor busy.
type prefetcher struct {
	batches chan []extent.Extent
	current []extent.Extent
	// err is set before batches is closed.
	err error
}

// prefetch returns the same extents. stop must be called; it returns when
// nothing goes on any more.
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
			return context.Cause(ctx) //nolint:wrapcheck // who stops it wants nothing, and who cancelled it knows
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
			return extent.Extent{}, false, context.Cause(ctx) //nolint:wrapcheck // who cancelled it knows
		}
	}

	found := a.current[0]
	a.current = a.current[1:]

	return found, true, nil
}

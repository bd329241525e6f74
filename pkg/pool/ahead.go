package pool

import "context"

const (
	// aheadExtents are handed over at once, so that handing over costs little.
	aheadExtents = 512
	// aheadBatches are asked for before they are wanted.
	aheadBatches = 4
)

// ahead asks for extents before they are wanted, so that two files are mapped at
// the same time: finding out which blocks are shared keeps a processor busy.
type ahead struct {
	batches chan []extent
	current []extent
	// err is set before batches is closed.
	err error
}

// readAhead returns the same extents. stop must be called; it returns when
// nothing goes on any more.
func readAhead(ctx context.Context, of extents) (a *ahead, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	a = &ahead{batches: make(chan []extent, aheadBatches)}
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

func (a *ahead) fill(ctx context.Context, of extents) error {
	for more := true; more; {
		batch := make([]extent, 0, aheadExtents)

		for len(batch) < aheadExtents {
			found, ok, err := of.next(ctx)
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

func (a *ahead) next(ctx context.Context) (extent, bool, error) {
	for len(a.current) == 0 {
		select {
		case batch, ok := <-a.batches:
			if !ok {
				return extent{}, false, a.err
			}

			a.current = batch
		case <-ctx.Done():
			return extent{}, false, context.Cause(ctx) //nolint:wrapcheck // who cancelled it knows
		}
	}

	found := a.current[0]
	a.current = a.current[1:]

	return found, true, nil
}

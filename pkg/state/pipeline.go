package state

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// inOrder passes the items that read emits to several workers and then, in the order of emission,
// to apply. It returns the first error of apply or else that of read. The number of items in memory
// is bounded.
func inOrder[T any](
	ctx context.Context, workers int,
	read func(emit func(T) error) error, work func(T), apply func(T) error,
) error {
	type job struct {
		item T
		done chan struct{}
	}
	group, ctx := errgroup.WithContext(ctx)
	todo := make(chan job, workers)
	ordered := make(chan job, workers)
	for range workers {
		group.Go(func() error {
			for each := range todo {
				work(each.item)
				close(each.done)
			}
			return nil
		})
	}
	group.Go(func() error {
		for each := range ordered {
			<-each.done
			if err := apply(each.item); err != nil {
				return err
			}
		}
		return nil
	})
	readErr := read(func(item T) error {
		each := job{item, make(chan struct{})}
		// An item that apply waits for must be on its way to a worker.
		for _, queue := range []chan job{todo, ordered} {
			select {
			case queue <- each:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	close(todo)
	close(ordered)
	if err := group.Wait(); err != nil {
		return err
	}
	return readErr
}

package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// sample is how long each of many calls took. It is safe for concurrent use.
type sample struct {
	mu   sync.Mutex
	took []time.Duration
}

// time runs do and adds how long it took.
func (s *sample) time(do func() error) error {
	began := time.Now()
	err := do()
	took := time.Since(began)

	s.mu.Lock()
	defer s.mu.Unlock()

	s.took = append(s.took, took)

	return err
}

// quantile returns the duration, in milliseconds, that a part of the calls did
// not exceed.
func (s *sample) quantile(part float64) float64 {
	sorted := slices.Sorted(slices.Values(s.took))
	if len(sorted) == 0 {
		return 0
	}

	return milliseconds(sorted[int(part*float64(len(sorted)-1))])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// together has callers do something count times in all, with the numbers 0 to
// count-1, and returns how many were done in a second.
func together(ctx context.Context, callers, count int, do func(ctx context.Context, number int) error) (float64, error) {
	group, ctx := errgroup.WithContext(ctx)

	var next atomic.Int64

	began := time.Now()

	for range callers {
		group.Go(func() error {
			for {
				number := int(next.Add(1) - 1)
				if number >= count {
					return nil
				}

				if err := do(ctx, number); err != nil {
					return err
				}
			}
		})
	}

	err := group.Wait()

	return float64(count) / time.Since(began).Seconds(), err
}

// timed is together with a sample of each call.
func timed(ctx context.Context, callers, count int, do func(ctx context.Context, number int) error) (*sample, float64, error) {
	calls := &sample{}

	rate, err := together(ctx, callers, count, func(ctx context.Context, number int) error {
		return calls.time(func() error { return do(ctx, number) })
	})

	return calls, rate, err
}

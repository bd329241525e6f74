package pool

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// ErrPromised says that a pool cannot promise as much as is asked for.
var ErrPromised = errors.New("the pool's space is promised")

// Promiser keeps records of volumes and snapshots, each of which was promised space
// of a pool.
type Promiser interface {
	// PromisedBytes is the sum of what was promised of the pool of this name.
	PromisedBytes(pool string) int64
	// AddAllocated adds to the sum what each of them has allocated in that pool.
	AddAllocated(ctx context.Context, pool string, sum *Allocation) error
}

// Promises decides how much more the pools may promise: with an overcommit of 1,
// what is free and not promised already. What a volume has allocated is promised
// and not free, so it is neither; data of others in the filesystem is not free.
//
// Only a request that does not fit beside all promises, as if nothing of them were
// allocated, has the allocation of every volume measured.
type Promises struct {
	// Overcommit is how many times the space of a pool may be promised.
	Overcommit float64

	promisers []Promiser
}

// Add has the promises of another count. It must not be called beside other methods.
func (p *Promises) Add(promiser Promiser) { p.promisers = append(p.promisers, promiser) }

// Sellable returns how many bytes more the pool may promise, never less than 0. It
// measures what every volume has allocated.
func (p *Promises) Sellable(ctx context.Context, place *Pool) (int64, error) {
	capacity, err := p.measure(ctx, place)
	if err != nil {
		return 0, err
	}

	return max(0, capacity.sellable(p.Overcommit, p.promised(place))), nil
}

// Check returns ErrPromised unless the pool may promise so many bytes more. With
// taken they are allocated already.
type Check func(place *Pool, bytes int64, taken bool) error

// Within calls reserve, which makes a promise if check allows it, and returns its
// error. Where the first check says no without measuring, the pool is measured and
// reserve called again: it may change nothing before check says yes. No
// measurement is under way while reserve runs.
func (p *Promises) Within(ctx context.Context, reserve func(check Check) error) error {
	measured := map[*Pool]Capacity{}

	for {
		var short *Pool

		err := reserve(func(place *Pool, bytes int64, taken bool) error {
			capacity, known := measured[place]
			if !known {
				var err error
				if capacity, err = place.Capacity(); err != nil {
					return err
				}
			}

			err := p.check(place, capacity, bytes, taken)
			if err != nil && !known {
				short = place
			}

			return err
		})
		if err == nil || short == nil {
			return err
		}

		if measured[short], err = p.measure(ctx, short); err != nil {
			return err
		}
	}
}

func (p *Promises) check(place *Pool, capacity Capacity, bytes int64, taken bool) error {
	left := capacity.sellable(p.Overcommit, p.promised(place))
	if taken {
		left = capacity.unsold(p.Overcommit, p.promised(place))
	}

	if bytes > left {
		return fmt.Errorf("%w: pool %q can't promise %d more bytes, only %d; delete volumes, grow the pool or raise --overcommit",
			ErrPromised, place.name, bytes, max(0, left))
	}

	return nil
}

func (p *Promises) promised(place *Pool) int64 {
	var sum int64
	for _, promiser := range p.promisers {
		sum += promiser.PromisedBytes(place.name)
	}

	return sum
}

// measure asks for what is free before and after, for data that is removed
// meanwhile may have been counted as allocated, and data that is written meanwhile
// may be counted as allocated.
func (p *Promises) measure(ctx context.Context, place *Pool) (Capacity, error) {
	before, err := place.Capacity()
	if err != nil {
		return Capacity{}, err
	}

	var sum Allocation

	for _, promiser := range p.promisers {
		if err := promiser.AddAllocated(ctx, place.name, &sum); err != nil {
			return Capacity{}, fmt.Errorf("measure what the volumes of pool %q have allocated: %w", place.name, err)
		}
	}

	measured, err := place.Capacity()
	if err != nil {
		return Capacity{}, err
	}

	measured.Available = min(before.Available, measured.Available)
	measured.Allocated = sum.Bytes()

	return measured, nil
}

// sellable is how many bytes may still be promised of which promised are already,
// and never more than overcommit times what is free.
func (c Capacity) sellable(overcommit float64, promised int64) int64 {
	return min(c.unsold(overcommit, promised), times(c.Available, overcommit))
}

// unsold is sellable for what is allocated already.
func (c Capacity) unsold(overcommit float64, promised int64) int64 {
	return times(c.Available+c.Allocated, overcommit) - promised
}

func times(bytes int64, factor float64) int64 {
	product := float64(bytes) * factor
	if product >= math.MaxInt64 {
		return math.MaxInt64
	}

	return int64(product)
}

package pool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// ErrOvercommitted says that a pool has less capacity left than a request needs.
var ErrOvercommitted = errdefs.New(errdefs.ErrResourceExhausted, "the pool has too little capacity left")

// Ledger records which volumes and snapshots are provisioned from pools.
type Ledger interface {
	// ProvisionedBytes returns what they count for in the pool of this name: a volume its capacity, a
	// snapshot what it has allocated.
	ProvisionedBytes(pool string) int64
	// AddAllocated adds the space that each of them has allocated in that pool.
	AddAllocated(ctx context.Context, pool string, sum *Allocation) error
}

// Provisioned has the provisioned bytes of each pool, for a Ledger. The zero value is empty. It is safe
// for concurrent use.
type Provisioned struct {
	mu     sync.Mutex
	byPool map[string]int64
}

// Add adds bytes, which may be negative, to a pool's sum.
func (p *Provisioned) Add(pool string, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.byPool == nil {
		p.byPool = map[string]int64{}
	}

	p.byPool[pool] += bytes
}

// Bytes returns a pool's sum.
func (p *Provisioned) Bytes(pool string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.byPool[pool]
}

// Admission decides how much more may be provisioned from a pool: with an
// overcommit ratio of 1, the available space less what is provisioned and not
// allocated yet. Other data in the filesystem is not available, and so is never
// provisioned.
//
// The allocation of all volumes is measured only for a request that does not fit
// if none of them has allocated anything.
type Admission struct {
	// Overcommit is the ratio of provisioned bytes to space.
	Overcommit float64
	// Capacities is how much the pools of these names may provision, whatever space they have.
	Capacities map[string]int64

	ledgers []Ledger
}

// Register adds a ledger. It must not be called concurrently with other methods.
func (a *Admission) Register(ledger Ledger) { a.ledgers = append(a.ledgers, ledger) }

// Capacity returns how many more bytes may be provisioned from the pool, at least 0; for thick
// volumes not more than are available. It measures what every volume has allocated.
func (a *Admission) Capacity(ctx context.Context, pool *Pool, thick bool) (int64, error) {
	capacity, err := a.measure(ctx, pool)
	if err != nil {
		return 0, err
	}

	left := a.left(pool, capacity, false)
	if thick {
		left = min(left, capacity.Available)
	}

	return max(0, left), nil
}

// Check returns ErrOvercommitted unless so many more bytes may be provisioned from
// the pool. With allocated, the request has allocated them already. It does no I/O.
type Check func(pool *Pool, bytes int64, allocated bool) error

// errUnread is the error of a check of a pool whose capacity was not read yet.
var errUnread = errors.New("the capacity of the pool was not read yet")

// Admit calls record, which records what it provisions once check has allowed it,
// and returns its error. It calls record again with what check needed and did not
// know: the capacity of a pool, and, if that is too little, what the pool's volumes
// have allocated. It reads both between the calls, so that record may hold locks
// while a pool hangs. A record whose check fails must change nothing.
func (a *Admission) Admit(ctx context.Context, record func(check Check) error) error {
	known, measured := map[*Pool]Capacity{}, map[*Pool]bool{}

	for {
		var lacking *Pool

		err := record(func(pool *Pool, bytes int64, allocated bool) error {
			capacity, ok := known[pool]
			if !ok {
				lacking = pool

				return errUnread
			}

			err := a.check(pool, capacity, bytes, allocated)
			if err != nil && !measured[pool] {
				lacking = pool
			}

			return err
		})
		if err == nil || lacking == nil {
			return err
		}

		if _, read := known[lacking]; read {
			measured[lacking] = true
			known[lacking], err = a.measure(ctx, lacking)
		} else {
			known[lacking], err = lacking.Capacity()
		}

		if err != nil {
			return err
		}
	}
}

func (a *Admission) check(pool *Pool, capacity Capacity, bytes int64, allocated bool) error {
	left := a.left(pool, capacity, allocated)
	if bytes > left {
		return fmt.Errorf("%w: pool %q can't provision %d more bytes, only %d; delete volumes, grow the pool or raise --overcommit",
			ErrOvercommitted, pool.name, bytes, max(0, left))
	}

	return nil
}

// left returns how many more bytes may be provisioned, as Capacity.unprovisioned.
func (a *Admission) left(pool *Pool, capacity Capacity, allocated bool) int64 {
	if limit, ok := a.Capacities[pool.name]; ok {
		return limit - a.provisioned(pool)
	}

	return capacity.unprovisioned(a.Overcommit, a.provisioned(pool), allocated)
}

func (a *Admission) provisioned(pool *Pool) int64 {
	var sum int64
	for _, ledger := range a.ledgers {
		sum += ledger.ProvisionedBytes(pool.name)
	}

	return sum
}

// measure takes the smaller of the space available before and after: bytes that are
// freed or written during the measurement must not count as allocated and as
// available.
func (a *Admission) measure(ctx context.Context, pool *Pool) (Capacity, error) {
	before, err := pool.Capacity()
	if err != nil {
		return Capacity{}, err
	}

	var sum Allocation

	for _, ledger := range a.ledgers {
		if err := ledger.AddAllocated(ctx, pool.name, &sum); err != nil {
			return Capacity{}, fmt.Errorf("measure what the volumes of pool %q have allocated: %w", pool.name, err)
		}
	}

	measured, err := pool.Capacity()
	if err != nil {
		return Capacity{}, err
	}

	measured.Available = min(before.Available, measured.Available)
	measured.Allocated = sum.Bytes()

	return measured, nil
}

// unprovisioned returns how many more bytes may be provisioned; it is negative if
// too many are. A request that has not allocated its bytes gets at most overcommit
// times what is available.
func (c Capacity) unprovisioned(overcommit float64, provisioned int64, allocated bool) int64 {
	left := times(c.Available+c.Allocated, overcommit) - provisioned
	if allocated {
		return left
	}

	return min(left, times(c.Available, overcommit))
}

func times(bytes int64, factor float64) int64 {
	product := float64(bytes) * factor
	if product >= math.MaxInt64 {
		return math.MaxInt64
	}

	return int64(product)
}

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/removal"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

const (
	// maxStoragePeriod is the longest time between two looks at the pools: nothing
	// tells of their trouble, and all volumes share it.
	maxStoragePeriod = 5 * time.Second
	// maxPoolLook is how long a pool may take to answer, and half of what a
	// probe may: that a pool hangs is known before that its volumes do.
	maxPoolLook = 2 * time.Second
)

// storage looks at what all volumes stand on: the pools and the state store.
type storage struct {
	pools *pool.Set
	store *state.Store
	// removals knows what can't be removed from the pools.
	removals *removal.Queue
	// limit is how long a pool may take to answer.
	limit time.Duration
	// turns are taken by the looks at a pool, of which one may hang and no more.
	turns map[string]chan struct{}
}

// newStorage returns the monitor of the storage view.
func newStorage(config *Config, shared health.Settings, pools *pool.Set, store *state.Store, removals *removal.Queue,
) *health.Monitor {
	s := &storage{
		pools: pools, store: store, removals: removals, turns: map[string]chan struct{}{},
		limit: min(maxPoolLook, cmp.Or(shared.ProbeTimeout, health.DefaultProbeTimeout)/2),
	}
	for _, name := range pools.Names() {
		s.turns[name] = make(chan struct{}, 1)
	}

	shared.RelistPeriod = min(maxStoragePeriod, cmp.Or(shared.RelistPeriod, health.DefaultRelistPeriod))
	shared.EventedRelistPeriod = shared.RelistPeriod

	return health.New(shared.With(health.Config{Name: "storage", List: s.list, Probe: s.probe, Log: config.Log}))
}

func (s *storage) list() []string {
	pools := s.pools.Names()
	subjects := append(make([]string, 0, 1+len(pools)), health.StateSubject)

	for _, name := range pools {
		subjects = append(subjects, health.PoolSubject(name))
	}

	return subjects
}

func (s *storage) probe(ctx context.Context, subject string) (health.Observation, error) {
	if subject == health.StateSubject {
		return s.lookAtState(), nil
	}

	place, ok := s.pools.Get(strings.TrimPrefix(subject, health.PoolSubject("")))
	if !ok {
		return health.Observation{}, health.ErrGone
	}

	observed, err := s.awaitPool(ctx, place)
	observed.Entries = append(observed.Entries, failedRemovals(s.removals.Failures(place.Name()))...)

	return observed, err
}

// failedRemovals names the first of the objects that can't be removed, and its
// cause: the others often have the same. The path is in the log: a message has
// little room.
func failedRemovals(failures []removal.Failure) []health.Entry {
	if len(failures) == 0 {
		return nil
	}

	named, cause := failures[0].Object, failures[0].Cause
	if file, ok := errors.AsType[*fs.PathError](cause); ok {
		cause = file.Err
	}

	if len(failures) > 1 {
		named += " and others"
	}

	return []health.Entry{health.NewEntry(health.RemovalFailed, fmt.Sprintf("cannot remove %s: %s", named, cause))}
}

func (s *storage) lookAtState() health.Observation {
	if err := s.store.Err(); err != nil {
		return health.Observation{Entries: []health.Entry{health.NewEntry(health.StateStoreFailed, err.Error())}}
	}

	return health.Observation{}
}

// awaitPool gives a pool its time to answer. One that does not is unreachable
// until the look that hangs has come back.
func (s *storage) awaitPool(outer context.Context, place *pool.Pool) (health.Observation, error) {
	ctx, cancel := context.WithTimeout(outer, s.limit)
	defer cancel()

	turn, found := s.turns[place.Name()], make(chan health.Observation, 1)

	select {
	case turn <- struct{}{}:
		go func() {
			defer func() { <-turn }()

			found <- lookAtPool(place)
		}()
	case <-ctx.Done():
	}

	select {
	case observed := <-found:
		return observed, nil
	case <-ctx.Done():
	}

	if err := outer.Err(); err != nil {
		return health.Observation{}, fmt.Errorf("look at pool %q: %w", place.Name(), err)
	}

	return unreachable(fmt.Sprintf("pool %q does not answer; look at the storage below %s", place.Name(), place.Path())), nil
}

func lookAtPool(place *pool.Pool) health.Observation {
	err := place.Look()
	writable := err == nil

	if !writable && !errors.Is(err, pool.ErrReadOnly) && !errors.Is(err, pool.ErrNoSpace) {
		return unreachable(err.Error())
	}

	capacity, failure := place.Capacity()
	if failure != nil {
		return unreachable(failure.Error())
	}

	observed := health.Observation{Usage: &health.Usage{Bytes: health.Amount{
		Total: capacity.Total, Used: capacity.Total - capacity.Available, Available: capacity.Available,
	}}}

	if errors.Is(err, pool.ErrReadOnly) {
		observed.Entries = append(observed.Entries, health.NewEntry(health.PoolReadOnly,
			fmt.Sprintf("pool %q takes no new files; remount %s for writing", place.Name(), place.Path())))
	}

	if errors.Is(err, pool.ErrNoSpace) || capacity.NearlyFull() {
		observed.Entries = append(observed.Entries, health.NewEntry(health.PoolNearlyFull,
			fmt.Sprintf("pool %q is nearly full; delete volumes or enlarge %s", place.Name(), place.Path())))
	}

	return observed
}

func unreachable(message string) health.Observation {
	return health.Observation{Entries: []health.Entry{health.NewEntry(health.PoolUnreachable, message)}}
}

// followPool tells the services whenever the pool goes or comes back, until ctx
// ends: each of its volumes is concerned.
func (r *rooms) followPool(ctx context.Context, name string) {
	known, _ := r.storage.Get(health.PoolSubject(name))
	was := known.Has(health.PoolUnreachable)

	for {
		next, err := r.storage.Await(ctx, health.PoolSubject(name), time.Now())
		if err != nil {
			return
		}

		if is := next.Has(health.PoolUnreachable); is != was {
			was = is

			for _, changed := range r.poolChanged {
				changed(name)
			}
		}
	}
}

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

const (
	// maxStoragePeriod is the longest time between two probes of the pools: no event
	// reports their trouble, and all volumes share it.
	maxStoragePeriod = 5 * time.Second
	// maxPoolProbe bounds the answer of a pool, with half of the probe timeout: a
	// hanging pool is detected before its volumes time out.
	maxPoolProbe = 2 * time.Second
)

// monitor returns the monitor of the storage view: the pools and the state store.
func (o *opener) monitor() *health.Monitor {
	config := health.Config{Settings: o.config.Health, Name: "storage", List: o.list, Probe: o.probe, Log: o.config.Log}
	config.RelistPeriod = min(maxStoragePeriod, config.RelistPeriod)
	config.EventedRelistPeriod = config.RelistPeriod

	return health.New(config)
}

func (o *opener) list() []string {
	subjects := []string{health.StateSubject}

	for _, name := range o.pools.Names() {
		subjects = append(subjects, health.PoolSubject(name))
	}

	return subjects
}

func (o *opener) probe(ctx context.Context, subject string) (health.Observation, error) {
	if subject == health.StateSubject {
		if err := o.store.Err(); err != nil {
			return condition(health.StateStoreFailed, err.Error()), nil
		}

		return health.Observation{}, nil
	}

	name := strings.TrimPrefix(subject, health.PoolSubject(""))
	if !o.pools.Has(name) {
		return health.Observation{}, health.ErrGone
	}

	observed, err := o.awaitPool(ctx, name)
	observed.Entries = append(observed.Entries, failedRemovals(o.removals.Failures(name))...)

	return observed, err
}

// failedRemovals returns an entry with the first object that cannot be removed and its
// cause: others often have the same. The path is only logged, because messages are
// short.
func failedRemovals(failures []removal.Failure) []health.Entry {
	// Removals that wait for a failed pool, or for a state that takes no changes, are covered by its
	// condition.
	failures = slices.DeleteFunc(failures, func(each removal.Failure) bool {
		return errors.Is(each.Cause, pool.ErrUnavailable) || errors.Is(each.Cause, state.ErrReadOnly)
	})
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

// awaitPool waits for a pool's answer. A pool that does not answer in time is
// unreachable until the hanging probe returns.
func (o *opener) awaitPool(outer context.Context, name string) (health.Observation, error) {
	ctx, cancel := context.WithTimeout(outer, o.limit)
	defer cancel()

	observed, err := operation.Await(ctx, func() (health.Observation, error) {
		turn := o.members[name].turn

		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()

			return o.probePool(name), nil
		case <-ctx.Done():
			return health.Observation{}, context.Cause(ctx)
		}
	})
	if err == nil {
		return observed, nil
	}

	if err := outer.Err(); err != nil {
		return health.Observation{}, fmt.Errorf("probe pool %q: %w", name, err)
	}

	return o.unavailable(name), nil
}

// probePool opens the pool if it has failed, and has it fail if it can't be used.
// The caller has the pool's turn.
func (o *opener) probePool(name string) health.Observation {
	p, err := o.pools.Get(name)
	if err != nil {
		if err := o.open(name); err != nil {
			return o.unavailable(name)
		}

		go o.announce(name)

		p, err = o.pools.Get(name)
	}

	var observed health.Observation
	if err == nil {
		observed, err = probeServed(p)
	}

	switch {
	case err == nil:
		if err := o.adopt(p); err != nil {
			o.config.Log.Warn("the identity of a pool cannot be recorded; the next probe tries again", "pool", name, "error", err)
		}

		return observed
	case exhausted(err):
		// The process, not the pool, is the cause.
		return condition(health.PoolUnreachable, err.Error())
	default:
		o.fail(name, err)

		return o.unavailable(name)
	}
}

// exhausted reports whether the process lacks a resource: then the pool is not the
// cause.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// probeServed returns an error for a pool that can't be used.
func probeServed(p *pool.Pool) (health.Observation, error) {
	err := p.Probe()
	if err != nil && !errors.Is(err, pool.ErrReadOnly) && !errors.Is(err, pool.ErrNoSpace) {
		return health.Observation{}, err
	}

	capacity, failure := p.Capacity()
	if failure != nil {
		return health.Observation{}, failure
	}

	observed := health.Observation{Usage: &health.Usage{Bytes: health.Amount{
		Total: capacity.Total, Used: capacity.Total - capacity.Available, Available: capacity.Available,
	}}}

	if errors.Is(err, pool.ErrReadOnly) {
		observed.Entries = append(observed.Entries, health.NewEntry(health.PoolReadOnly,
			fmt.Sprintf("pool %q takes no new files; remount %s for writing", p.Name(), p.Path())))
	}

	if errors.Is(err, pool.ErrNoSpace) || capacity.NearlyFull() {
		observed.Entries = append(observed.Entries, health.NewEntry(health.PoolNearlyFull,
			fmt.Sprintf("pool %q is nearly full; delete volumes or enlarge %s", p.Name(), p.Path())))
	}

	return observed, nil
}

// unavailable is the condition of a pool that has failed, or that is served and does not answer: the cause and the
// remedy, in the 128 bytes of a condition's message. Calls get the complete error. The pool is probed again each
// second, as all that is unhealthy: that is how it recovers.
func (o *opener) unavailable(name string) health.Observation {
	failure := o.pools.Failure(name)
	errno, isErrno := errors.AsType[unix.Errno](failure)

	var message string

	switch {
	case failure == nil:
		message = fmt.Sprintf("pool %q does not answer; check the storage below %s", name, o.pools.Path(name))
	case errors.Is(failure, pool.ErrIdentity):
		message = fmt.Sprintf("pool %q is not the one in the state: mount its disk (or `touchstone state forget-pool %s`)", name, name)
	case isErrno:
		message = fmt.Sprintf("pool %q: %s; repair, or mount, the filesystem of %s", name, errno, o.pools.Path(name))
	default:
		message = fmt.Sprintf("pool %q: %s", name, strings.ReplaceAll(failure.Error(), o.config.Pools[name], "."))
	}

	return condition(health.PoolUnreachable, message)
}

func condition(reason health.Reason, message string) health.Observation {
	return health.Observation{Entries: []health.Entry{health.NewEntry(reason, message)}}
}

// followPool notifies the services whenever the pool fails or is served again, until
// ctx ends: all of its volumes are affected.
func (r *components) followPool(ctx context.Context, name string) {
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

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/internal/driver/identities"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

const (
	// unmountLimit bounds the unmounting of an embedded pool, which another driver may
	// be using.
	unmountLimit = 10 * time.Second
	// reopenPause is the shortest time between two attempts to open a pool.
	reopenPause = time.Second
	// openLimit is how long the start waits for the pools: a hanging one is opened
	// beside the calls.
	openLimit = 30 * time.Second
)

// opener opens the pools, each independently of the others, and again those that
// have failed: where their volumes are, in their directories or in the filesystems
// that are embedded there.
type opener struct {
	shared

	// identities are the identities of pools in the state.
	identities *state.Collection[*identities.Identity]
	// owner is the name of this controller in controller.lock; "" without a controller.
	owner string
	// services recover their objects in a pool.
	services []service
	// limit is how long a pool may take to answer a probe.
	limit   time.Duration
	members map[string]*member

	// base ends with the driver.
	base context.Context //nolint:containedctx // attempts outlive the probes that start them
	stop context.CancelFunc
}

// member is the opener's state of one pool. It is used by the holder of its turn only.
type member struct {
	// turn is taken by attempts to open and to probe the pool, of which one may hang
	// and no more.
	turn chan struct{}
	// embedded is the pool's own filesystem, nil while the pool is not open.
	embedded *embedded.Pool
	// failedAt is when the last attempt to open it failed, with failure.
	failedAt time.Time
	failure  error
}

// newOpener registers the collection of pool identities with the store. It opens no
// pool.
func newOpener(ctx context.Context, common shared) *opener {
	o := &opener{
		shared: common, members: map[string]*member{},
		identities: identities.Register(common.store),
		limit:      min(maxPoolProbe, common.config.Health.ProbeTimeout/2),
	}
	o.base, o.stop = context.WithCancel(context.WithoutCancel(ctx))

	for name := range common.config.Pools {
		o.members[name] = &member{turn: make(chan struct{}, 1)}
	}

	return o
}

// openAll opens the pools, all at once, and waits for them for a while. A pool that
// cannot be used is no reason not to start; a configuration that cannot work is, and
// so is another controller. Errors: ErrConfig, pool.ErrControllerRunning, ctx's.
func (o *opener) openAll(outer context.Context) error {
	ctx, cancel := context.WithTimeout(outer, openLimit)
	defer cancel()

	opening, ctx := errgroup.WithContext(ctx)

	for name, member := range o.members {
		member.turn <- struct{}{}

		opening.Go(func() error {
			_, err := operation.Await(ctx, func() (struct{}, error) {
				defer func() { <-member.turn }()

				if err := o.open(name); err != nil {
					return struct{}{}, err
				}

				o.announce(name)

				return struct{}{}, nil
			})
			if errors.Is(err, ErrConfig) || errors.Is(err, pool.ErrControllerRunning) {
				return err
			}

			return nil
		})
	}

	if err := opening.Wait(); err != nil {
		return err
	}

	return context.Cause(outer)
}

// open makes one attempt to open the pool, recovers interrupted operations in it, and
// has the set serve it. The caller holds the pool's turn.
func (o *opener) open(name string) error {
	member := o.members[name]
	if time.Since(member.failedAt) < reopenPause {
		return member.failure
	}

	opened, err := o.assemble(name)
	if err != nil {
		if opened != nil {
			err = errors.Join(err, opened.Close())
		}

		o.fail(name, err)

		return err
	}

	o.pools.Serve(opened)
	directories := opened.Directories.Support()
	o.config.Log.Info("a pool is served", "pool", name, "path", opened.Path(), "identity", opened.Identity(),
		"directoryVolumes", directories.Kind, "sizesLimited", directories.Limited, "notLimited", directories.Reason)

	member.failure = nil

	return nil
}

// announce notifies the services that the pool is served. It is an operation, so that a drain
// waits for it. None joins that of an earlier opening.
func (o *opener) announce(name string) {
	call := operation.Call{Key: "pool " + name, Method: "announce", Exclusive: true}

	_, err := operation.DoLogged(o.base, o.config.Log, o.operations, call, func(ctx context.Context) (struct{}, error) {
		o.resumeRemovals(ctx, o.pools, name)

		if o.config.serves(ModeNode) {
			o.resumeRemovals(ctx, o.pools.Ephemeral(), name)
		}

		for _, each := range o.services {
			if each.served != nil {
				each.served(ctx, name)
			}
		}

		return struct{}{}, nil
	})
	if err != nil {
		o.config.Log.Info("the next start completes what follows the opening of a pool", "pool", name, "error", err)
	}
}

// resumeRemovals schedules removals that earlier runs have not completed. A failure to
// list them does not affect volumes.
func (o *opener) resumeRemovals(ctx context.Context, set *pool.Set, name string) {
	p, err := set.Get(name)
	if err == nil {
		err = p.ResumeRemovals(ctx)
	}

	if err != nil {
		o.config.Log.Error("cannot list interrupted removals; the next start retries it", "pool", name, "error", err)
	}
}

// fail makes all calls that need the pool fail with the reason, and closes its files,
// so that its filesystem can be unmounted. The caller holds the pool's turn.
func (o *opener) fail(name string, reason error) {
	member := o.members[name]
	if member.failure == nil || member.failure.Error() != reason.Error() {
		o.config.Log.Warn("a pool cannot be used, and is opened again until it can", "pool", name, "error", reason)
	}

	member.failedAt, member.failure = time.Now(), reason

	if err := o.pools.Fail(name, reason); err != nil {
		o.config.Log.Warn("a pool that has failed is not closed cleanly", "pool", name, "error", err)
	}

	if member.embedded == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.base), unmountLimit)
	defer cancel()

	// Where volumes use it, it stays for the next attempt.
	if err := member.embedded.Close(ctx); err != nil {
		o.config.Log.Warn("an embedded pool that has failed stays mounted", "pool", name, "error", err)
	}

	member.embedded = nil
}

// assemble opens the pool, takes its controller lock if this process has a controller, and recovers it.
func (o *opener) assemble(name string) (*pool.Pool, error) {
	if err := o.config.refuseSharedImage(name); err != nil {
		return nil, err
	}

	known := ""
	if record, ok := o.identities.Get(name); ok {
		known = record.ID
	}

	directory, image, err := o.embed(name, known)
	if err != nil {
		return nil, err
	}

	opened, err := pool.Open(name, directory, pool.Options{HostImage: image, Identity: &known, Removals: o.removals})
	if errors.Is(err, pool.ErrNotDirectory) {
		err = fmt.Errorf("%w: %w", ErrConfig, err)
	}

	if err != nil {
		return nil, err
	}

	if o.owner != "" {
		// Before recovery: objects without a record here may belong to another
		// controller.
		if err := opened.LockAsController(o.owner); err != nil {
			return opened, err
		}
	}

	if _, err := probeServed(opened); err != nil {
		return opened, err
	}

	if err := o.adopt(opened); err != nil {
		return opened, err
	}

	if opened.Identity() == "" {
		o.config.Log.Warn("a pool has no space for its identity; free some", "pool", name)
	}

	// If one fails, the next attempt repeats it.
	for _, each := range o.services {
		if err := each.recoverPool(o.base, opened); err != nil {
			return opened, err
		}
	}

	return opened, nil
}

// embed returns the directory of the pool, mounted if it is embedded, and its image.
// It creates no image for a pool whose identity is in the state.
func (o *opener) embed(name, known string) (directory, image string, err error) {
	outer := o.config.Pools[name]

	// A pool without volumes may still become an embedded one.
	plain := ""
	if known != "" {
		if plain, err = pool.ReadIdentity(outer); err != nil {
			return "", "", err
		}
	}

	made, err := embedded.Ensure(o.base, embedded.Options{
		Directory: outer, Bytes: o.config.PoolImageBytes, Filesystem: o.config.PoolImageFS,
		MustExist: known != "" && plain != known, Log: o.config.Log,
	})
	if err != nil {
		return "", "", err
	}

	o.members[name].embedded = made

	if made.Image() != "" && known != "" {
		err = pool.MoveIdentity(outer, made.Directory())
	}

	return made.Directory(), made.Image(), err
}

// adopt records the identity of a pool that the state does not have. While the pool has no space for an
// identity, or the state is read-only, the pool is served without: volumes are deleted to free space.
// Each probe repeats it. The caller has the pool's turn.
func (o *opener) adopt(opened *pool.Pool) error {
	if _, known := o.identities.Get(opened.Name()); known {
		return nil
	}

	id, err := opened.Identify()
	if err != nil || id == "" || o.store.Err() != nil {
		return err
	}

	err = o.store.Update(o.base, func(tx *state.Tx) error {
		return o.identities.In(tx).Put(opened.Name(), &identities.Identity{ID: id})
	})
	if err != nil && !errors.Is(err, state.ErrReadOnly) {
		return fmt.Errorf("record the identity of pool %q: %w", opened.Name(), err)
	}

	return nil
}

// close closes the pools, but for one that hangs.
func (o *opener) close() error {
	o.stop()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.base), unmountLimit)
	defer cancel()

	for name, member := range o.members {
		select {
		case member.turn <- struct{}{}:
			member.failure = errShuttingDown // Suppresses the warning.
			o.fail(name, errShuttingDown)
		case <-ctx.Done():
			o.config.Log.Warn("a pool hangs and is not closed", "pool", name)
		}
	}

	return nil
}

// checkPoolImage refuses what could not be one filesystem of one node.
func (c *Config) checkPoolImage() error {
	if c.PoolImageBytes > 0 && c.Shared {
		return fmt.Errorf("%w: an embedded pool is mounted by one node: give shared or pool-image-size", ErrConfig)
	}

	return nil
}

// refuseSharedImage is checkPoolImage for an image that is there already.
func (c *Config) refuseSharedImage(name string) error {
	image := filepath.Join(c.Pools[name], layout.EmbeddedImage)
	if _, err := os.Lstat(image); err != nil || !c.Shared {
		return nil //nolint:nilerr // there is none
	}

	return fmt.Errorf("%w: pool %q is embedded in %s, which one node mounts: leave shared out", ErrConfig, name, image)
}

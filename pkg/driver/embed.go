package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/poolimage"
)

// unmountLimit bounds what an embedded pool may take to end: another driver may
// be at work on it.
const unmountLimit = 10 * time.Second

// openPools opens the pools where their volumes are: in their directories, or in
// the filesystems that are embedded there.
func (r *rooms) openPools(ctx context.Context, config *Config) error {
	directories, carriers := map[string]string{}, map[string]string{}

	for _, name := range slices.Sorted(maps.Keys(config.Pools)) {
		if err := config.refuseSharedImage(name); err != nil {
			return err
		}

		embedded, err := poolimage.Ensure(ctx, poolimage.Options{
			Directory: config.Pools[name], Bytes: config.PoolImageBytes, Log: config.Log,
		})
		if err != nil {
			return fmt.Errorf("pool %q: %w", name, err)
		}

		r.closers = append(r.closers, func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmountLimit)
			defer cancel()

			return embedded.Close(ctx)
		})

		directories[name], carriers[name] = embedded.Directory(), embedded.Image()
	}

	opened, err := pool.OpenSet(directories, pool.CarriedBy(carriers), pool.RemoveWith(r.removals))
	if err != nil {
		return err
	}

	r.pools = opened
	r.closers = append(r.closers, opened.Close)

	return nil
}

// checkPoolImage refuses what could not be one filesystem of one node.
func (c *Config) checkPoolImage() error {
	var problems []error

	if c.PoolImageBytes < 0 {
		problems = append(problems, fmt.Errorf("%w: pool-image-size cannot be negative; 0 makes no embedded pool", ErrConfig))
	}

	if c.PoolImageBytes > 0 && c.Shared {
		problems = append(problems, fmt.Errorf("%w: an embedded pool is mounted by one node: give shared or pool-image-size", ErrConfig))
	}

	return errors.Join(problems...)
}

// refuseSharedImage is checkPoolImage for an image that is there already.
func (c *Config) refuseSharedImage(name string) error {
	image := filepath.Join(c.Pools[name], poolimage.ImageName)
	if _, err := os.Lstat(image); err != nil || !c.Shared {
		return nil //nolint:nilerr // there is none
	}

	return fmt.Errorf("%w: pool %q is embedded in %s, which one node mounts: leave shared out", ErrConfig, name, image)
}

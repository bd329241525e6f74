package staged

import (
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// Pools store the volumes that are in use.
type Pools struct {
	// Volumes stores volumes, and Ephemeral inline ephemeral volumes.
	Volumes, Ephemeral *pool.Set
	// Storage monitors the pools; nil if nothing does.
	Storage *health.Monitor
}

// Of returns the pool that stores a volume in use. Error: FAILED_PRECONDITION for one that this node does
// not have.
func (p Pools) Of(v *Volume) (*pool.Pool, error) {
	set := p.Volumes
	if v.Ephemeral {
		set = p.Ephemeral
	}

	found, err := set.Get(v.Parameters.Pool)

	switch {
	case errors.Is(err, pool.ErrUnknown):
		return nil, errdefs.Errorf(errdefs.ErrFailedPrecondition, "volume %s is in pool %q, which this node does not have (--pool)",
			v.VolumeID, v.Parameters.Pool)
	case err != nil:
		return nil, fmt.Errorf("volume %s: %w", v.VolumeID, err)
	default:
		return found, nil
	}
}

// OpenImage opens the image of a volume in use.
func (p Pools) OpenImage(v *Volume, flag int) (*os.File, error) {
	stored, err := p.Of(v)
	if err != nil {
		return nil, err
	}

	return stored.Images.Open(v.ObjectID(), flag)
}

// CheckStored returns NOT_FOUND unless the pool stores the volume's image or directory.
func (p Pools) CheckStored(v *Volume) error {
	stored, err := p.Of(v)
	if err != nil {
		return err
	}

	object, err := stored.Open(v.Object())
	if err != nil {
		return err
	}

	_ = object.Close()

	return nil
}

// MutableParameters returns the mutable parameters that the pool has of the volume. The controller,
// which may be another process, writes them there. Only volumes with a device have any.
func (p Pools) MutableParameters(v *Volume) (volume.Mutable, error) {
	if v.Ephemeral || !v.Parameters.Backing.HasDevice() {
		return volume.Mutable{}, nil
	}

	stored, err := p.Of(v)
	if err != nil {
		return volume.Mutable{}, err
	}

	return stored.Mutable(v.ObjectID())
}

// CheckReachable returns pool.ErrUnreachable for a pool that is known to be unreachable.
func (p Pools) CheckReachable(poolName string) error {
	if p.Storage == nil {
		return nil
	}

	record, ok := p.Storage.Get(health.PoolSubject(poolName))
	if ok && record.Has(health.PoolUnreachable) {
		return fmt.Errorf("pool %q: %w", poolName, pool.ErrUnreachable)
	}

	return nil
}

package catalog

import (
	"context"
	"iter"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// FindVolume returns a volume that exists for the CO. Error: NOT_FOUND.
func (c *Catalog) FindVolume(id string) (*record.Volume, error) {
	found, ok := c.ReadyVolume(id)
	if !ok {
		return nil, volumeMissing(id)
	}

	return found, nil
}

func volumeMissing(id string) error {
	return errdefs.Errorf(errdefs.ErrNotFound, "volume %s does not exist", id)
}

// ReadyVolume returns a volume that exists for the CO, false without one.
func (c *Catalog) ReadyVolume(id string) (*record.Volume, bool) {
	found, ok := c.Volumes.Get(id)

	return found, ok && found.Phase == record.PhaseReady
}

// Registered returns what the node of this process needs of the record of a volume, false where
// the volume does not exist.
func (c *Catalog) Registered(id string) (volume.Registered, bool) {
	v, ok := c.ReadyVolume(id)
	if !ok {
		return volume.Registered{}, false
	}

	return volume.Registered{Pool: v.Parameters.Pool, Backing: v.Parameters.Backing, CapacityBytes: v.CapacityBytes}, true
}

// ReadyVolumes returns the volumes behind an id that exist for the CO, ordered by id.
func (c *Catalog) ReadyVolumes(after string) iter.Seq[*record.Volume] {
	return func(yield func(*record.Volume) bool) {
		for _, v := range c.Volumes.Ascend(after) {
			if v.Phase == record.PhaseReady && !yield(v) {
				return
			}
		}
	}
}

// CheckCapacity returns RESOURCE_EXHAUSTED unless so many more bytes can be provisioned.
func (c *Catalog) CheckCapacity(ctx context.Context, p *pool.Pool, bytes int64) error {
	return c.admission.Admit(ctx, func(check pool.Check) error { return check(p, bytes, false) })
}

// RecordVolume stores a volume, which it may change; a new one only if its pool has the capacity.
func (c *Catalog) RecordVolume(ctx context.Context, v *record.Volume, p *pool.Pool) (err error) {
	defer errdefs.Wrapf(&err, "record volume %s", v.ID)

	c.interner.Intern(v.ID, v)

	return c.admission.Admit(ctx, func(check pool.Check) error {
		return c.store.Update(ctx, func(tx *state.Tx) error {
			records := c.Volumes.In(tx)

			// Calls with the same name are serialized, so that another record with it is of a failed attempt.
			if id, _, taken := records.Lookup(record.NameIndex, v.Name); taken && id != v.ID {
				return errdefs.Errorf(errdefs.ErrAborted, "volume %s, of an earlier attempt, is still being removed; call again", id)
			}

			if _, reserved := records.Get(v.ID); !reserved {
				if err := check(p, v.CapacityBytes, false); err != nil {
					return err
				}
			}

			return records.Put(v.ID, v)
		})
	})
}

// UpdateVolume stores a changed copy of the volume's newest record, durably.
func (c *Catalog) UpdateVolume(ctx context.Context, id string, edit func(*record.Volume) error) (changed *record.Volume, err error) {
	defer errdefs.Wrapf(&err, "record volume %s", id)

	err = c.store.Update(ctx, func(tx *state.Tx) error {
		records := c.Volumes.In(tx)

		current, ok := records.Get(id)
		if !ok || current.Phase != record.PhaseReady {
			return volumeMissing(id)
		}

		changed = current.Clone()
		if err := edit(changed); err != nil {
			return err
		}

		return records.Put(id, changed)
	})

	return changed, err
}

// ResizeVolume is UpdateVolume for a change that the pool's capacity must admit, as far as it makes the
// volume larger. A thick image has its space already.
func (c *Catalog) ResizeVolume(ctx context.Context, id string, p *pool.Pool, edit func(*record.Volume)) error {
	return c.admission.Admit(ctx, func(check pool.Check) error {
		_, err := c.UpdateVolume(ctx, id, func(v *record.Volume) error {
			before := v.CapacityBytes
			edit(v)

			if v.CapacityBytes == before {
				return nil
			}

			return check(p, v.CapacityBytes-before, v.IsThick())
		})

		return err
	})
}

// SetDurable records that the objects of volumes are durable.
func (c *Catalog) SetDurable(ctx context.Context, volumes []*record.Volume) (err error) {
	defer errdefs.Wrapf(&err, "record that the volumes' objects are durable")

	if len(volumes) == 0 {
		return nil // also while the state takes no changes
	}

	return c.store.Update(ctx, func(tx *state.Tx) error {
		for _, v := range volumes {
			durable := v.Clone()
			durable.Pristine = false

			for i := range durable.Attachments {
				durable.Attachments[i].UnsyncedIn = ""
			}

			if err := c.Volumes.In(tx).Put(v.ID, durable); err != nil {
				return err
			}
		}

		return nil
	})
}

// FreeVolumeNames marks volumes that are to be removed. It does not wait for the disk.
func (c *Catalog) FreeVolumeNames(unfinished ...*record.Volume) (err error) {
	defer errdefs.Wrapf(&err, "free the names of volumes that are removed")

	return IgnoreReadOnly(c.store.UpdateLazily(func(tx *state.Tx) error {
		records := c.Volumes.In(tx)

		for _, v := range unfinished {
			current, ok := records.Get(v.ID)
			if !ok || current.Phase != record.PhaseCreating {
				continue
			}

			changed := current.Clone()
			changed.Phase = record.PhaseDeleting

			if err := records.Put(v.ID, changed); err != nil {
				return err
			}
		}

		return nil
	}))
}

// ForgetVolume does not wait for the disk: should the record come back after a
// crash, it only says once more that the bytes must go.
func (c *Catalog) ForgetVolume(id string) (err error) {
	defer errdefs.Wrapf(&err, "forget volume %s", id)

	return c.store.UpdateLazily(func(tx *state.Tx) error { return c.Volumes.In(tx).Delete(id) })
}

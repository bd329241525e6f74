package objects

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Remover gives the space of volumes and snapshots back that no CO sees any more, and then forgets them.
type Remover struct {
	Catalog *catalog.Catalog
	Queue   *removal.Queue
	// Forgotten is called for each volume that does not exist any more.
	Forgotten func(id string)
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
}

// Volume is the task that removes a volume.
func (r *Remover) Volume(v *record.Volume) removal.Task {
	return removal.Task{
		Pool: v.Parameters.Pool, Object: "volume " + v.ID,
		Remove: func(ctx context.Context) error {
			p, err := r.Catalog.PoolOf(v)
			if err != nil {
				return err
			}

			if err := p.Remove(ctx, v.Object()); err != nil {
				return err
			}

			if err := r.Point.At(ctx, operation.VolumeRemoved, v.ID, v.Name); err != nil {
				return err
			}

			// A power failure before that brings the bytes back; without the record they would stay.
			if err := p.SyncRemovals(); err != nil {
				return err
			}

			return r.forget(v.ID)
		},
	}
}

// forget forgets a volume whose bytes are gone.
func (r *Remover) forget(id string) error {
	err := r.Catalog.ForgetVolume(id)
	r.Forgotten(id)

	return err
}

// UndoVolume removes what a failed creation has left, and returns why it failed. What
// takes long or can't be removed now goes in the background.
func (r *Remover) UndoVolume(ctx context.Context, v *record.Volume, p *pool.Pool, cause error) error {
	if err := p.Discard(ctx, v.Object()); err != nil {
		r.Queue.Add(r.Volume(v))

		return errors.Join(cause, err, r.Catalog.FreeVolumeNames(v))
	}

	err := r.forget(v.ID)
	if err != nil {
		r.Queue.Add(r.Volume(v))
	}

	return errors.Join(cause, catalog.IgnoreReadOnly(err))
}

// Snapshots is the task that removes snapshots, and the group that they are all of.
func (r *Remover) Snapshots(group *record.Group, gone []*record.Snapshot) removal.Task {
	task := removal.Task{Remove: func(ctx context.Context) error {
		for _, each := range gone {
			p, err := r.Catalog.Pool(each.Parameters.Pool, "snapshot "+each.ID)
			if err != nil {
				return err
			}

			if err := p.Remove(ctx, each.Object()); err != nil {
				return err
			}

			// As for volumes.
			if err := p.SyncRemovals(); err != nil {
				return err
			}
		}

		return r.Catalog.ForgetSnapshots(group, gone)
	}}

	if len(gone) > 0 {
		task.Pool, task.Object = gone[0].Parameters.Pool, "snapshot "+gone[0].ID
	}

	if group != nil {
		task.Object = "group snapshot " + group.ID
	}

	return task
}

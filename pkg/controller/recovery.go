package controller

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Recover schedules the removal of what a crash has left half-done, before RecoverPool
// and the first call.
func (s *Service) Recover(ctx context.Context) (err error) {
	defer errdefs.Wrapf(&err, "recover")

	// An Update makes the lazy ones before it visible: the first calls must find the names free.
	return errors.Join(s.recoverVolumes(), s.copies.Recover(), catalog.IgnoreReadOnly(s.catalog.Flush(ctx)))
}

// recoverVolumes schedules what a crash has left half-done. Nothing is removed
// before the driver is ready.
func (s *Service) recoverVolumes() error {
	var unfinished []*record.Volume

	for _, v := range s.catalog.Volumes.Ascend("") {
		if v.Phase.IsUnfinished() {
			s.config.Log.Info("removing an unfinished volume", "volume", v.ID, "phase", v.Phase)
			s.remover.Queue.Add(s.remover.Volume(v))

			unfinished = append(unfinished, v)
		}
	}

	return s.catalog.FreeVolumeNames(unfinished...)
}

// RecoverPool ends what was left half-done in a pool, after a crash or since the
// pool has failed, before the pool is served. What the store does not know is left
// alone unless it is empty.
func (s *Service) RecoverPool(ctx context.Context, p *pool.Pool) (err error) {
	defer errdefs.Wrapf(&err, "recover pool %q", p.Name())

	s.changes.Recover(ctx, p, s.existsOrCreating)

	if err := errors.Join(s.allocateDurably(ctx, p), s.collectOrphans(ctx, p)); err != nil {
		return err
	}

	// Last: copies go on in the background.
	return s.copies.Resume(ctx, p)
}

// allocateDurably makes the objects of a pool durable that no attachment, and no NodeStageVolume, will make
// durable (docs/decisions/0005).
func (s *Service) allocateDurably(ctx context.Context, p *pool.Pool) (failed error) {
	var durable []*record.Volume

	for v := range s.catalog.ReadyVolumes("") {
		var err error

		switch boot := v.UnsyncedIn(); {
		case v.Parameters.Pool != p.Name():
			continue
		case v.Pristine && !s.has(capability.PublishUnpublishVolume):
			err = objects.AllocateDurably(v, p)
		case boot != "" && boot != s.config.BootID:
			err = allocateUnsynced(ctx, v, p)
		default:
			continue
		}

		if err == nil {
			durable = append(durable, v)
		}

		failed = errors.Join(failed, err)
	}

	return errors.Join(failed, s.catalog.SetDurable(ctx, durable))
}

// allocateUnsynced makes the image of a volume again that a power failure took before NodeStageVolume had
// replaced it by a durable one. An image without blocks may also have lost its size. One that is missing
// in the same boot of the machine was removed by another program, and so is each that is missing later.
func allocateUnsynced(ctx context.Context, v *record.Volume, p *pool.Pool) error {
	allocated, err := p.Images.AllocatedBytes(ctx, v.ID)
	if errors.Is(err, pool.ErrMissing) || err == nil && allocated == 0 {
		return objects.AllocateDurably(v, p)
	}

	return err
}

// collectOrphans removes empty objects without a record: a
// crash between making an image and its record leaves such. One with data is
// only reported, for an administrator to decide.
func (s *Service) collectOrphans(ctx context.Context, p *pool.Pool) (err error) {
	defer errdefs.Wrapf(&err, "look for orphans")

	return p.List(ctx, func(object pool.Object) error {
		if object.Snapshot {
			if _, known := s.catalog.Snapshots.Get(object.ID); !known {
				s.config.Log.Warn("a snapshot is in the pool but not in the state; nothing but a person removes it",
					"snapshot", object.ID, "path", p.ObjectPath(object))
			}

			return nil
		}

		if s.existsOrCreating(object.ID) {
			return nil
		}

		removed, err := p.RemoveEmptyOrphan(ctx, object)
		if err != nil {
			s.config.Log.Error("cannot remove an empty volume that is not in the state", "volume", object.ID, "error", err)
		} else if !removed {
			s.config.Log.Warn("a volume that holds data or is in use is in the pool but not in the state; see `touchstone state verify --pool`",
				"volume", object.ID, "path", p.ObjectPath(object))
		}

		return nil
	})
}

// existsOrCreating reports whether a volume is in the store, or is about to be: a
// CreateVolume outlives the failure of its pool, which is recovered meanwhile. No
// other process makes volumes there, as the pool is locked by its controller.
func (s *Service) existsOrCreating(id string) bool {
	// First: a volume leaves making when it is in the store.
	if _, made := s.creating.Load(id); made {
		return true
	}

	_, known := s.catalog.Volumes.Get(id)

	return known
}

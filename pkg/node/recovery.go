package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Recover compares the records with what is mounted and attached, before the first call:
// after a reboot, or an unmount by another program, records are left without a volume.
func (s *Service) Recover(ctx context.Context) error {
	s.volumes.Staged.Load()
	s.freezer.Load()
	s.checker.Load()
	// Before all else, because programs that write to a frozen filesystem wait for it.
	s.freezer.ThawRecorded()

	s.volumes.Inline.Load()
	s.tuner.Load()

	if err := s.devices.Raw().Find(); err != nil {
		return fmt.Errorf("recover: %w", err)
	}

	for _, v := range s.volumes.Staged.All() {
		// A volume that fails does not keep the others from being used.
		if err := s.lifecycle.reconcile(ctx, v); err != nil {
			s.config.Log.Error("cannot recover a staged volume", "volume", v.VolumeID, "error", err)
		}
	}

	s.tuner.Recover(s.isPublication, func(number int) (bool, error) {
		_, attached, err := s.loops.Status(number)

		return attached, err
	})

	return nil
}

// RecoverPool completes or undoes what was interrupted in a pool, by a crash or because the
// pool failed, before the pool is served.
func (s *Service) RecoverPool(ctx context.Context, recovered *pool.Pool) error {
	// Each pool has a directory for ephemeral volumes.
	if _, err := recovered.Ephemeral(); err != nil {
		return fmt.Errorf("recover pool %q: %w", recovered.Name(), err)
	}

	if err := recovered.RemoveStaleScratch(ctx); err != nil {
		s.config.Log.Error("cannot remove unfinished copies; the next start retries it", "pool", recovered.Name(), "error", err)
	}

	return nil
}

// PoolServed mounts the volumes of a pool that is served from now on, as far as they are to be mounted at
// each start, applies the mutable parameters of those in use, and removes its ephemeral volumes that are
// not in use any more. Prober.SuspectPool probes its volumes.
func (s *Service) PoolServed(ctx context.Context, poolName string) {
	s.persistent.PublishAll(ctx, poolName)

	for _, v := range s.volumes.Staged.All() {
		if v.Parameters.Pool != poolName {
			continue
		}

		if err := s.applyMutable(ctx, v.VolumeID); err != nil {
			s.config.Log.Error("cannot apply the mutable parameters of a volume", "volume", v.VolumeID, "error", err)
		}
	}

	s.ephemeral.RemoveUnmounted(ctx, poolName)
}

// recoveryDetachLimit bounds the wait for a device at the start. While it is attached the record stays.
const recoveryDetachLimit = time.Second

// reconcile removes from the record what does not exist any more, and the record with the
// staging.
func (l *lifecycle) reconcile(ctx context.Context, v *staged.Volume) error {
	pruned, err := l.prune(v)
	if err != nil {
		return err
	}

	if len(pruned.Publications) == 0 && l.config.endsUnpublished(pruned) {
		return l.unstageLast(ctx, v.VolumeID)
	}

	isStaged, err := l.ways.For(pruned).IsStaged(pruned)
	if err != nil {
		return err
	}

	if isStaged {
		if pruned.IsMountedImage() && !pruned.SharedByReaders() {
			l.checker.RecordMounted(ctx, pruned)
		}

		if err := l.devices.RecordMounted(pruned); err != nil {
			return err
		}
	}

	if len(pruned.Publications) > 0 || isStaged {
		// A publication that was interrupted may have left its device.
		return errors.Join(l.devices.DetachUnusedReader(ctx, pruned), l.direct.Assignments.Restore(pruned))
	}

	l.config.Log.Info("a volume is not staged any more", "volume", v.VolumeID, "stagingPath", v.StagingPath)

	// A program that keeps its device must not keep the driver from its start.
	waiting, cancel := context.WithTimeout(ctx, recoveryDetachLimit)
	defer cancel()

	if err := l.devices.DetachAll(waiting, v); err != nil {
		return err
	}

	return l.forget(v)
}

// prune removes the publications that do not exist any more from the record, and returns the
// record with the others.
func (l *lifecycle) prune(v *staged.Volume) (*staged.Volume, error) {
	for _, publication := range v.Publications {
		published, err := l.IsPublished(v, publication)
		if err != nil {
			return nil, err
		}

		if published {
			continue
		}

		l.config.Log.Info("a volume is not published any more", "volume", v.VolumeID, "target", publication.TargetPath)

		if err := l.ways.For(v).Unpublish(v, publication, nil); err != nil {
			return nil, err
		}

		v = v.WithoutPublication(publication.TargetPath)
		if err := l.volumes.Staged.PutLazily(v); err != nil {
			return nil, err
		}
	}

	return v, nil
}

// isPublication reports whether a publication is recorded.
func (s *Service) isPublication(volumeID, targetPath string) bool {
	v, known := s.volumes.Staged.Get(volumeID)
	if known {
		_, known = v.PublicationAt(targetPath)
	}

	return known
}

// forget deletes the record of a volume that is not in use here any more, unless the next start publishes
// it again, and resets the queue of a device that another program has detached.
func (l *lifecycle) forget(v *staged.Volume) error {
	l.tuner.ResetQueues(v.VolumeID)

	if len(v.Persistent) > 0 {
		return l.volumes.Staged.PutLazily(v.Unused())
	}

	return l.volumes.Staged.DeleteLazily(v.VolumeID)
}

// leave deletes the record of a volume that was unstaged, and then its last observation: in
// this order, so that a probe that is running does not restore the observation. A volume
// whose staging fails keeps its observation.
func (l *lifecycle) leave(record *staged.Volume) error {
	defer l.prober.Observations().Forget(record.VolumeID)

	return l.forget(record)
}

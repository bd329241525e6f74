package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool"
)

// Recover compares the records with what is mounted and attached, before the first call:
// after a reboot, or an unmount by another program, records are left without a volume.
func (s *Service) Recover(ctx context.Context) error {
	s.stagedVolumes.Load()
	s.freezer.Load()
	s.checker.Load()
	// Before all else, because programs that write to a frozen filesystem wait for it.
	s.freezer.ThawRecorded()

	if err := s.config.Direct.Root.ClearTemporary(); err != nil {
		// It affects direct volumes only, whose calls report it again.
		s.config.Log.Error("cannot remove temporary files of direct volumes", "error", err)
	}

	s.ephemeral.Load()
	s.tuner.Load()

	if err := s.access.FindDevices(); err != nil {
		return fmt.Errorf("recover: %w", err)
	}

	for _, use := range s.stagedVolumes.All() {
		// A volume that fails does not keep the others from being used.
		if err := s.reconcile(ctx, use); err != nil {
			s.config.Log.Error("cannot recover a staged volume", "volume", use.VolumeID, "error", err)
		}
	}

	s.recoverTuning()

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

// PoolServed applies the mutable parameters of the volumes of a pool that is served from now
// on, and removes its ephemeral volumes that are not in use any more.
func (s *Service) PoolServed(ctx context.Context, poolName string) {
	for _, use := range s.stagedVolumes.All() {
		if use.Parameters.Pool != poolName {
			continue
		}

		if err := s.refresh(ctx, use.VolumeID, int(s.occasions.Add(1))); err != nil {
			s.config.Log.Error("cannot apply the mutable parameters of a volume", "volume", use.VolumeID, "error", err)
		}
	}

	s.ephemeral.RecoverPool(ctx, poolName)
}

// reconcile removes from the record what does not exist any more, and the record with the
// staging.
func (s *Service) reconcile(ctx context.Context, use *staged.Volume) error {
	pruned, err := s.prune(use)
	if err != nil {
		return err
	}

	if len(pruned.Publications) == 0 && s.stagesItself(pruned) {
		return s.unstageLast(ctx, use.VolumeID)
	}

	isStaged, err := s.access.For(pruned).IsStaged(pruned)
	if err != nil {
		return err
	}

	if len(pruned.Publications) > 0 || isStaged {
		// A publication that was interrupted may have left its device.
		return errors.Join(s.access.DetachUnusedReader(ctx, pruned), s.access.RestoreAssignments(pruned))
	}

	s.config.Log.Info("a volume is not staged any more", "volume", use.VolumeID, "stagingPath", use.StagingPath)

	if err := s.access.DetachAll(ctx, use); err != nil {
		return err
	}

	return s.forget(use)
}

// prune removes the publications that do not exist any more from the record, and returns the
// record with the others.
func (s *Service) prune(use *staged.Volume) (*staged.Volume, error) {
	for _, publication := range use.Publications {
		published, err := s.access.For(use).IsPublished(use, publication)
		if err != nil {
			return nil, err
		}

		if published {
			continue
		}

		s.config.Log.Info("a volume is not published any more", "volume", use.VolumeID, "target", publication.TargetPath)

		if err := s.access.For(use).Unpublish(use, publication, nil); err != nil {
			return nil, err
		}

		use = use.WithoutPublication(publication.TargetPath)
		if err := s.stagedVolumes.PutLazily(use); err != nil {
			return nil, err
		}
	}

	return use, nil
}

// recoverTuning resets the queues and limits that are not needed any more.
func (s *Service) recoverTuning() {
	s.tuner.Recover(
		func(volumeID, targetPath string) bool {
			use, known := s.stagedVolumes.Get(volumeID)
			if known {
				_, known = use.PublicationAt(targetPath)
			}

			return known
		},
		func(number int) (bool, error) {
			_, attached, err := s.loops.Status(number)

			return attached, err
		})
}

// forget deletes the record of a volume that is not in use here any more, and resets the
// queue of a device that another program has detached.
func (s *Service) forget(use *staged.Volume) error {
	s.tuner.ResetQueues(use.VolumeID)

	return s.stagedVolumes.DeleteLazily(use.VolumeID)
}

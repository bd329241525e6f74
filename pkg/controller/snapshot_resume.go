package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// resumeCopies starts over, in the background, what is being copied in a pool.
func (s *Service) resumeCopies(ctx context.Context, poolName string) error {
	var copying []*record.Snapshot

	s.catalog.Snapshots.Ascend("", func(_ string, each *record.Snapshot) bool {
		group, grouped := s.catalog.Groups.Get(each.GroupID)
		unfinished := grouped && group.Phase.IsUnfinished()

		if each.Parameters.Pool == poolName && each.Phase == record.PhaseCopying && !unfinished && !s.busyWith(each) {
			copying = append(copying, each)
		}

		return true
	})

	for _, each := range copying {
		if err := s.copyAgain(ctx, each); err != nil {
			return fmt.Errorf("recover snapshots: %w", err)
		}
	}

	return nil
}

// busyWith says whether an operation is under way that ends by itself what it has
// begun with the snapshot.
func (s *Service) busyWith(snapshot *record.Snapshot) bool {
	return s.ops.Busy("snapshot "+snapshot.ID) || s.ops.Busy("volume "+snapshot.SourceVolumeID)
}

// copyAgain starts the copying of an acknowledged snapshot over, and does not
// wait for it. It is queued when copyAgain returns, before the first call that
// could change the source.
func (s *Service) copyAgain(ctx context.Context, lost *record.Snapshot) error {
	call := rpc.VolumeCall(lost.SourceVolumeID, "snapshot "+lost.Name, "copy snapshot", nil)

	return operation.Start(ctx, s.ops, call, func(ctx context.Context) {
		if err := s.takeAgain(ctx, lost); err != nil {
			s.config.Log.Error("an acknowledged snapshot is not copied", "snapshot", lost.ID, "volume", lost.SourceVolumeID, "error", err)
		}
	})
}

func (s *Service) takeAgain(ctx context.Context, lost *record.Snapshot) error {
	current, ok := s.catalog.Snapshots.Get(lost.ID)
	if !ok || current.Phase != record.PhaseCopying {
		return nil
	}

	source, err := s.catalog.FindVolume(lost.SourceVolumeID)
	if err != nil {
		// Its copy can never be completed. It was acknowledged, so only its deletion removes it.
		return errors.Join(err, s.recordFailed(ctx, err, lost))
	}

	s.config.Log.Info("copying a snapshot again whose copy was interrupted", "snapshot", lost.ID, "volume", source.ID)

	return s.takeSnapshots(ctx, nil, []*record.Volume{source}, []*record.Snapshot{lost.InPhase(record.PhaseCopying)})
}

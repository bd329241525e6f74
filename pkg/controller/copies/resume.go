package copies

import (
	"context"
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Resume starts over, in the background, what is being copied in a pool, which need not be served yet.
func (m *Machine) Resume(ctx context.Context, p *pool.Pool) error {
	var copying []*record.Snapshot

	for _, each := range m.Catalog.Snapshots.Ascend("") {
		group, grouped := m.Catalog.Groups.Get(each.GroupID)
		unfinished := grouped && group.Phase.IsUnfinished()

		if each.Parameters.Pool == p.Name() && each.Phase == record.PhaseCopying && !unfinished && !m.busyWith(each) {
			copying = append(copying, each)
		}
	}

	for _, each := range copying {
		call := operation.VolumeCall(each.SourceVolumeID, "snapshot "+each.Name, "copy snapshot", nil)

		// It is queued at once, before the first call that could change the source.
		err := operation.Start(ctx, m.Operations, call, func(ctx context.Context) {
			if err := m.takeAgain(ctx, p, each); err != nil {
				m.Log.Error("an acknowledged snapshot is not copied", "snapshot", each.ID, "volume", each.SourceVolumeID, "error", err)
			}
		})
		if err != nil {
			return fmt.Errorf("recover snapshots: %w", err)
		}
	}

	return nil
}

// busyWith says whether an operation is under way that ends by itself what it has
// begun with the snapshot.
func (m *Machine) busyWith(snapshot *record.Snapshot) bool {
	return m.Operations.Busy("snapshot "+snapshot.ID) || m.Operations.Busy("volume "+snapshot.SourceVolumeID)
}

// takeAgain starts the copying of an acknowledged snapshot over.
func (m *Machine) takeAgain(ctx context.Context, p *pool.Pool, lost *record.Snapshot) error {
	current, ok := m.Catalog.Snapshots.Get(lost.ID)
	if !ok || current.Phase != record.PhaseCopying {
		return nil
	}

	source, err := m.Catalog.FindVolume(lost.SourceVolumeID)
	if err != nil {
		// Its copy can never be completed. It was acknowledged, so only its deletion removes it.
		return errors.Join(err, m.recordFailed(ctx, err, lost))
	}

	m.Log.Info("copying a snapshot again whose copy was interrupted", "snapshot", lost.ID, "volume", source.ID)

	return m.takeSnapshots(ctx, &snapshots{
		taking:  taking{Machine: m, pool: func(string, string) (*pool.Pool, error) { return p, nil }},
		sources: []*record.Volume{source}, fresh: []*record.Snapshot{lost.InPhase(record.PhaseCopying)},
	})
}

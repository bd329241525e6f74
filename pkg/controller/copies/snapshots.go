package copies

import (
	"context"
	"errors"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// NewSnapshot describes a snapshot of the volume, without a name.
func (m *Machine) NewSnapshot(ctx context.Context, source *record.Volume, consistency volume.Consistency) (*record.Snapshot, error) {
	p, err := m.Catalog.PoolOf(source)
	if err != nil {
		return nil, err
	}

	// What is missing has allocated nothing: prepare makes it again if it was never used, or fails.
	allocated, err := p.Backing(source.Parameters.Backing).AllocatedBytes(ctx, source.ID)
	if err != nil && !errors.Is(err, pool.ErrMissing) {
		return nil, err
	}

	return &record.Snapshot{
		ID: volume.NewID(), SourceVolumeID: source.ID, SizeBytes: source.CapacityBytes, AllocatedBytes: allocated,
		Parameters: source.Parameters, Consistency: consistency, Raw: source.IsRaw(), Segments: source.Segments,
		CreatedAt: time.Now(), Phase: record.PhaseCreating,
	}, nil
}

// TakeSnapshot takes the snapshot of the source, or leaves nothing behind.
func (m *Machine) TakeSnapshot(ctx context.Context, source *record.Volume, fresh *record.Snapshot) error {
	return m.takeSnapshots(ctx, &snapshots{
		taking: taking{Machine: m, pool: m.Catalog.Pool}, sources: []*record.Volume{source}, fresh: []*record.Snapshot{fresh},
	})
}

// TakeGroup makes the group while it has the operation of each volume, or leaves nothing behind.
func (m *Machine) TakeGroup(ctx context.Context, fresh *record.Group) (*record.Group, error) {
	return m.holding(ctx, fresh.SourceVolumeIDs, "group "+fresh.Name, func(ctx context.Context) (*record.Group, error) {
		t := &snapshots{taking: taking{Machine: m, pool: m.Catalog.Pool}, group: fresh}

		for _, id := range fresh.SourceVolumeIDs {
			source, err := m.Catalog.FindVolume(id)
			if err != nil {
				return nil, err
			}

			member, err := m.NewSnapshot(ctx, source, fresh.Consistency)
			if err != nil {
				return nil, err
			}

			member.GroupID = fresh.ID
			fresh.SnapshotIDs = append(fresh.SnapshotIDs, member.ID)
			t.sources, t.fresh = append(t.sources, source), append(t.fresh, member)
		}

		if err := m.takeSnapshots(ctx, t); err != nil {
			return nil, err
		}

		objects := append([]string{fresh.ID, fresh.Name}, fresh.SourceVolumeIDs...)

		return fresh.InPhase(record.PhaseReady), m.Point.At(ctx, operation.SnapshotRecorded, objects...)
	})
}

// holding calls within while it has the operation of each volume. Several
// are taken in the order of their ids, which prevents a deadlock.
func (m *Machine) holding(ctx context.Context, volumeIDs []string, object string,
	within func(context.Context) (*record.Group, error),
) (*record.Group, error) {
	if len(volumeIDs) == 0 {
		return within(ctx)
	}

	call := operation.VolumeCall(volumeIDs[0], object, "CreateVolumeGroupSnapshot", nil)

	// It ends with the operation that it belongs to, and not before.
	return operation.Do(context.WithoutCancel(ctx), m.Operations, call, func(ctx context.Context) (*record.Group, error) {
		return m.holding(ctx, volumeIDs[1:], object, within)
	})
}

// snapshots is the taking of a snapshot of each source. The group is nil unless they are its members.
type snapshots struct {
	taking

	group   *record.Group
	sources []*record.Volume
	fresh   []*record.Snapshot
	// end ends a copy that takes long; nil without one. Until then copying is its context, which its
	// deletion ends.
	end     func()
	copying context.Context //nolint:containedctx // from take to commit
}

func (m *Machine) takeSnapshots(ctx context.Context, t *snapshots) error {
	defer func() {
		// Last: Remove waits until a stopped copy is undone.
		if t.end != nil {
			t.end()
		}
	}()

	return m.run(ctx, t)
}

func (t *snapshots) reserve(ctx context.Context) error {
	return t.Catalog.ReserveSnapshots(ctx, t.group, t.fresh...)
}

func (t *snapshots) prepare(context.Context) error {
	kind, name := "snapshot", t.fresh[0].Name
	if t.group != nil {
		kind, name = "group snapshot", t.group.Name
	}

	for i, source := range t.sources {
		p, err := t.pool(source.Parameters.Pool, "volume "+source.ID)
		if err != nil {
			return err
		}

		if err := t.addCopyOf(source, p, p, t.fresh[i].Object(), name, kind, pool.CopyOptions{}); err != nil {
			return err
		}
	}

	return t.planTaking(t.fresh[0].Consistency, t.fresh[0].GroupID)
}

func (t *snapshots) take(ctx context.Context) error {
	t.copying = ctx

	if t.group == nil && len(t.frozen) == 0 && !t.copies[0].copy.PointInTime() {
		t.copying, t.end = t.Running.Start(ctx, t.fresh[0].ID, t.fresh[0].Name)
	}

	return t.unlessDeleted(t.taking.take(t.copying)) //nolint:contextcheck // ends with the copy, too
}

// unlessDeleted returns that the snapshot was deleted if that is why its copy failed.
func (t *snapshots) unlessDeleted(err error) error {
	if err != nil && errors.Is(context.Cause(t.copying), catalog.ErrDeleted) {
		return catalog.SnapshotDeleted(t.fresh[0].ID)
	}

	return err
}

//nolint:contextcheck // its context ends with the copy, too
func (t *snapshots) commit(context.Context) (err error) {
	defer func() { err = t.unlessDeleted(err) }()

	for i, each := range t.fresh {
		each.CreatedAt = t.copies[i].at

		if each.AllocatedBytes, err = t.copies[i].copy.Commit(t.copying); err != nil {
			return err
		}

		if err := t.Point.At(t.copying, operation.SnapshotCopied, each.ID, each.Name, each.SourceVolumeID); err != nil {
			return err
		}
	}

	return nil
}

func (t *snapshots) accept(ctx context.Context) error {
	if t.group != nil {
		t.group.CreatedAt = t.copies[0].at
		// What was written to members that could not be frozen may be older or newer by as much.
		skew := t.copies[len(t.copies)-1].at.Sub(t.copies[0].at)
		t.Log.Info("group snapshot taken", "group", t.group.ID, "members", len(t.fresh), "frozen", len(t.frozen),
			"atomic", len(t.inGroup), "skew", skew)
	}

	return t.Catalog.AcceptSnapshots(ctx, t.group, t.fresh...)
}

// undo leaves what a CO knows already as one that has failed; at the end of the driver as
// one that the next start copies.
func (t *snapshots) undo(ctx context.Context, cause error) error {
	failures := []error{cause}

	var left []*record.Snapshot

	for _, each := range t.fresh {
		p, err := t.pool(each.Parameters.Pool, "snapshot "+each.ID)
		if err == nil {
			err = p.Discard(ctx, each.Object())
		}

		if err != nil {
			left, failures = append(left, each), append(failures, err)
		}
	}

	// What is forgotten can't be acknowledged any more, so no acknowledgement comes after recordFailed.
	created, err := t.Catalog.AbandonSnapshots(t.group, t.fresh, len(left) > 0)
	if len(created) > 0 {
		t.Remover.Queue.Add(t.Remover.Snapshots(t.group, created))
	}

	if !errors.Is(context.Cause(ctx), operation.ErrDraining) {
		failures = append(failures, t.recordFailed(ctx, cause, t.fresh...))
	}

	return errors.Join(append(failures, catalog.IgnoreReadOnly(err))...)
}

// recordFailed records, before the source may change, that the copies of acknowledged snapshots
// have failed.
func (m *Machine) recordFailed(ctx context.Context, cause error, failed ...*record.Snapshot) error {
	recorded, err := m.Catalog.FailSnapshots(ctx, failed...)
	for _, each := range recorded {
		m.Log.Error("the copy of an acknowledged snapshot has failed; delete it and take another",
			"snapshot", each.ID, "volume", each.SourceVolumeID, "error", cause)
	}

	return err
}

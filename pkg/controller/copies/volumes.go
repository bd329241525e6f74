package copies

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// volumeCopy is the taking of a copy that becomes a volume.
type volumeCopy struct {
	taking

	// fresh is the volume as it will be, and into its pool.
	fresh *record.Volume
	into  *pool.Pool
}

func (m *Machine) newVolumeCopy(fresh *record.Volume, into *pool.Pool) volumeCopy {
	return volumeCopy{taking: taking{Machine: m, pool: m.Catalog.Pool}, fresh: fresh, into: into}
}

func (t *volumeCopy) options() pool.CopyOptions {
	return pool.CopyOptions{SizeBytes: t.fresh.CapacityBytes, Thick: t.fresh.IsThick()}
}

func (t *volumeCopy) reserve(ctx context.Context) error {
	creating := t.fresh.Clone()
	creating.Phase = record.PhaseCreating

	return t.Catalog.RecordVolume(ctx, creating, t.into)
}

func (t *volumeCopy) commit(ctx context.Context) error {
	if _, err := t.copies[0].copy.Commit(ctx); err != nil || t.fresh.Mutable.IsZero() {
		return err
	}

	return t.into.SetMutable(t.fresh.ID, t.fresh.Mutable)
}

func (t *volumeCopy) accept(ctx context.Context) error {
	return t.Catalog.RecordVolume(context.WithoutCancel(ctx), t.fresh, t.into)
}

func (t *volumeCopy) undo(ctx context.Context, cause error) error {
	return t.Remover.UndoVolume(ctx, t.fresh, t.into, cause)
}

// restoring is the copy of a snapshot, which is locked.
type restoring struct {
	volumeCopy

	from     *pool.Pool
	snapshot *record.Snapshot
}

// Restore makes the volume of a snapshot, or leaves nothing behind.
func (m *Machine) Restore(ctx context.Context, fresh *record.Volume, into, from *pool.Pool, snapshot *record.Snapshot) error {
	return m.run(ctx, &restoring{volumeCopy: m.newVolumeCopy(fresh, into), from: from, snapshot: snapshot})
}

func (t *restoring) prepare(context.Context) error {
	pending := &pendingCopy{target: t.fresh.Object(), name: t.fresh.Name, pool: t.into}

	return t.addCopy(pending, "restore", t.from, t.snapshot.Object(), t.snapshot.SizeBytes, t.options())
}

// cloning is the copy of another volume.
type cloning struct {
	volumeCopy

	sourceID    string
	consistency volume.Consistency
}

// Clone makes the volume of another, or leaves nothing behind. It holds the operation of the source until
// the copy is taken.
func (m *Machine) Clone(
	ctx context.Context, fresh *record.Volume, into *pool.Pool, sourceID string, consistency volume.Consistency,
) error {
	return m.run(ctx, &cloning{volumeCopy: m.newVolumeCopy(fresh, into), sourceID: sourceID, consistency: consistency})
}

func (t *cloning) hold(ctx context.Context, within func(context.Context) error) error {
	call := operation.VolumeCall(t.sourceID, "clone "+t.fresh.Name, "CreateVolume", nil)

	// It ends with this operation, and must have ended before what it fills is
	// removed.
	_, err := operation.Do(context.WithoutCancel(ctx), t.Operations, call, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, within(ctx)
	})

	return err
}

func (t *cloning) prepare(context.Context) error {
	source, err := t.Catalog.FindVolume(t.sourceID)
	if err != nil {
		return err
	}

	// It may have been expanded before its turn came.
	if source.CapacityBytes > t.fresh.CapacityBytes {
		return errdefs.Errorf(errdefs.ErrAborted, "volume %s has just been expanded; call again", source.ID)
	}

	from, err := t.pool(source.Parameters.Pool, "volume "+source.ID)
	if err != nil {
		return err
	}

	if err := t.addCopyOf(source, from, t.into, t.fresh.Object(), t.fresh.Name, "clone", t.options()); err != nil {
		return err
	}

	return t.planTaking(t.consistency, "")
}

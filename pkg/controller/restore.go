package controller

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// origin is what a volume is to be made of.
type origin struct {
	name       string
	object     pool.Object
	sizeBytes  int64
	parameters volume.Parameters
	raw        bool
}

// parseSource reads volume_content_source. Errors: INVALID_ARGUMENT.
func (s *Service) parseSource(given *csi.VolumeContentSource) (record.Source, error) {
	const gated = "volume_content_source: it must not be a %s, as the capability %s is not advertised"

	if given == nil {
		return record.Source{}, nil
	}

	source := record.Source{SnapshotID: given.GetSnapshot().GetSnapshotId(), VolumeID: given.GetVolume().GetVolumeId()}

	switch given.GetType().(type) {
	case *csi.VolumeContentSource_Snapshot:
		if !s.has(capability.CreateDeleteSnapshot) {
			return record.Source{}, rpc.Invalid(gated, "snapshot", capability.CreateDeleteSnapshot)
		}

		return source, rpc.CheckID("volume_content_source: snapshot_id", source.SnapshotID)
	case *csi.VolumeContentSource_Volume:
		if !s.has(capability.CloneVolume) {
			return record.Source{}, rpc.Invalid(gated, "volume", capability.CloneVolume)
		}

		return source, rpc.CheckID("volume_content_source: volume_id", source.VolumeID)
	default:
		return record.Source{}, rpc.Invalid("volume_content_source: name a snapshot or a volume")
	}
}

// restore creates the volume of a snapshot, which cannot be deleted meanwhile.
func (s *Service) restore(ctx context.Context, wanted createRequest) (*record.Volume, error) {
	snapshot, release, err := s.LockSnapshot(wanted.source.SnapshotID)
	if err != nil {
		return nil, err
	}
	defer release()

	from, err := s.Pool(snapshot.Parameters.Pool, "snapshot "+snapshot.ID)
	if err != nil {
		return nil, err
	}

	err = s.inherit(&wanted, origin{
		name: "snapshot " + snapshot.ID, object: snapshot.Object(), sizeBytes: snapshot.SizeBytes,
		parameters: snapshot.Parameters, raw: snapshot.Raw,
	})
	if err != nil {
		return nil, err
	}

	if wanted.growsCopyOf(snapshot.SizeBytes) {
		if err := checkGrowth(from, snapshot.Object(), wanted.size); err != nil {
			return nil, err
		}
	}

	return s.copyInto(ctx, wanted, func(ctx context.Context, target pool.Object, options pool.CopyOptions) (*pendingCopy, error) {
		task := s.config.Progress.Start("restore", target.ID, snapshot.SizeBytes)
		options.Progress, options.SourceBytes = task.Set, snapshot.SizeBytes

		made, err := wanted.pool.NewCopy(from, snapshot.Object(), target, options)
		if err != nil {
			task.End(err)

			return nil, err
		}

		taken := &pendingCopy{target: target, copy: made, task: task}
		if err := made.CopyData(ctx); err != nil {
			return nil, errors.Join(err, taken.abort(err))
		}

		return taken, nil
	})
}

// clone makes the volume of another, of which it holds the operation until the
// copy is taken.
func (s *Service) clone(ctx context.Context, wanted createRequest) (*record.Volume, error) {
	source, err := s.catalog.FindVolume(wanted.source.VolumeID)
	if err != nil {
		return nil, err
	}

	from, err := s.poolOf(source)
	if err != nil {
		return nil, err
	}

	if err := s.inherit(&wanted, originOf(source)); err != nil {
		return nil, err
	}

	if wanted.growsCopyOf(source.CapacityBytes) {
		if err := s.checkVolumeGrowth(from, source, wanted.size); err != nil {
			return nil, err
		}
	}

	return s.copyInto(ctx, wanted, func(ctx context.Context, target pool.Object, options pool.CopyOptions) (*pendingCopy, error) {
		call := rpc.VolumeCall(source.ID, "clone "+wanted.name, "CreateVolume", nil)

		// It ends with this operation, and must have ended before what it fills is
		// removed.
		return operation.Do(context.WithoutCancel(ctx), s.ops, call, func(ctx context.Context) (*pendingCopy, error) {
			return s.takeClone(ctx, &wanted, target, options)
		})
	})
}

func originOf(source *record.Volume) origin {
	return origin{
		name: "volume " + source.ID, object: source.Object(), sizeBytes: source.CapacityBytes,
		parameters: source.Parameters, raw: source.IsRaw(),
	}
}

func (s *Service) takeClone(
	ctx context.Context, wanted *createRequest, target pool.Object, options pool.CopyOptions,
) (*pendingCopy, error) {
	source, err := s.catalog.FindVolume(wanted.source.VolumeID)
	if err != nil {
		return nil, err
	}

	// It may have been expanded before its turn came.
	if source.CapacityBytes > wanted.size {
		return nil, rpc.Errorf(codes.Aborted, "volume %s has just been expanded; call again", source.ID)
	}

	taken, err := s.prepareCopy(source, wanted.pool, target, "clone", options)
	if err != nil {
		return nil, err
	}

	plan, err := s.planTaking(wanted.consistency, "", []*pendingCopy{taken})
	if err != nil {
		return nil, errors.Join(err, taken.abort(err))
	}

	if err := s.takeCopies(ctx, plan, []*pendingCopy{taken}); err != nil {
		return nil, errors.Join(err, taken.abort(err))
	}

	return taken, nil
}

// inherit lets the volume have what the source has and the request leaves open,
// and refuses what can't be made of the source. Errors: INVALID_ARGUMENT,
// OUT_OF_RANGE.
func (s *Service) inherit(wanted *createRequest, from origin) error {
	differs := func(key string, has, asked any) error {
		return rpc.Invalid("volume_content_source: %s has %s %v, and a volume with %v can't be made of it", from.name, key, has, asked)
	}

	given := &wanted.parameters

	switch {
	case from.parameters.Backing != given.Backing:
		return differs(volume.KeyBacking, from.parameters.Backing, given.Backing)
	case given.Backing == volume.BackingDirectory:
	case from.parameters.BlockSize != given.BlockSize:
		return differs(volume.KeyBlockSize, from.parameters.BlockSize, given.BlockSize)
	case !wanted.fsNamed:
		given.FSType = from.parameters.FSType
	case !from.raw && from.parameters.FSType != given.FSType:
		return differs("filesystem", from.parameters.FSType, given.FSType)
	}

	if err := wanted.checkMkfs(); err != nil {
		return err
	}

	required, limit := wanted.asked.GetRequiredBytes(), wanted.asked.GetLimitBytes()
	// Who names no limit means the size that is required, not any above it.
	asked, named := limit, "limit_bytes"
	if limit == 0 {
		asked, named = required, "required_bytes"
	}

	if asked > 0 && asked < from.sizeBytes {
		return rpc.Errorf(codes.OutOfRange, "capacity_range: %s has %d bytes, more than %s %d; a copy can't be smaller",
			from.name, from.sizeBytes, named, asked)
	}

	size, err := s.sizeFor(&csi.CapacityRange{RequiredBytes: max(required, from.sizeBytes), LimitBytes: limit},
		minimumBytes(*given, wanted.capabilities))
	wanted.size = size

	return err
}

// growsCopyOf reports whether the driver is to grow the filesystem of a copy of so many bytes. That of a
// copy for raw block access it leaves alone.
func (w *createRequest) growsCopyOf(sourceBytes int64) bool {
	return w.size > sourceBytes && slices.ContainsFunc(w.capabilities, func(c volume.Capability) bool { return !c.Block })
}

// checkVolumeGrowth is checkGrowth of a volume's image. It passes over one that a guest may have: the
// host does not read that, and the next staging refuses what the guest has not grown.
func (s *Service) checkVolumeGrowth(p *pool.Pool, v *record.Volume, bytes int64) error {
	if v.Parameters.DirectAssign && s.checkNotAttachedOrUsed(v) != nil {
		return nil //nolint:nilerr // a guest may have it
	}

	return checkGrowth(p, v.Object(), bytes)
}

// checkGrowth returns OUT_OF_RANGE if the filesystem of an image cannot become as large. An image that
// is missing is reported by what grows or copies it.
func checkGrowth(p *pool.Pool, object pool.Object, bytes int64) error {
	if object.Backing == volume.BackingDirectory {
		return nil
	}

	if err := p.CheckGrowth(object, bytes); !errors.Is(err, pool.ErrMissing) {
		return err
	}

	return nil
}

// copyInto makes the volume of the copy that take has cut, or leaves nothing
// behind.
func (s *Service) copyInto(ctx context.Context, wanted createRequest,
	take func(ctx context.Context, target pool.Object, options pool.CopyOptions) (*pendingCopy, error),
) (*record.Volume, error) {
	fresh, err := s.newVolume(&wanted)
	if err != nil {
		return nil, err
	}

	// Without this record, a crash after Commit would leave an object without a record.
	fresh.Phase = record.PhaseCreating
	if err := s.catalog.RecordVolume(ctx, fresh, wanted.pool); err != nil {
		return nil, err
	}

	fresh = fresh.Clone()
	fresh.Phase = record.PhaseReady

	taken, err := take(ctx, fresh.Object(), pool.CopyOptions{SizeBytes: fresh.CapacityBytes, Thick: fresh.IsThick()})
	if err != nil {
		return nil, s.undo(ctx, fresh, wanted.pool, err)
	}

	_, err = taken.copy.Commit(ctx)
	if err == nil && !fresh.Mutable.IsZero() {
		err = wanted.pool.SetMutable(fresh.ID, fresh.Mutable)
	}

	if err == nil {
		err = s.catalog.RecordVolume(context.WithoutCancel(ctx), fresh, wanted.pool)
	}

	if err != nil {
		return nil, s.undo(ctx, fresh, wanted.pool, errors.Join(err, taken.abort(err)))
	}

	s.release(taken)

	return fresh, nil
}

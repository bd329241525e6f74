package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
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

// restore creates the volume of a snapshot, which cannot be deleted meanwhile.
func (s *Service) restore(ctx context.Context, wanted createRequest) (*record.Volume, error) {
	snapshot, release, err := s.copies.LockSnapshot(wanted.source.SnapshotID)
	if err != nil {
		return nil, err
	}
	defer release()

	from, err := s.catalog.Pool(snapshot.Parameters.Pool, "snapshot "+snapshot.ID)
	if err != nil {
		return nil, err
	}

	err = wanted.inherit(origin{
		name: "snapshot " + snapshot.ID, object: snapshot.Object(), sizeBytes: snapshot.SizeBytes,
		parameters: snapshot.Parameters, raw: snapshot.Raw,
	}, s.sizeFor)
	if err != nil {
		return nil, err
	}

	if wanted.growsCopyOf(snapshot.SizeBytes) {
		if err := objects.CheckGrowth(from, snapshot.Object(), wanted.size); err != nil {
			return nil, err
		}
	}

	fresh := s.newVolume(&wanted)

	return fresh, s.copies.Restore(ctx, fresh, wanted.pool, from, snapshot)
}

// clone makes the volume of another, of which it holds the operation until the
// copy is taken.
func (s *Service) clone(ctx context.Context, wanted createRequest) (*record.Volume, error) {
	source, err := s.catalog.FindVolume(wanted.source.VolumeID)
	if err != nil {
		return nil, err
	}

	from, err := s.catalog.PoolOf(source)
	if err != nil {
		return nil, err
	}

	if err := wanted.inherit(originOf(source), s.sizeFor); err != nil {
		return nil, err
	}

	if wanted.growsCopyOf(source.CapacityBytes) {
		if err := s.use.CheckGrowth(from, source, wanted.size); err != nil {
			return nil, err
		}
	}

	fresh := s.newVolume(&wanted)

	return fresh, s.copies.Clone(ctx, fresh, wanted.pool, source.ID, wanted.consistency)
}

func originOf(source *record.Volume) origin {
	return origin{
		name: "volume " + source.ID, object: source.Object(), sizeBytes: source.CapacityBytes,
		parameters: source.Parameters, raw: source.IsRaw(),
	}
}

// inherit lets the volume have what the source has and the request leaves open,
// and refuses what can't be made of the source. Errors: INVALID_ARGUMENT,
// OUT_OF_RANGE.
func (w *createRequest) inherit(from origin, sizeFor func(*csi.CapacityRange, int64) (int64, error)) error {
	differs := func(key string, has, asked any) error {
		return rpc.Invalid("volume_content_source: %s has %s %v, and a volume with %v can't be made of it", from.name, key, has, asked)
	}

	given := &w.parameters

	switch {
	case from.parameters.Backing != given.Backing:
		return differs(volume.KeyBacking, from.parameters.Backing, given.Backing)
	case given.Backing == volume.BackingDirectory:
	case from.parameters.BlockSize != given.BlockSize:
		return differs(volume.KeyBlockSize, from.parameters.BlockSize, given.BlockSize)
	case !w.fsNamed:
		given.FSType = from.parameters.FSType
	case !from.raw && from.parameters.FSType != given.FSType:
		return differs("filesystem", from.parameters.FSType, given.FSType)
	}

	if err := w.checkMkfs(); err != nil {
		return err
	}

	required, limit := w.asked.GetRequiredBytes(), w.asked.GetLimitBytes()
	// Who names no limit means the size that is required, not any above it.
	asked, named := limit, "limit_bytes"
	if limit == 0 {
		asked, named = required, "required_bytes"
	}

	if asked > 0 && asked < from.sizeBytes {
		return rpc.Errorf(codes.OutOfRange, "capacity_range: %s has %d bytes, more than %s %d; a copy can't be smaller",
			from.name, from.sizeBytes, named, asked)
	}

	size, err := sizeFor(&csi.CapacityRange{RequiredBytes: max(required, from.sizeBytes), LimitBytes: limit},
		minimumBytes(*given, w.capabilities))
	w.size = size

	return err
}

// growsCopyOf reports whether the driver is to grow the filesystem of a copy of so many bytes. That of a
// copy for raw block access it leaves alone.
func (w *createRequest) growsCopyOf(sourceBytes int64) bool {
	return w.size > sourceBytes && slices.ContainsFunc(w.capabilities, func(c volume.Capability) bool { return !c.Block })
}

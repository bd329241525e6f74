package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// origin is what a volume is to be made of.
type origin struct {
	name       string
	sizeBytes  int64
	parameters volume.Parameters
	raw        bool
	// checkGrowth refuses a size that its filesystem can't have.
	checkGrowth func(bytes int64) error
}

// restore creates the volume of a snapshot, which cannot be deleted meanwhile.
func (s *Service) restore(ctx context.Context, wanted *createRequest, parameters volume.Parameters) (*record.Volume, error) {
	snapshot, release, err := s.copies.LockSnapshot(wanted.source.SnapshotID)
	if err != nil {
		return nil, err
	}
	defer release()

	from, err := s.catalog.Pool(snapshot.Parameters.Pool, "snapshot "+snapshot.ID)
	if err != nil {
		return nil, err
	}

	parameters, size, err := s.inherit(wanted, parameters, origin{
		name: "snapshot " + snapshot.ID, sizeBytes: snapshot.SizeBytes, parameters: snapshot.Parameters, raw: snapshot.Raw,
		checkGrowth: func(bytes int64) error { return objects.CheckGrowth(from, snapshot.Object(), bytes) },
	})
	if err != nil {
		return nil, err
	}

	fresh := s.newVolume(wanted, parameters, size)

	return fresh, s.copies.Restore(ctx, fresh, wanted.pool, from, snapshot)
}

// clone makes the volume of another, of which it holds the operation until the
// copy is taken.
func (s *Service) clone(ctx context.Context, wanted *createRequest, parameters volume.Parameters) (*record.Volume, error) {
	source, err := s.catalog.FindVolume(wanted.source.VolumeID)
	if err != nil {
		return nil, err
	}

	from, err := s.catalog.PoolOf(source)
	if err != nil {
		return nil, err
	}

	parameters, size, err := s.inherit(wanted, parameters, origin{
		name: "volume " + source.ID, sizeBytes: source.CapacityBytes, parameters: source.Parameters, raw: source.IsRaw(),
		checkGrowth: func(bytes int64) error { return s.use.CheckGrowth(from, source, bytes) },
	})
	if err != nil {
		return nil, err
	}

	fresh := s.newVolume(wanted, parameters, size)

	return fresh, s.copies.Clone(ctx, fresh, wanted.pool, source.ID, wanted.consistency)
}

// inherit returns the parameters, given by the request and the claim, and the size of the copy: it has what the
// source has and the request leaves open. It refuses what can't be made of the source. Errors: INVALID_ARGUMENT,
// OUT_OF_RANGE.
func (p *parser) inherit(w *createRequest, given volume.Parameters, from origin) (inherited volume.Parameters, size int64, err error) {
	differs := func(key string, has, asked any) (volume.Parameters, int64, error) {
		return given, 0, rpc.Invalid("volume_content_source: %s has %s %v, and a volume with %v can't be made of it", from.name, key, has, asked)
	}

	switch {
	case from.parameters.Backing != given.Backing:
		return differs(volume.KeyBacking, from.parameters.Backing, given.Backing)
	case !given.Backing.HasFilesystem():
	case from.parameters.BlockSize != given.BlockSize:
		return differs(volume.KeyBlockSize, from.parameters.BlockSize, given.BlockSize)
	case !w.fsNamed:
		given.FSType = from.parameters.FSType
	case !from.raw && from.parameters.FSType != given.FSType:
		return differs("filesystem", from.parameters.FSType, given.FSType)
	}

	if err := checkMkfs(given); err != nil {
		return given, 0, err
	}

	required, limit := w.asked.GetRequiredBytes(), w.asked.GetLimitBytes()
	// Who names no limit means the size that is required, not any above it.
	asked, named := limit, "limit_bytes"
	if limit == 0 {
		asked, named = required, "required_bytes"
	}

	if asked > 0 && asked < from.sizeBytes {
		return given, 0, rpc.Errorf(codes.OutOfRange, "capacity_range: %s has %d bytes, more than %s %d; a copy can't be smaller",
			from.name, from.sizeBytes, named, asked)
	}

	size, err = p.sizeFor(&csi.CapacityRange{RequiredBytes: max(required, from.sizeBytes), LimitBytes: limit},
		minimumBytes(given, w.capabilities))
	if err == nil && w.growsCopy(from.sizeBytes, size) {
		err = from.checkGrowth(size)
	}

	return given, size, err
}

// growsCopy reports whether the driver is to grow the filesystem of a copy. That of a copy for raw block access
// it leaves alone.
func (w *createRequest) growsCopy(sourceBytes, bytes int64) bool {
	return bytes > sourceBytes && slices.ContainsFunc(w.capabilities, func(c volume.Capability) bool { return !c.Block })
}

package node

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// NodeGetVolumeStats returns the bytes and inodes of the volume's filesystem, or the size of
// its device (CSI v1.13, NodeGetVolumeStats). For a directory it returns what its files take,
// and what is available in the pool. For an unhealthy volume it returns the last known usage
// with the condition.
func (s *Service) NodeGetVolumeStats(
	ctx context.Context, request *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, rpc.Status(err)
	}

	path := plain(request.GetVolumePath())
	if path == "" {
		return nil, rpc.Invalid("volume_path is missing")
	}

	use, err := s.usedAt(request.GetVolumeId(), path)
	if err != nil {
		return nil, rpc.Status(err)
	}

	id, answer := request.GetVolumeId(), &csi.NodeGetVolumeStatsResponse{}

	// Read before the usage: the condition must not be newer than it.
	record, _ := s.prober.Monitor().Get(id)
	if use.IsDirect() {
		answer.Usage, record, err = s.guestUsage(ctx, use, path, record)
	} else if !isSilent(record) {
		var now measured

		now, err = s.measure(ctx, id, use, path)
		answer.Usage = now.answer

		// No event reports that a filesystem became full, or that files were deleted.
		if err == nil && now.filesystem != nil && probe.Contradicts(*now.filesystem, record) {
			if fresh, failure := s.prober.ProbeNow(ctx, id); failure == nil {
				record = fresh
			}
		}
	}

	if err != nil {
		record, err = s.explain(ctx, id, path, err)
	}

	if err != nil {
		return nil, rpc.Status(err)
	}

	if len(answer.GetUsage()) == 0 {
		answer.Usage = s.lastUsage(id)
	}

	if s.config.Capabilities.Has(capability.VolumeCondition) {
		health.PutCondition(answer, record)
	}

	return answer, nil
}

// isSilent reports whether the volume's filesystem is known not to respond in time.
func isSilent(record *health.Record) bool {
	return record.Has(health.ProbeTimedOut) || record.Has(health.DiskFailure)
}

// measured is the usage of a volume as the answer has it, and the one of the filesystem that
// it is made of, nil for raw block.
type measured struct {
	answer     []*csi.VolumeUsage
	filesystem *mount.Usage
}

// measure reads the usage of the volume's filesystem, bounded by ResponseTimeout. The walk of
// a directory's files is not bounded; the number of walks in each pool is.
func (s *Service) measure(ctx context.Context, id string, use *staged.Volume, path string) (measured, error) {
	enter := func() (func(), error) { return s.walks.Acquire(ctx, use.Parameters.Pool) }

	if use.IsImage() {
		shortened, cancel := context.WithTimeoutCause(ctx, probe.ResponseTimeout, probe.ErrNoResponse)
		defer cancel()

		ctx, enter = shortened, func() (func(), error) { return s.prober.Observations().BeginQuery(id) }
	}

	leave, err := enter()
	if err != nil {
		return measured{}, err
	}

	return operation.Await(ctx, func() (measured, error) {
		defer leave()

		return s.usage(ctx, id, use, path)
	})
}

// explain returns the condition of a volume whose usage could not be read, or the failure if
// the volume is healthy.
func (s *Service) explain(ctx context.Context, id, path string, failure error) (*health.Record, error) {
	if errors.Is(failure, probe.ErrNoResponse) {
		s.prober.Monitor().Suspect(id)

		record, ok := s.prober.Monitor().Get(id)
		if !ok {
			return probe.NewRecord(id, probe.TimedOut()), nil
		}

		return probe.NewRecord(id, append(slices.Clone(record.Entries), probe.TimedOut())...), nil
	}

	// Without a condition in the answer, an old usage would pass for the current one.
	if ctx.Err() != nil || !s.config.Capabilities.Has(capability.VolumeCondition) {
		return nil, failure
	}

	record, err := s.prober.ProbeNow(ctx, id)
	if err == nil {
		_, err = s.usedAt(id, path)
	}

	if err != nil || record.Healthy() {
		return nil, failure
	}

	return record, nil
}

// lastUsage returns the last known usage, at least the size of the device: COs ignore an
// answer without any number.
func (s *Service) lastUsage(id string) []*csi.VolumeUsage {
	last := s.prober.Observations().LastUsage(id)
	if record, ok := s.prober.Monitor().Get(id); ok && record.Usage != nil {
		last = *record.Usage
	}

	return volumeUsages(mount.Usage{Bytes: mount.Amount(last.Bytes), Inodes: mount.Amount(last.Inodes)})
}

// usedAt returns the volume's record if it is staged or published at the path. Error:
// NOT_FOUND.
func (s *Service) usedAt(id, path string) (*staged.Volume, error) {
	if found, ok := s.ephemeral.At(id, path); ok {
		return found.StagedVolume(), nil
	}

	use, known := s.stagedVolumes.Get(id)
	if !known {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not in use on this node", id)
	}

	if _, published := use.PublicationAt(path); !published && path != use.StagingPath {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not at %s", id, path)
	}

	return use, nil
}

// usage reads the usage of the volume at the path.
func (s *Service) usage(ctx context.Context, id string, use *staged.Volume, path string) (measured, error) {
	var at *mount.Target

	// Nothing is mounted at the staging path of a raw device.
	if !use.ExposesRawDevice() || path != use.StagingPath {
		var err error
		if at, err = s.mountedTarget(id, use, path); err != nil {
			return measured{}, err
		}
		defer at.Close()
	}

	stats, err := s.access.For(use).Stats(ctx, use, at)
	if err != nil {
		return measured{}, err
	}

	if stats.Filesystem != nil {
		s.prober.Observations().SetUsage(id, *probe.UsageFrom(stats.Usage))
	}

	return measured{answer: volumeUsages(stats.Usage), filesystem: stats.Filesystem}, nil
}

// mountedTarget returns the directory at which the volume is mounted. Error: NOT_FOUND, also
// where another mount covers it, whose usage is not the volume's.
func (s *Service) mountedTarget(id string, use *staged.Volume, path string) (*mount.Target, error) {
	target, err := s.dirs.Target(path)
	if observe.IsNoMountTarget(err) {
		return nil, rpc.Errorf(codes.NotFound, "volume %s: %w", use.VolumeID, err)
	}

	if err != nil {
		return nil, observe.Unknown(err, use, "mounted at "+path)
	}

	point, mounted, err := target.Mounted()
	if err == nil && mounted {
		if s.prober.Observations().IsVolumesMount(id, path, point.ID) {
			return target, nil
		}

		mounted, err = s.access.Observer().IsMountOf(use, point)
	}

	if err == nil && mounted {
		return target, nil
	}

	target.Close()

	if err != nil {
		return nil, observe.Unknown(err, use, "mounted at "+path)
	}

	return nil, rpc.Errorf(codes.NotFound, "volume %s is not mounted at %s any more", use.VolumeID, path)
}

func volumeUsages(usage mount.Usage) []*csi.VolumeUsage {
	amounts := []*csi.VolumeUsage{volumeUsage(csi.VolumeUsage_BYTES, usage.Bytes)}
	if usage.Inodes.Total > 0 {
		amounts = append(amounts, volumeUsage(csi.VolumeUsage_INODES, usage.Inodes))
	}

	return amounts
}

func volumeUsage(unit csi.VolumeUsage_Unit, amount mount.Amount) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: amount.Total, Used: amount.Used, Available: amount.Available}
}

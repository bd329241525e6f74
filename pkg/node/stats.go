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
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// NodeGetVolumeStats answers with the bytes and inodes of the volume's
// filesystem, or with the size of its device (CSI v1.13, NodeGetVolumeStats). For a
// directory it is what its files take, and what is left in the pool. A volume that
// is sick is answered for by what was last known of it, and by its condition.
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

	// Asked for first: it is not to be better than the usage.
	record, _ := s.monitor.Get(id)
	if use.IsDirect() {
		answer.Usage, record, err = s.guestUsage(ctx, use, path, record)
	} else if !silent(record) {
		var now measured

		now, err = s.measure(ctx, id, use, path)
		answer.Usage = now.answer

		// What was freed or used up since the last probe: no event reports it.
		if err == nil && now.filesystem != nil && contradicts(*now.filesystem, record) {
			if fresh, unseen := s.afresh(ctx, id); unseen == nil {
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

// silent says whether it is known that the volume's filesystem would not answer,
// or not in time.
func silent(record *health.Record) bool {
	return record.Has(health.ProbeTimedOut) || record.Has(health.DiskFailure)
}

// measured is the answer about a volume's usage, and the filesystem's own that it is
// made of, nil for raw block.
type measured struct {
	answer     []*csi.VolumeUsage
	filesystem *mount.Usage
}

var errSilent = errors.New("its filesystem does not answer")

// measure asks the volume's filesystem, for a while. To count a directory's files
// takes as long as it takes; only few are counted at a time in each pool.
func (s *Service) measure(ctx context.Context, id string, use *staged.Volume, path string) (measured, error) {
	enter := func() (func(), error) { return s.walks.enter(ctx, use.Parameters.Pool) }

	if use.IsImage() {
		shortened, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
		defer cancel()

		ctx, enter = shortened, func() (func(), error) { return s.evidence.ask(id) }
	}

	leave, err := enter()
	if err != nil {
		return measured{}, err
	}

	return bounded(ctx, func() (measured, error) {
		defer leave()

		return s.usage(ctx, id, use, path)
	})
}

// explain returns what is the matter with a volume that could not be measured;
// the failure, where nothing is.
func (s *Service) explain(ctx context.Context, id, path string, failure error) (*health.Record, error) {
	if errors.Is(failure, errSilent) {
		s.monitor.Suspect(id)

		record, ok := s.monitor.Get(id)
		if !ok {
			return recordOf(id, unseen()), nil
		}

		return recordOf(id, append(slices.Clone(record.Entries), unseen())...), nil
	}

	// Without a condition, an old answer would pass for a good one.
	if ctx.Err() != nil || !s.config.Capabilities.Has(capability.VolumeCondition) {
		return nil, failure
	}

	record, err := s.afresh(ctx, id)
	if err == nil {
		_, err = s.usedAt(id, path)
	}

	if err != nil || record.Healthy() {
		return nil, failure
	}

	return record, nil
}

// lastUsage is what was last known, at least how large the device is: without any
// number COs take an answer for none.
func (s *Service) lastUsage(id string) []*csi.VolumeUsage {
	known, last := s.evidence.of(id), health.Usage{}
	record, ok := s.monitor.Get(id)

	switch {
	case ok && record.Usage != nil:
		last = *record.Usage
	case known.usage != nil:
		last = *known.usage
	case known.attached != nil && known.attached.deviceBytes > 0:
		last.Bytes.Total = known.attached.deviceBytes
	default:
		last.Bytes.Total = known.imageBytes
	}

	return volumeUsages(mount.Usage{Bytes: mount.Amount(last.Bytes), Inodes: mount.Amount(last.Inodes)})
}

// usedAt returns the volume's record if it was staged or published at the
// path, else NOT_FOUND.
func (s *Service) usedAt(id, path string) (*staged.Volume, error) {
	if ephemeral, ok := s.inline.at(id, path); ok {
		return ephemeral.use(), nil
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

func (s *Service) usage(ctx context.Context, id string, use *staged.Volume, path string) (measured, error) {
	if use.ExposesRawDevice() {
		device, err := s.deviceUsage(id, use, path)

		return measured{answer: device}, err
	}

	place, err := s.mountedPlace(id, use, path)
	if err != nil {
		return measured{}, err
	}
	defer place.Close()

	filesystem, err := place.Usage()
	if err != nil {
		return measured{}, err
	}

	usage := filesystem

	if !use.IsImage() {
		if usage, err = s.directoryUsage(ctx, use, usage); err != nil {
			return measured{}, err
		}
	}

	s.evidence.measured(id, *usageFrom(usage))

	return measured{answer: volumeUsages(usage), filesystem: &filesystem}, nil
}

// mountedPlace returns where the volume is mounted, or NOT_FOUND: whatever else is
// mounted there by now, its usage is not the volume's.
func (s *Service) mountedPlace(id string, use *staged.Volume, path string) (*mount.Target, error) {
	place, err := s.places.Target(path)
	if isNowhere(err) {
		return nil, rpc.Errorf(codes.NotFound, "volume %s: %w", use.VolumeID, err)
	}

	if err != nil {
		return nil, unknown(err, use, "mounted at "+path)
	}

	point, mounted, err := place.Mounted()
	if err == nil && mounted {
		if s.evidence.saw(id, path, point.ID) {
			return place, nil
		}

		mounted, err = s.ours(use, point)
	}

	if err == nil && mounted {
		return place, nil
	}

	place.Close()

	if err != nil {
		return nil, unknown(err, use, "mounted at "+path)
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

// directoryUsage replaces what all of the pool's filesystem holds by what the
// volume's directory does: it may have what it has and what is left.
func (s *Service) directoryUsage(ctx context.Context, use *staged.Volume, of mount.Usage) (mount.Usage, error) {
	place, err := s.poolOf(use)
	if err != nil {
		return mount.Usage{}, err
	}

	own, err := place.DirectoryUsage(ctx, use.VolumeID)
	if err != nil {
		return mount.Usage{}, err
	}

	of.Bytes.Used, of.Bytes.Total = own.Bytes, own.Bytes+of.Bytes.Available
	if of.Inodes.Total > 0 {
		of.Inodes.Used, of.Inodes.Total = own.Inodes, own.Inodes+of.Inodes.Available
	}

	return of, nil
}

func volumeUsage(unit csi.VolumeUsage_Unit, amount mount.Amount) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: amount.Total, Used: amount.Used, Available: amount.Available}
}

func (s *Service) deviceUsage(id string, use *staged.Volume, path string) ([]*csi.VolumeUsage, error) {
	if path != use.StagingPath {
		place, err := s.mountedPlace(id, use, path)
		if err != nil {
			return nil, err
		}

		place.Close()
	}

	got, err := s.devices.sought(use.VolumeID)
	if err != nil {
		return nil, err
	}

	vitals, attached, err := s.loops.BasicStatus(got.staged)
	if err != nil {
		return nil, err
	}

	if !attached || vitals.Sequence != got.stagedSequence {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not attached any more", use.VolumeID)
	}

	return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: vitals.SizeBytes}}, nil
}

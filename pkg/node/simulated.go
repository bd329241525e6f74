package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Simulated is a Node service that mounts nothing (--simulate-node). It refuses what Service refuses
// because of a request, or of the requests before it, and records what is staged and published. It
// opens none of the paths of a request and needs no privilege, so that the tests of a CO run
// anywhere. It is also the LocalNode of the controller in its process, and safe for concurrent use.
type Simulated struct {
	answers

	volumes *staged.Records[*staged.Volume]
}

// NewSimulated returns a service that keeps its records in the store, which must not be open yet.
func NewSimulated(config Common) *Simulated {
	return &Simulated{
		answers: answers{config: config},
		volumes: staged.NewVolumes(config.Store),
	}
}

// Recover reads the records.
func (s *Simulated) Recover(context.Context) error {
	s.volumes.Load()

	return nil
}

// NodeStageVolume records the staging (CSI v1.13, NodeStageVolume).
func (s *Simulated) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	wanted, err := s.config.parseStaging(request, rpc.CheckAbsolute)
	if err != nil {
		return nil, err
	}

	call := operation.VolumeCall(wanted.VolumeID, "stage", "NodeStageVolume", request)
	doing := fmt.Sprintf("stage volume %s at %s", wanted.VolumeID, wanted.StagingPath)

	return run(ctx, &s.config, call, doing, &csi.NodeStageVolumeResponse{}, func(ctx context.Context) error { return s.stage(ctx, wanted) })
}

func (s *Simulated) stage(ctx context.Context, wanted *staged.Volume) error {
	if current, known := s.volumes.Get(wanted.VolumeID); known {
		return checkSameStaging(current, wanted)
	}

	if err := checkCapability(&s.config, wanted, wanted.Capability); err != nil {
		return rpc.Errorf(codes.FailedPrecondition, "volume_capability: %w", err)
	}

	if _, err := s.size(wanted); err != nil {
		return err
	}

	return s.volumes.Put(ctx, wanted)
}

// size returns the size of the volume's image, 0 for a directory. Error: NOT_FOUND.
func (s *Simulated) size(v *staged.Volume) (int64, error) {
	stored, err := staged.Pools{Volumes: s.config.Pools}.Of(v)
	if err != nil {
		return 0, err
	}

	return stored.Size(v.Object())
}

// NodeUnstageVolume forgets the staging (CSI v1.13, NodeUnstageVolume).
func (s *Simulated) NodeUnstageVolume(ctx context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := request.GetVolumeId(), plain(request.GetStagingTargetPath())
	if err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckPresent("staging_target_path", path)); err != nil {
		return nil, err
	}

	call := operation.VolumeCall(id, "stage", "NodeUnstageVolume", request)
	doing := fmt.Sprintf("unstage volume %s from %s", id, path)

	return run(ctx, &s.config, call, doing, &csi.NodeUnstageVolumeResponse{}, func(context.Context) error {
		v, known := s.volumes.Get(id)
		if !known || v.StagingPath != path {
			return nil
		}

		if err := checkUnpublished(v); err != nil {
			return err
		}

		return s.volumes.DeleteLazily(id)
	})
}

// NodePublishVolume records the publication (CSI v1.13, NodePublishVolume). Without
// STAGE_UNSTAGE_VOLUME, and of an inline ephemeral volume, it records the staging as well.
func (s *Simulated) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	wanted, err := s.config.parsePublish(request, rpc.CheckAbsolute)
	if err != nil {
		return nil, err
	}

	call := operation.VolumeCall(wanted.volumeID, wanted.TargetPath, "NodePublishVolume", request)
	doing := fmt.Sprintf("publish volume %s at %s", wanted.volumeID, wanted.TargetPath)

	return run(ctx, &s.config, call, doing, &csi.NodePublishVolumeResponse{}, func(ctx context.Context) error {
		v, err := s.stagingOf(wanted)
		if err != nil {
			return err
		}

		return s.publish(ctx, v, wanted.Publication)
	})
}

// stagingOf returns the record of the staged volume, or a new one where the CO does not stage it.
func (s *Simulated) stagingOf(wanted publicationRequest) (*staged.Volume, error) {
	current, known := s.volumes.Get(wanted.volumeID)

	switch {
	case known && wanted.unstaged == nil && current.StagingPath != wanted.stagingPath:
		return nil, rpc.Errorf(codes.FailedPrecondition, "it is staged at %s, not at %s", current.StagingPath, wanted.stagingPath)
	case known:
		return current, nil
	case wanted.unstaged == nil:
		return nil, errNotStaged
	case wanted.inline:
		return wanted.unstaged, nil
	}

	_, err := s.size(wanted.unstaged)

	return wanted.unstaged, err
}

func newEphemeral(request *csi.NodePublishVolumeRequest) (*staged.Volume, error) {
	parameters, _, err := volume.ParseEphemeral(request.GetVolumeContext())
	if err != nil {
		return nil, rpc.Invalid("volume_context: %w", err)
	}

	capability, err := volume.ParseCapability(request.GetVolumeCapability())

	return &staged.Volume{VolumeID: request.GetVolumeId(), Capability: capability, Parameters: parameters, Slot: -1}, err
}

func (s *Simulated) publish(ctx context.Context, v *staged.Volume, wanted staged.Publication) error {
	if existing, ok := v.PublicationAt(wanted.TargetPath); ok {
		return checkSamePublication(v, existing, wanted)
	}

	if err := checkPublishable(&s.config, v, wanted); err != nil {
		return err
	}

	published := v.Clone()
	published.Publications = append(published.Publications, wanted)

	return s.volumes.Put(ctx, published)
}

// NodeUnpublishVolume forgets the publication (CSI v1.13, NodeUnpublishVolume).
func (s *Simulated) NodeUnpublishVolume(
	ctx context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	id, target := request.GetVolumeId(), plain(request.GetTargetPath())
	if err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckPresent("target_path", target)); err != nil {
		return nil, err
	}

	call := operation.VolumeCall(id, target, "NodeUnpublishVolume", request)
	doing := fmt.Sprintf("unpublish volume %s from %s", id, target)

	return run(ctx, &s.config, call, doing, &csi.NodeUnpublishVolumeResponse{}, func(context.Context) error {
		v, known := s.volumes.Get(id)
		if !known {
			return nil
		}

		left := v.WithoutPublication(target)
		if left.StagingPath == "" && len(left.Publications) == 0 {
			return s.volumes.DeleteLazily(id)
		}

		return s.volumes.PutLazily(left)
	})
}

// NodeGetVolumeStats answers with the volume's size, of which nothing is used (CSI v1.13,
// NodeGetVolumeStats).
func (s *Simulated) NodeGetVolumeStats(
	ctx context.Context, request *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	return s.config.volumeStats(ctx, request, s.usage)
}

// At returns the volume that is staged or published at the path. Error: NOT_FOUND.
func (s *Simulated) At(id, path string) (*staged.Volume, error) {
	return staged.At(s.volumes, id, path)
}

func (s *Simulated) usage(_ context.Context, id, path string) ([]*csi.VolumeUsage, *health.Record, error) {
	v, err := s.At(id, path)
	if err != nil {
		return nil, nil, err
	}

	size, err := s.size(v)

	return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size, Available: size}}, nil, err
}

// NodeExpandVolume answers with the size that the controller has given the volume (CSI v1.13,
// NodeExpandVolume).
func (s *Simulated) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	wanted, err := parseExpansion(request)
	if err != nil {
		return nil, err
	}

	v, err := wanted.find(&s.config, s)
	if err != nil {
		return nil, err
	}

	size, err := s.size(v)
	if limit := wanted.asked.GetLimitBytes(); err == nil && limit > 0 && size > limit {
		err = rpc.Errorf(codes.OutOfRange, "expand volume %s: it has %d bytes already, more than limit_bytes %d", v.VolumeID, size, limit)
	}

	if err != nil {
		return nil, err
	}

	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeHealth answers that a volume in use is healthy (CSI v1.13, NodeGetVolumeHealth).
func (s *Simulated) NodeGetVolumeHealth(
	ctx context.Context, request *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	return volumeHealth(ctx, request, func(_ context.Context, id string) (*health.Record, error) {
		if _, known := s.volumes.Get(id); !known {
			return nil, staged.NotInUseError(id)
		}

		return nil, nil // it is healthy
	})
}

// Serves reports whether nodeID is the ID of this node.
func (s *Simulated) Serves(nodeID string) bool { return nodeID == s.config.NodeID }

// InUse returns where the volume is published, or else staged.
func (s *Simulated) InUse(volumeID string) (path string, used bool, err error) {
	v, known := s.volumes.Get(volumeID)

	switch {
	case !known:
		return "", false, nil
	case len(v.Publications) > 0:
		return v.Publications[0].TargetPath, true, nil
	default:
		return v.StagingPath, true, nil
	}
}

// CheckSupported returns nil.
func (s *Simulated) CheckSupported(volume.Mutable) error { return nil }

// ApplyMutable does nothing.
func (s *Simulated) ApplyMutable(context.Context, string) error { return nil }

// DescribeHolders names none: nothing is attached.
func (s *Simulated) DescribeHolders(string) string { return "another program has it" }

// Truncated does nothing.
func (s *Simulated) Truncated(string) {}

// Deleted does nothing.
func (s *Simulated) Deleted(string) {}

// CanFreeze returns true: nothing writes to a volume.
func (s *Simulated) CanFreeze(string) bool { return true }

// WithFrozen calls within.
func (s *Simulated) WithFrozen(ctx context.Context, _ []string, within func(context.Context) error) error {
	return within(ctx)
}

// Condition returns nil: nothing is observed.
func (s *Simulated) Condition(string) *health.Record { return nil }

// Unhealthy returns none.
func (s *Simulated) Unhealthy(string) []*health.Record { return nil }

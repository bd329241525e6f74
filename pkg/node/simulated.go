package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Simulated is a Node service that mounts nothing (--simulate-node). It refuses what Service refuses
// because of a request, or of the requests before it, and records what is staged and published. It
// opens none of the paths of a request and needs no privilege, so that the tests of a CO run
// anywhere. It is also the LocalNode of the controller in its process, and safe for concurrent use.
type Simulated struct {
	csi.UnimplementedNodeServer

	config  Config
	volumes *staged.Records[*staged.Volume]
}

// NewSimulated returns a service that keeps its records in the store, which must not be open yet.
func NewSimulated(config Config) *Simulated {
	return &Simulated{config: config, volumes: staged.NewVolumes(config.Store)}
}

// Recover reads the records.
func (s *Simulated) Recover(context.Context) error {
	s.volumes.Load()

	return nil
}

// NodeGetInfo answers as Service does (CSI v1.13, NodeGetInfo).
func (s *Simulated) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return nodeInfo(&s.config), nil
}

// NodeGetCapabilities answers with what is not disabled (CSI v1.13, NodeGetCapabilities).
func (s *Simulated) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: s.config.Capabilities.Node()}, nil
}

// NodeStageVolume records the staging (CSI v1.13, NodeStageVolume).
func (s *Simulated) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	wanted, err := parseStage(request)
	if err != nil {
		return nil, err
	}

	err = cmp.Or(rpc.CheckAbsolute("staging_target_path", wanted.StagingPath), s.config.Capabilities.CheckMountGroup(wanted.Capability))
	if err != nil {
		return nil, err
	}

	return recorded(ctx, s, wanted.VolumeID, "NodeStageVolume", request, &csi.NodeStageVolumeResponse{}, func(ctx context.Context) error {
		if err := s.stage(ctx, wanted); err != nil {
			return fmt.Errorf("stage volume %s at %s: %w", wanted.VolumeID, wanted.StagingPath, err)
		}

		return nil
	})
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
	stored, err := staged.PoolIn(s.config.Pools, v)
	if err != nil {
		return 0, err
	}

	size, err := stored.Size(pool.Object{ID: v.VolumeID, Backing: v.Parameters.Backing})
	if !v.IsImage() {
		size = 0
	}

	return size, err
}

// NodeUnstageVolume forgets the staging (CSI v1.13, NodeUnstageVolume).
func (s *Simulated) NodeUnstageVolume(ctx context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := request.GetVolumeId(), plain(request.GetStagingTargetPath())
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	if path == "" {
		return nil, rpc.Invalid("staging_target_path is missing")
	}

	return recorded(ctx, s, id, "NodeUnstageVolume", request, &csi.NodeUnstageVolumeResponse{}, func(context.Context) error {
		v, known := s.volumes.Get(id)

		switch {
		case !known || v.StagingPath != path:
			return nil
		case len(v.Publications) > 0:
			return rpc.Errorf(codes.FailedPrecondition, "unstage volume %s from %s: it is published at %s; unpublish it there first",
				id, path, v.Publications[0].TargetPath)
		default:
			return s.volumes.DeleteLazily(id)
		}
	})
}

// NodePublishVolume records the publication (CSI v1.13, NodePublishVolume). Without
// STAGE_UNSTAGE_VOLUME, and of an inline ephemeral volume, it records the staging as well.
func (s *Simulated) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id := request.GetVolumeId()

	wanted, err := parsePublish(request, func(path string) error { return rpc.CheckAbsolute("target_path", path) }, s.stages(request))
	if err != nil {
		return nil, err
	}

	if err := s.config.Capabilities.CheckMountGroup(wanted.Capability); err != nil {
		return nil, err
	}

	return recorded(ctx, s, id, "NodePublishVolume", request, &csi.NodePublishVolumeResponse{}, func(ctx context.Context) (err error) {
		defer errdefs.Wrapf(&err, "publish volume %s at %s", id, wanted.TargetPath)

		v, err := s.stagingOf(request)
		if err != nil {
			return err
		}

		return s.publish(ctx, v, wanted)
	})
}

// stages reports whether the CO stages the volume of the request.
func (s *Simulated) stages(request *csi.NodePublishVolumeRequest) bool {
	return s.config.Capabilities.Has(capability.StageUnstageVolume) && !volume.IsEphemeral(request.GetVolumeContext())
}

// stagingOf returns the record of the staged volume, or a new one where the CO does not stage it.
func (s *Simulated) stagingOf(request *csi.NodePublishVolumeRequest) (*staged.Volume, error) {
	current, known := s.volumes.Get(request.GetVolumeId())

	switch {
	case known && s.stages(request) && current.StagingPath != plain(request.GetStagingTargetPath()):
		return nil, rpc.Errorf(codes.FailedPrecondition, "it is staged at %s, not at %s", current.StagingPath, request.GetStagingTargetPath())
	case known:
		return current, nil
	case volume.IsEphemeral(request.GetVolumeContext()):
		return newEphemeral(request)
	case s.stages(request):
		return nil, errNotStaged
	}

	fresh, err := parseStage(&csi.NodeStageVolumeRequest{
		VolumeId: request.GetVolumeId(), StagingTargetPath: request.GetTargetPath(), VolumeCapability: request.GetVolumeCapability(),
		VolumeContext: request.GetVolumeContext(), PublishContext: request.GetPublishContext(),
	})
	if err != nil {
		return nil, err
	}

	fresh.StagingPath = ""
	_, err = s.size(fresh)

	return fresh, err
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

	if v.StagingPath == wanted.TargetPath {
		return rpc.Invalid("target_path: %s is where the volume is staged", wanted.TargetPath)
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
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	if target == "" {
		return nil, rpc.Invalid("target_path is missing")
	}

	return recorded(ctx, s, id, "NodeUnpublishVolume", request, &csi.NodeUnpublishVolumeResponse{}, func(context.Context) error {
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
func (s *Simulated) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := s.usedAt(request.GetVolumeId(), request.GetVolumePath(), request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}

	size, err := s.size(v)
	if err != nil {
		return nil, err
	}

	answer := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size, Available: size}}}
	if s.config.Capabilities.HasNode(capability.VolumeCondition) {
		health.PutCondition(answer, nil)
	}

	return answer, nil
}

// usedAt returns the record of a volume that is staged or published at the path.
func (s *Simulated) usedAt(id, path, stagingPath string) (*staged.Volume, error) {
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	path, err := checkUsedPath(path, stagingPath)
	if err != nil {
		return nil, err
	}

	v, known := s.volumes.Get(id)
	if !known {
		return nil, errNotInUse(id)
	}

	return v, checkUsedAt(v, path)
}

// NodeExpandVolume answers with the size that the controller has given the volume (CSI v1.13,
// NodeExpandVolume).
func (s *Simulated) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := s.usedAt(request.GetVolumeId(), request.GetVolumePath(), request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}

	if err := rpc.CheckCapacityRange(request.GetCapacityRange()); err != nil {
		return nil, err
	}

	if err := checkHas(&s.config, v, request.GetVolumeCapability()); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	size, err := s.size(v)
	if limit := request.GetCapacityRange().GetLimitBytes(); err == nil && limit > 0 && size > limit {
		err = rpc.Errorf(codes.OutOfRange, "expand volume %s: it has %d bytes already, more than limit_bytes %d", v.VolumeID, size, limit)
	}

	if err != nil {
		return nil, err
	}

	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeHealth answers that a volume in use is healthy (CSI v1.13, NodeGetVolumeHealth).
func (s *Simulated) NodeGetVolumeHealth(
	_ context.Context, request *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	if _, known := s.volumes.Get(id); !known {
		return nil, errNotInUse(id)
	}

	var healthy *health.Record

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: healthy.VolumeHealth(id)}, nil
}

// NodeGetStorageHealth answers as Service does (CSI v1.13, NodeGetStorageHealth).
func (s *Simulated) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	return storageHealth(s.config.Storage), nil
}

// recorded runs a change of a volume's record, serial with all operations on the volume.
func recorded[T any](
	ctx context.Context, s *Simulated, id, method string, request proto.Message, answer T, change func(context.Context) error,
) (T, error) {
	return operation.DoLogged(ctx, s.config.Log, s.config.Operations, operation.VolumeCall(id, "", method, request),
		func(ctx context.Context) (T, error) { return answer, change(ctx) })
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

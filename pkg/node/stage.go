package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// NodeStageVolume attaches the volume's device and mounts its filesystem at the
// staging path, which it formats when empty, checks when not, and grows to the
// size of the device (CSI v1.13, NodeStageVolume).
func (s *Service) NodeStageVolume(
	ctx context.Context, request *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	wanted, err := parseStage(request)
	if err != nil {
		return nil, err
	}

	// Requests that are invalid in any state are refused first.
	if err := s.dirs.CheckPath(wanted.StagingPath); err != nil {
		return nil, rpc.Invalid("staging_target_path: %w", err)
	}

	if err := s.config.Capabilities.CheckMountGroup(wanted.Capability); err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(wanted.VolumeID)

	return operation.DoLogged(ctx, s.config.Log, s.ops, operation.VolumeCall(wanted.VolumeID, "stage", "NodeStageVolume", request),
		func(ctx context.Context) (*csi.NodeStageVolumeResponse, error) {
			if err := s.stage(ctx, wanted); err != nil {
				return nil, fmt.Errorf("stage volume %s at %s: %w", wanted.VolumeID, wanted.StagingPath, err)
			}

			s.prober.StagedOrPublished(wanted.VolumeID)

			return &csi.NodeStageVolumeResponse{}, nil
		})
}

func parseStage(request *csi.NodeStageVolumeRequest) (*staged.Volume, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, err
	}

	if request.GetStagingTargetPath() == "" {
		return nil, rpc.Invalid("staging_target_path is missing")
	}

	capability, err := volume.ParseCapability(request.GetVolumeCapability())
	if err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	parameters, err := volume.ParseContext(request.GetVolumeContext())
	if err != nil {
		return nil, rpc.Invalid("volume_context: %w", err)
	}

	// A volume that was created as raw block gets the requested filesystem.
	if _, named := request.GetVolumeContext()[volume.KeyFSType]; !named && capability.FSType != "" {
		parameters.FSType = capability.FSType
	}

	if !volume.IsID(request.GetVolumeId()) {
		return nil, rpc.Errorf(codes.NotFound, "volume %s does not exist", request.GetVolumeId())
	}

	slot := staged.NoSlot
	if given, ok := request.GetPublishContext()[volume.KeySlot]; ok {
		if slot, err = strconv.Atoi(given); err != nil || slot < 0 {
			return nil, rpc.Invalid("publish_context: %s is %q; pass it on as ControllerPublishVolume gave it", volume.KeySlot, given)
		}
	}

	return &staged.Volume{
		VolumeID: request.GetVolumeId(), StagingPath: plain(request.GetStagingTargetPath()),
		Capability: capability, Parameters: parameters, Slot: slot,
		ReadOnly: request.GetPublishContext()[volume.KeyReadOnly] == "true",
		Copy:     request.GetVolumeContext()[volume.KeyCopy] == "true",
	}, nil
}

func (s *Service) stage(ctx context.Context, wanted *staged.Volume) error {
	if current, known := s.volumes.Staged.Get(wanted.VolumeID); known {
		staged, err := s.ways.For(current).IsStaged(current)
		if err != nil {
			return err
		}

		if staged {
			return checkSameStaging(current, wanted)
		}
	}

	if err := checkCapability(&s.config, wanted, wanted.Capability); err != nil {
		return rpc.Errorf(codes.FailedPrecondition, "volume_capability: %w", err)
	}

	staging, err := s.dirs.Target(wanted.StagingPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the staging directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer staging.Close()

	if err := s.ways.For(wanted).CheckStored(wanted); err != nil {
		defer s.prober.StagingFailed(wanted, err)

		return err
	}

	if wanted, err = s.keepPublications(wanted); err != nil {
		return err
	}

	if err := s.volumes.Record(ctx, wanted); err != nil {
		return err
	}

	if len(wanted.Publications) == 0 {
		// Observations of an earlier attachment do not apply to the new one.
		s.prober.Observations().Forget(wanted.VolumeID)
	}

	if err := s.stageRecorded(ctx, wanted, staging); err != nil {
		defer s.prober.StagingFailed(wanted, err)

		return errors.Join(err, s.forgetUnstaged(wanted))
	}

	return s.config.Point.At(ctx, operation.VolumeStaged, wanted.VolumeID)
}

func (s *Service) stageRecorded(ctx context.Context, v *staged.Volume, staging *mount.Target) error {
	if err := s.config.Point.At(ctx, operation.StagingRecorded, v.VolumeID); err != nil {
		return err
	}

	if v.IsImage() && !v.IsDirect() {
		if err := s.direct.Guard.CheckNotAssigned(v); err != nil {
			return err
		}
	}

	return s.ways.For(v).Stage(ctx, v, staging)
}

// checkCapability refuses, with volume.ErrCapability, a capability that the volume does not have.
func checkCapability(config *Config, v *staged.Volume, wanted volume.Capability) error {
	if err := config.Capabilities.CheckAccessMode(wanted); err != nil {
		return err
	}

	if err := v.Parameters.CheckCapability(wanted, config.Shared); err != nil {
		return err
	}

	return v.Parameters.CheckFSType(wanted)
}

// checkSameStaging returns nil if current is staged as wanted: at the same path, with
// the same capability and directAssign.
func checkSameStaging(current, wanted *staged.Volume) error {
	switch {
	case current.StagingPath != wanted.StagingPath:
		return rpc.Errorf(codes.FailedPrecondition, "it is staged at %s; unstage it there first", current.StagingPath)
	case current.IsDirect() != wanted.IsDirect():
		return rpc.Errorf(codes.AlreadyExists, "it is staged there with another %s in its volume_context; unstage it first",
			volume.KeyDirectAssign)
	}

	if differences := current.CapabilityDifferences(wanted.Capability); differences != "" {
		return rpc.Errorf(codes.AlreadyExists, "it is staged there with another capability: %s; unstage it first", differences)
	}

	return nil
}

// forgetUnstaged deletes the record of a volume that could not be staged, unless it has publications, or a
// device, that the next attempt has to find.
func (s *Service) forgetUnstaged(wanted *staged.Volume) error {
	current, known := s.volumes.Staged.Get(wanted.VolumeID)
	if !known || len(current.Publications) > 0 {
		return nil
	}

	left, err := s.devices.IsLeft(current)
	if left || err != nil {
		return err
	}

	// The kernel has detached the device with its last user, and another program may get its number.
	s.prober.Observations().DetachAll(current.VolumeID)

	return s.forget(current)
}

// keepPublications takes over publications that outlived their staging, which another
// program has unmounted, persistent ones, and the device that the volume may still have.
func (s *Service) keepPublications(wanted *staged.Volume) (*staged.Volume, error) {
	current, known := s.volumes.Staged.Get(wanted.VolumeID)
	if !known {
		return wanted, nil
	}

	left, err := s.prune(current)
	if err != nil {
		return nil, err
	}

	if len(left.Publications) > 0 {
		if err := checkSELinuxContexts(left, wanted.Capability); err != nil {
			return nil, err
		}
	}

	wanted.Publications, wanted.Persistent, wanted.Device = left.Publications, left.Persistent, left.Device

	return wanted, nil
}

// NodeUnstageVolume unmounts the volume from the staging path and detaches its
// device (CSI v1.13, NodeUnstageVolume). Data is never touched.
func (s *Service) NodeUnstageVolume(
	ctx context.Context, request *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := request.GetVolumeId(), plain(request.GetStagingTargetPath())
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	if path == "" {
		return nil, rpc.Invalid("staging_target_path is missing")
	}

	defer s.prober.ProbeAfterOperation(id)

	return operation.DoLogged(ctx, s.config.Log, s.ops, operation.VolumeCall(id, "stage", "NodeUnstageVolume", request),
		func(ctx context.Context) (*csi.NodeUnstageVolumeResponse, error) {
			if err := s.unstage(ctx, id, path); err != nil {
				return nil, fmt.Errorf("unstage volume %s from %s: %w", id, path, err)
			}

			return &csi.NodeUnstageVolumeResponse{}, nil
		})
}

func (s *Service) unstage(ctx context.Context, id, path string) error {
	v, known := s.volumes.Staged.Get(id)
	if !known {
		return s.unstageUnknown(ctx, id, path)
	}

	if v.StagingPath != path {
		return checkAllowed(s.dirs, path)
	}

	v, err := s.prune(v)
	if err != nil {
		return err
	}

	if len(v.Publications) > 0 {
		return rpc.Errorf(codes.FailedPrecondition, "it is published at %s; unpublish it there first",
			v.Publications[0].TargetPath)
	}

	if err := s.ways.For(v).Unstage(ctx, v); err != nil {
		return err
	}

	if err := s.config.Point.At(ctx, operation.VolumeUnstaged, id); err != nil {
		return err
	}

	return s.leave(v)
}

// unstageUnknown unmounts a volume that the records were lost of.
func (s *Service) unstageUnknown(ctx context.Context, id, path string) error {
	if err := s.direct.Guard.CheckNotAssigned(&staged.Volume{VolumeID: id}); err != nil {
		return err
	}

	if err := checkAllowed(s.dirs, path); err != nil {
		return err
	}

	for _, backing := range []volume.Backing{volume.BackingImage, volume.BackingDirectory} {
		v := &staged.Volume{VolumeID: id, StagingPath: path, Parameters: volume.Parameters{Backing: backing}}

		mounted, err := s.observe.IsMountedAt(v, path)
		if err != nil {
			return err
		}

		if mounted && volume.IsID(id) {
			return s.unstageUnrecorded(ctx, v)
		}
	}

	return nil
}

// unstageUnrecorded records the volume first: a device that stays has to be found again.
func (s *Service) unstageUnrecorded(ctx context.Context, v *staged.Volume) error {
	v, err := s.devices.Identify(v)
	if err != nil {
		return err
	}

	if err := s.volumes.Staged.PutLazily(v); err != nil {
		return err
	}

	if err := s.ways.For(v).Unstage(ctx, v); err != nil {
		return err
	}

	return s.leave(v)
}

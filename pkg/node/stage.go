package node

import (
	"cmp"
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
	wanted, err := s.config.parseStaging(request, s.config.checkPath)
	if err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(wanted.VolumeID)

	call := operation.VolumeCall(wanted.VolumeID, "stage", "NodeStageVolume", request)
	doing := fmt.Sprintf("stage volume %s at %s", wanted.VolumeID, wanted.StagingPath)

	return run(ctx, &s.config.Common, call, doing, &csi.NodeStageVolumeResponse{}, func(ctx context.Context) error {
		if err := s.lifecycle.Stage(ctx, wanted); err != nil {
			return err
		}

		s.prober.StagedOrPublished(wanted.VolumeID)

		return nil
	})
}

// parseStaging parses a request, and refuses what is invalid in any state.
func (c *Common) parseStaging(
	request *csi.NodeStageVolumeRequest, checkPath func(field, path string) error,
) (*staged.Volume, error) {
	path := request.GetStagingTargetPath()
	if err := cmp.Or(rpc.CheckVolumeID(request.GetVolumeId()), rpc.CheckPresent("staging_target_path", path)); err != nil {
		return nil, err
	}

	wanted, err := parseVolume(request)
	if err != nil {
		return nil, err
	}

	wanted.StagingPath = plain(path)

	return wanted, cmp.Or(checkPath("staging_target_path", wanted.StagingPath), c.Capabilities.CheckMountGroup(wanted.Capability))
}

// volumeRequest is what the requests of a staging, and of a publication that begins with one, say of a volume.
type volumeRequest interface {
	GetVolumeId() string
	GetVolumeCapability() *csi.VolumeCapability
	GetVolumeContext() map[string]string
	GetPublishContext() map[string]string
}

// parseVolume returns the volume of a staging, without its path.
func parseVolume(request volumeRequest) (*staged.Volume, error) {
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
		VolumeID: request.GetVolumeId(), Capability: capability, Parameters: parameters, Slot: slot,
		ReadOnly: request.GetPublishContext()[volume.KeyReadOnly] == "true",
		Copy:     request.GetVolumeContext()[volume.KeyCopy] == "true",
	}, nil
}

// Stage stages the volume, unless it is staged already. It is recorded before anything is attached or mounted.
func (l *lifecycle) Stage(ctx context.Context, wanted *staged.Volume) error {
	current, isStaged, err := l.stagedNow(wanted.VolumeID)
	if err != nil {
		return err
	}

	if isStaged {
		return checkSameStaging(current, wanted)
	}

	if err := checkCapability(&l.config.Common, wanted, wanted.Capability); err != nil {
		return rpc.Errorf(codes.FailedPrecondition, "volume_capability: %w", err)
	}

	staging, err := l.config.Dirs.Target(wanted.StagingPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the staging directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer staging.Close()

	if err := l.pools.CheckStored(wanted); err != nil {
		defer l.prober.StagingFailed(wanted, err)

		return err
	}

	if wanted, err = l.keepPublications(wanted); err != nil {
		return err
	}

	if err := l.volumes.Record(ctx, wanted); err != nil {
		return err
	}

	if len(wanted.Publications) == 0 {
		// Observations of an earlier attachment do not apply to the new one.
		l.prober.Observations().Forget(wanted.VolumeID)
	}

	if err := l.stageRecorded(ctx, wanted, staging); err != nil {
		defer l.prober.StagingFailed(wanted, err)

		return errors.Join(err, l.forgetUnstaged(wanted))
	}

	return l.config.Point.At(ctx, operation.VolumeStaged, wanted.VolumeID)
}

func (l *lifecycle) stageRecorded(ctx context.Context, v *staged.Volume, staging *mount.Target) error {
	if err := l.config.Point.At(ctx, operation.StagingRecorded, v.VolumeID); err != nil {
		return err
	}

	if v.Parameters.Backing.HasDevice() && !v.IsDirect() {
		if err := l.direct.Guard.CheckNotAssigned(v); err != nil {
			return err
		}
	}

	return l.ways.For(v).Stage(ctx, v, staging)
}

// checkCapability refuses, with volume.ErrCapability, a capability that the volume does not have.
func checkCapability(config *Common, v *staged.Volume, wanted volume.Capability) error {
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
func (l *lifecycle) forgetUnstaged(wanted *staged.Volume) error {
	current, known := l.volumes.Staged.Get(wanted.VolumeID)
	if !known || len(current.Publications) > 0 {
		return nil
	}

	left, err := l.devices.IsLeft(current)
	if left || err != nil {
		return err
	}

	// The kernel has detached the device with its last user, and another program may get its number.
	l.prober.Observations().DetachAll(current.VolumeID)

	return l.forget(current)
}

// keepPublications takes over publications that outlived their staging, which another
// program has unmounted, persistent ones, and the device that the volume may still have.
func (l *lifecycle) keepPublications(wanted *staged.Volume) (*staged.Volume, error) {
	current, known := l.volumes.Staged.Get(wanted.VolumeID)
	if !known {
		return wanted, nil
	}

	left, err := l.prune(current)
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
	if err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckPresent("staging_target_path", path)); err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(id)

	call := operation.VolumeCall(id, "stage", "NodeUnstageVolume", request)
	doing := fmt.Sprintf("unstage volume %s from %s", id, path)

	return run(ctx, &s.config.Common, call, doing, &csi.NodeUnstageVolumeResponse{}, func(ctx context.Context) error {
		return s.lifecycle.unstage(ctx, id, path)
	})
}

func (l *lifecycle) unstage(ctx context.Context, id, path string) error {
	v, known := l.volumes.Staged.Get(id)
	if !known {
		return l.unstageUnknown(ctx, id, path)
	}

	if v.StagingPath != path {
		return checkAllowed(l.config.Dirs, path)
	}

	v, err := l.prune(v)
	if err != nil {
		return err
	}

	if err := checkUnpublished(v); err != nil {
		return err
	}

	if err := l.ways.For(v).Unstage(ctx, v); err != nil {
		return err
	}

	if err := l.config.Point.At(ctx, operation.VolumeUnstaged, id); err != nil {
		return err
	}

	return l.leave(v)
}

func checkUnpublished(v *staged.Volume) error {
	if len(v.Publications) > 0 {
		return rpc.Errorf(codes.FailedPrecondition, "it is published at %s; unpublish it there first",
			v.Publications[0].TargetPath)
	}

	return nil
}

// unstageUnknown unmounts a volume that the records were lost of.
func (l *lifecycle) unstageUnknown(ctx context.Context, id, path string) error {
	if err := l.direct.Guard.CheckNotAssigned(&staged.Volume{VolumeID: id}); err != nil {
		return err
	}

	if err := checkAllowed(l.config.Dirs, path); err != nil {
		return err
	}

	for _, backing := range volume.Backings() {
		v := &staged.Volume{VolumeID: id, StagingPath: path, Parameters: volume.Parameters{Backing: backing}}

		mounted, err := l.observe.IsMountedAt(v, path)
		if err != nil {
			return err
		}

		if !mounted || !volume.IsID(id) {
			continue
		}

		if v, err = l.devices.Identify(v); err != nil {
			return err
		}

		// So that unstage knows it, and a device that stays is found again.
		if err := l.volumes.Staged.PutLazily(v); err != nil {
			return err
		}

		return l.unstage(ctx, id, path)
	}

	return nil
}

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// NodeStageVolume attaches the volume's device and mounts its filesystem at the
// staging path, which it formats when empty, checks when not, and grows to the
// size of the device (CSI v1.13, NodeStageVolume).
func (s *Service) NodeStageVolume(
	ctx context.Context, request *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	wanted, err := parseStage(request)
	if err == nil {
		// What can never be right is said so, whatever the volume's state.
		err = s.checkStagingPath(wanted.StagingPath)
	}

	if err == nil {
		err = s.config.Capabilities.CheckAccessMode(wanted.Capability)
	}

	if err == nil {
		err = s.checkMountGroup(wanted.Capability)
	}

	if err != nil {
		return nil, rpc.Status(err)
	}

	defer s.prober.ProbeAfterOperation(wanted.VolumeID)

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(wanted.VolumeID, "stage", "NodeStageVolume", request),
		func(ctx context.Context) (*csi.NodeStageVolumeResponse, error) {
			if err := s.stage(ctx, wanted); err != nil {
				return nil, fmt.Errorf("stage volume %s at %s: %w", wanted.VolumeID, wanted.StagingPath, err)
			}

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

	if _, err := mount.ParseFlags(capability.MountFlags); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	parameters, err := volume.ParseContext(request.GetVolumeContext())
	if err != nil {
		return nil, rpc.Invalid("volume_context: %w", err)
	}

	if err := parameters.CheckDirectAssign(capability); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	// A volume that was made as raw block gets the filesystem that is asked for.
	if _, told := request.GetVolumeContext()[volume.KeyFSType]; told {
		if err := parameters.CheckFSType(capability); err != nil {
			return nil, rpc.Invalid("volume_capability: %w", err)
		}
	}

	if capability.Block && parameters.Backing == volume.BackingDirectory {
		return nil, rpc.Invalid("volume_capability: a directory is no block device")
	}

	if !volume.IsID(request.GetVolumeId()) {
		return nil, rpc.Errorf(codes.NotFound, "volume %s does not exist", request.GetVolumeId())
	}

	slot := none
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
	if current, known := s.stagedVolumes.Get(wanted.VolumeID); known {
		staged, err := s.staged(current)
		if err != nil {
			return err
		}

		if staged {
			return checkSameStaging(current, wanted)
		}
	}

	place, err := s.places.Target(wanted.StagingPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the staging directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer place.Close()

	if err := s.exists(wanted); err != nil {
		return err
	}

	if wanted, err = s.keepPublications(wanted); err != nil {
		return err
	}

	if err := s.stagedVolumes.Put(ctx, wanted); err != nil {
		return err
	}

	if len(wanted.Publications) == 0 {
		// What was the matter with an earlier attachment is not known of this one.
		s.prober.Observations().Forget(wanted.VolumeID)
	}

	if err := s.assemble(ctx, wanted, place); err != nil {
		if len(wanted.Publications) > 0 {
			return err
		}

		return errors.Join(err, s.forget(wanted))
	}

	return nil
}

// checkSameStaging returns nil if the volume u is staged as wanted: at the same path, with
// the same capability and directAssign.
func checkSameStaging(u, wanted *staged.Volume) error {
	switch {
	case u.StagingPath != wanted.StagingPath:
		return rpc.Errorf(codes.FailedPrecondition, "it is staged at %s; unstage it there first", u.StagingPath)
	case u.IsDirect() != wanted.IsDirect():
		return rpc.Errorf(codes.AlreadyExists, "it is staged there with another %s in its volume_context; unstage it first",
			volume.KeyDirectAssign)
	case !u.Capability.Equal(wanted.Capability):
		return rpc.Errorf(codes.AlreadyExists, "it is staged there with another capability; unstage it first")
	default:
		return nil
	}
}

// exists returns NOT_FOUND unless the pool holds the volume.
func (s *Service) exists(use *staged.Volume) error {
	place, err := s.poolOf(use)
	if err != nil {
		return err
	}

	open := func() (*os.File, error) { return place.OpenImage(use.VolumeID, os.O_RDONLY) }
	if !use.IsImage() {
		open = func() (*os.File, error) { return place.OpenDirectory(use.VolumeID) }
	}

	file, err := open()
	if err != nil {
		return err
	}

	_ = file.Close()

	return nil
}

// keepPublications takes over those that outlived a staging which somebody has
// unmounted.
func (s *Service) keepPublications(wanted *staged.Volume) (*staged.Volume, error) {
	current, known := s.stagedVolumes.Get(wanted.VolumeID)
	if !known {
		return wanted, nil
	}

	left, err := s.prune(current)
	if err != nil {
		return nil, err
	}

	wanted.Publications = left.Publications

	return wanted, nil
}

// assemble puts together what the volume is used through.
func (s *Service) assemble(ctx context.Context, use *staged.Volume, place *mount.Target) error {
	if use.IsImage() && !use.IsDirect() {
		if err := s.checkNotAssigned(use); err != nil {
			return err
		}
	}

	if use.Capability.Block {
		_, err := s.attachBlock(ctx, use, use.IsReadOnly())
		if err == nil && !use.IsReadOnly() {
			// What is on it from now on is its user's to check.
			err = s.checker.Forget(use.VolumeID)
		}

		return err
	}

	if use.IsDirect() {
		return s.stageDirect(ctx, use)
	}

	// Of a driver that lost its records: the same volume, mounted as before.
	if mounted, err := s.mountedAt(use, use.StagingPath); mounted || err != nil {
		return err
	}

	if err := s.clear(use, place); err != nil {
		return err
	}

	made, err := place.MakeDir(stagingMode)
	if err != nil {
		return err
	}

	if err = s.mountVolume(ctx, use, place); err != nil && made {
		err = errors.Join(err, place.Remove())
	}

	return err
}

func (s *Service) mountVolume(ctx context.Context, use *staged.Volume, place *mount.Target) error {
	options, err := mountOptions(use.Capability, use.IsReadOnly())
	if err != nil {
		return err
	}

	if use.IsImage() {
		return s.mountImage(ctx, use, place, options)
	}

	return s.bindDirectory(use, place, options)
}

// mountOptions are those of a volume's mounts. A mounted volume has no devices
// unless its mount flags say "dev"; the node of a raw-block volume is one.
func mountOptions(capability volume.Capability, readOnly bool) (mount.Options, error) {
	options, err := mount.ParseFlags(capability.MountFlags)
	if err != nil {
		return mount.Options{}, err
	}

	if !capability.Block {
		options = options.WithoutDevices()
	}

	if readOnly {
		options = options.WithReadOnly()
	}

	return options, nil
}

// stagingMode is for a staging directory that the CO did not make.
const stagingMode = 0o750

func (s *Service) bindDirectory(use *staged.Volume, place *mount.Target, options mount.Options) error {
	bytes, err := s.poolOf(use)
	if err != nil {
		return err
	}

	directory, err := bytes.OpenDirectory(use.VolumeID)
	if err != nil {
		return err
	}
	defer directory.Close()

	tree, err := mount.Bind(directory, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	return tree.Attach(place)
}

// NodeUnstageVolume unmounts the volume from the staging path and detaches its
// device (CSI v1.13, NodeUnstageVolume). Data is never touched.
func (s *Service) NodeUnstageVolume(
	ctx context.Context, request *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := request.GetVolumeId(), plain(request.GetStagingTargetPath())
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, rpc.Status(err)
	}

	if path == "" {
		return nil, rpc.Invalid("staging_target_path is missing")
	}

	defer s.prober.ProbeAfterOperation(id)

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(id, "stage", "NodeUnstageVolume", request),
		func(ctx context.Context) (*csi.NodeUnstageVolumeResponse, error) {
			if err := s.unstage(ctx, id, path); err != nil {
				return nil, fmt.Errorf("unstage volume %s from %s: %w", id, path, err)
			}

			return &csi.NodeUnstageVolumeResponse{}, nil
		})
}

func (s *Service) unstage(ctx context.Context, id, path string) error {
	use, known := s.stagedVolumes.Get(id)
	if !known {
		return s.unstageUnknown(ctx, id, path)
	}

	if use.StagingPath != path {
		return s.allowed(path)
	}

	use, err := s.prune(use)
	if err != nil {
		return err
	}

	if len(use.Publications) > 0 {
		return rpc.Errorf(codes.FailedPrecondition, "it is published at %s; unpublish it there first",
			use.Publications[0].TargetPath)
	}

	if err := s.dismantle(ctx, use); err != nil {
		return err
	}

	return s.leave(use)
}

// unstageUnknown unmounts a volume that the records were lost of.
func (s *Service) unstageUnknown(ctx context.Context, id, path string) error {
	if err := s.checkNotAssigned(&staged.Volume{VolumeID: id}); err != nil {
		return err
	}

	for _, backing := range []volume.Backing{volume.BackingImage, volume.BackingDirectory} {
		use := &staged.Volume{VolumeID: id, StagingPath: path, Parameters: volume.Parameters{Backing: backing}}

		if err := s.allowed(path); err != nil {
			return err
		}

		mounted, err := s.mountedAt(use, path)
		if err != nil {
			return err
		}

		if mounted && volume.IsID(id) {
			return s.dismantle(ctx, use)
		}
	}

	return nil
}

// dismantle takes apart what assemble has put together.
func (s *Service) dismantle(ctx context.Context, use *staged.Volume) error {
	if use.ExposesRawDevice() {
		return s.releaseDevices(ctx, use)
	}

	place, err := s.places.Target(use.StagingPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer place.Close()

	point, mounted, err := place.Mounted()
	if err != nil {
		return err
	}

	attachment, isImage, err := s.attachmentOf(use, point)
	if err != nil {
		return err
	}

	if err := s.clear(use, place); err != nil || !mounted || !isImage {
		return err
	}

	// The kernel detaches it with the last mount; here it is only awaited, and
	// its number becomes free.
	return s.detached(ctx, use, attachment)
}

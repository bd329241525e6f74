package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// NodePublishVolume makes a staged volume appear at the target path: a bind
// mount of the filesystem, or of the device's node (CSI v1.13,
// NodePublishVolume).
func (s *Service) NodePublishVolume(
	ctx context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	if volume.IsEphemeral(request.GetVolumeContext()) {
		return s.ephemeral.Publish(ctx, request, plain(request.GetTargetPath()))
	}

	id := request.GetVolumeId()

	wanted, err := s.parsePublish(request)
	if err == nil {
		err = s.config.Capabilities.CheckMountGroup(wanted.Capability)
	}

	if err != nil {
		return nil, rpc.Status(err)
	}

	defer s.prober.ProbeAfterOperation(id)

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(id, wanted.TargetPath, "NodePublishVolume", request),
		func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
			staged, err := s.stagingOf(ctx, request)
			if err == nil {
				err = s.publish(ctx, id, staged, wanted)
			}

			if err != nil {
				err = errors.Join(err, s.unstageLast(ctx, id))

				return nil, fmt.Errorf("publish volume %s at %s: %w", id, wanted.TargetPath, err)
			}

			return &csi.NodePublishVolumeResponse{}, nil
		})
}

func (s *Service) parsePublish(request *csi.NodePublishVolumeRequest) (staged.Publication, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return staged.Publication{}, err
	}

	if request.GetTargetPath() == "" {
		return staged.Publication{}, rpc.Invalid("target_path is missing")
	}

	// Requests that are invalid in any state are refused first.
	if err := s.dirs.CheckPath(request.GetTargetPath()); err != nil {
		return staged.Publication{}, rpc.Invalid("target_path: %w", err)
	}

	wanted, err := volume.ParseCapability(request.GetVolumeCapability())
	if err == nil {
		_, err = mount.ParseFlags(wanted.MountFlags)
	}

	if err == nil {
		err = s.config.Capabilities.CheckAccessMode(wanted)
	}

	if err != nil {
		return staged.Publication{}, rpc.Invalid("volume_capability: %w", err)
	}

	if !volume.IsID(request.GetVolumeId()) {
		return staged.Publication{}, rpc.Errorf(codes.NotFound, "volume %s does not exist", request.GetVolumeId())
	}

	if request.GetStagingTargetPath() == "" && s.config.Capabilities.Has(capability.StageUnstageVolume) {
		return staged.Publication{}, rpc.Errorf(codes.FailedPrecondition,
			"staging_target_path is missing; stage the volume first and pass its path on")
	}

	return staged.Publication{
		TargetPath: plain(request.GetTargetPath()), Capability: wanted,
		ReadOnly: request.GetReadonly() || wanted.ReaderOnly(),
		Pod:      cgroup.PodUID(request.GetTargetPath(), request.GetVolumeContext()),
	}, nil
}

func (s *Service) publish(ctx context.Context, id, stagingPath string, wanted staged.Publication) error {
	use, err := s.stagedUse(id, stagingPath, wanted)
	if err != nil {
		return err
	}

	if use, err = s.prune(use); err != nil {
		return err
	}

	if existing, ok := use.PublicationAt(wanted.TargetPath); ok {
		if !existing.Same(wanted) {
			return rpc.Errorf(codes.AlreadyExists, "it is published there with another capability or readonly flag; unpublish it first")
		}

		return s.access.For(use).Republish(ctx, use, existing)
	}

	if err := checkAnotherTarget(use, wanted); err != nil {
		return err
	}

	if _, err := s.access.PoolOf(use); err != nil {
		return err
	}

	target, err := s.dirs.Target(wanted.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the target's parent directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer target.Close()

	if err := s.access.UnmountAllLayers(use, target); err != nil {
		return err
	}

	_, occupied, err := target.Stat()
	if err != nil {
		return err
	}

	wanted.Made = !occupied

	published := use.Clone()
	published.Publications = append(published.Publications, wanted)

	if err := s.stagedVolumes.Put(ctx, published); err != nil {
		return err
	}

	if err := s.access.For(published).Publish(ctx, published, wanted, target); err != nil {
		return errors.Join(err, s.access.For(use).Unpublish(use, wanted, nil), s.stagedVolumes.PutLazily(use),
			s.access.DetachUnusedReader(ctx, use))
	}

	return nil
}

// stagedUse returns the record of a volume that really is staged there.
func (s *Service) stagedUse(id, stagingPath string, wanted staged.Publication) (*staged.Volume, error) {
	use, known := s.stagedVolumes.Get(id)
	staged := false

	if known {
		var err error
		if staged, err = s.access.For(use).IsStaged(use); err != nil {
			return nil, err
		}
	}

	if !staged {
		return nil, rpc.Errorf(codes.FailedPrecondition, "it is not staged; call NodeStageVolume first")
	}

	if use.StagingPath != stagingPath {
		return nil, rpc.Errorf(codes.FailedPrecondition, "it is staged at %s, not at %s", use.StagingPath, stagingPath)
	}

	if use.Capability.Block != wanted.Capability.Block {
		return nil, rpc.Invalid("volume_capability: it is not staged for this access type")
	}

	if err := use.Parameters.CheckDirectAssign(wanted.Capability); err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	if asked := wanted.Capability.FSType; asked != "" && asked != use.FSType() {
		return nil, rpc.Invalid("volume_capability: fs_type is %s, but it is staged as %s", asked, use.FSType())
	}

	if use.StagingPath == wanted.TargetPath {
		return nil, rpc.Invalid("target_path: %s is where the volume is staged", wanted.TargetPath)
	}

	return use, nil
}

// checkAnotherTarget returns FAILED_PRECONDITION if the volume is published and the access
// mode of an existing publication or of the wanted one allows only one target on this node.
func checkAnotherTarget(u *staged.Volume, wanted staged.Publication) error {
	if len(u.Publications) == 0 {
		return nil
	}

	alone := wanted.Capability.SingleTarget() ||
		slices.ContainsFunc(u.Publications, func(p staged.Publication) bool { return p.Capability.SingleTarget() })
	if !alone {
		return nil
	}

	return rpc.Errorf(codes.FailedPrecondition, "it is published at %s with access mode %s; unpublish it there first",
		u.Publications[0].TargetPath, u.Publications[0].Capability.Mode)
}

// NodeUnpublishVolume unmounts the volume from the target path, and removes
// the path if it was made for it (CSI v1.13, NodeUnpublishVolume).
func (s *Service) NodeUnpublishVolume(
	ctx context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	id, target := request.GetVolumeId(), plain(request.GetTargetPath())
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, rpc.Status(err)
	}

	if target == "" {
		return nil, rpc.Invalid("target_path is missing")
	}

	defer s.prober.ProbeAfterOperation(id)

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(id, target, "NodeUnpublishVolume", request),
		func(ctx context.Context) (*csi.NodeUnpublishVolumeResponse, error) {
			unpublish := s.unpublish
			if _, found := s.ephemeral.At(id, target); found {
				unpublish = s.ephemeral.Unpublish
			}

			if err := unpublish(ctx, id, target); err != nil {
				return nil, fmt.Errorf("unpublish volume %s from %s: %w", id, target, err)
			}

			return &csi.NodeUnpublishVolumeResponse{}, nil
		})
}

func (s *Service) unpublish(ctx context.Context, id, targetPath string) error {
	target, err := s.dirs.Target(targetPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if target != nil {
		defer target.Close()
	}

	use, known := s.stagedVolumes.Get(id)
	if known {
		if publication, published := use.PublicationAt(targetPath); published {
			return s.endPublication(ctx, use, publication, target)
		}
	}

	if target != nil {
		if found, err := s.ephemeral.RemoveUnrecorded(ctx, id, target); found || err != nil {
			return err
		}

		if err := s.unmountUnrecorded(id, use, target); err != nil {
			return err
		}
	}

	return errors.Join(s.access.RemoveUnrecordedAssignment(ctx, id, targetPath), s.unstageLast(ctx, id))
}

// endPublication removes a recorded publication, and its record last.
func (s *Service) endPublication(ctx context.Context, use *staged.Volume, publication staged.Publication, target *mount.Target) error {
	if err := s.access.For(use).Unpublish(use, publication, target); err != nil {
		return err
	}

	left := use.WithoutPublication(publication.TargetPath)
	if err := s.access.DetachUnusedReader(ctx, left); err != nil {
		return err
	}

	return errors.Join(s.stagedVolumes.PutLazily(left), s.unstageLast(ctx, use.VolumeID))
}

// unmountUnrecorded unmounts a publication that has no record, if the mount is certainly the
// volume's. Use is nil if the volume has no record at all.
func (s *Service) unmountUnrecorded(id string, use *staged.Volume, target *mount.Target) error {
	if use != nil && use.StagingPath == target.Path() {
		return nil // the mount is the staging
	}

	point, mounted, err := target.Mounted()
	if err != nil || !mounted || !volume.IsID(id) {
		return err
	}

	for _, lost := range access.UnrecordedVolumes(id) {
		isVolume, err := s.access.Observer().IsMountOf(lost, point)
		if err != nil {
			return err
		}

		if isVolume {
			return s.access.UnmountAllLayers(lost, target)
		}
	}

	return nil
}

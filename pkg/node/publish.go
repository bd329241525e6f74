package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

const (
	targetDirectoryMode = 0o750
	targetFileMode      = 0o600
)

// NodePublishVolume makes a staged volume appear at the target path: a bind
// mount of the filesystem, or of the device's node (CSI v1.13,
// NodePublishVolume).
func (s *Service) NodePublishVolume(
	ctx context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	if volume.IsEphemeral(request.GetVolumeContext()) {
		return s.publishEphemeral(ctx, request)
	}

	id := request.GetVolumeId()

	wanted, err := s.parsePublish(request)
	if err == nil {
		err = s.checkMountGroup(wanted.Capability)
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

	// What can never be right is said so, whatever the volume's state.
	if err := s.places.CheckPath(request.GetTargetPath()); err != nil {
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
		return s.republish(ctx, use, existing, wanted)
	}

	if err := checkAnotherTarget(use, wanted); err != nil {
		return err
	}

	if _, err := s.poolOf(use); err != nil {
		return err
	}

	place, err := s.places.Target(wanted.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the target's parent directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer place.Close()

	if err := s.clear(use, place); err != nil {
		return err
	}

	_, occupied, err := place.Stat()
	if err != nil {
		return err
	}

	wanted.Made = !occupied

	published := use.Clone()
	published.Publications = append(published.Publications, wanted)

	if err := s.stagedVolumes.Put(ctx, published); err != nil {
		return err
	}

	if err := s.bind(ctx, published, wanted, place); err != nil {
		return errors.Join(err, s.removeTarget(use, wanted), s.stagedVolumes.PutLazily(use), s.releaseReader(ctx, use))
	}

	return nil
}

// republish answers a call for a target at which the volume is published.
func (s *Service) republish(ctx context.Context, use *staged.Volume, existing, wanted staged.Publication) error {
	if err := checkSamePublication(existing, wanted); err != nil {
		return err
	}

	if use.IsDirect() {
		return s.republishDirect(ctx, use, existing)
	}

	return s.uncovered(use, existing)
}

// stagedUse returns the record of a volume that really is staged there.
func (s *Service) stagedUse(id, stagingPath string, wanted staged.Publication) (*staged.Volume, error) {
	use, known := s.stagedVolumes.Get(id)
	staged := false

	if known {
		var err error
		if staged, err = s.staged(use); err != nil {
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

// uncovered returns FAILED_PRECONDITION when a pod would find something else.
func (s *Service) uncovered(use *staged.Volume, existing staged.Publication) error {
	if mounted, err := s.mountedAt(use, existing.TargetPath); mounted || err != nil {
		return err
	}

	return rpc.Errorf(codes.FailedPrecondition, "something else is mounted over it at %s; unmount that first", existing.TargetPath)
}

// checkSamePublication returns ALREADY_EXISTS unless the existing publication has the wanted
// capability and readonly flag.
func checkSamePublication(p, wanted staged.Publication) error {
	if p.ReadOnly == wanted.ReadOnly && p.Capability.Equal(wanted.Capability) {
		return nil
	}

	return rpc.Errorf(codes.AlreadyExists, "it is published there with another capability or readonly flag; unpublish it first")
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

// bind makes the target and mounts onto it.
func (s *Service) bind(ctx context.Context, use *staged.Volume, wanted staged.Publication, place *mount.Target) error {
	if use.IsDirect() {
		return s.assign(ctx, use, wanted, place, s.config.Direct.Root.Put)
	}

	makeTarget := func() (bool, error) { return place.MakeDir(targetDirectoryMode) }
	if wanted.Capability.Block {
		makeTarget = func() (bool, error) { return place.MakeFile(targetFileMode) }
	}

	if _, err := makeTarget(); err != nil {
		return err
	}

	options, err := mountOptions(wanted.Capability, wanted.ReadOnly || use.IsReadOnly())
	if err != nil {
		return err
	}

	source, err := s.source(ctx, use, wanted)
	if err != nil {
		return err
	}
	defer source.Close()

	if err := s.limitNew(ctx, use, wanted); err != nil {
		return err
	}

	tree, err := mount.Bind(source, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	if err := s.giveGroup(ctx, wanted.Capability, options, tree); err != nil {
		return err
	}

	return tree.Attach(place)
}

// source opens what is bound to the target: the staged filesystem, or the node
// of a device that takes only what the publication may do.
func (s *Service) source(ctx context.Context, use *staged.Volume, wanted staged.Publication) (*os.File, error) {
	if !wanted.Capability.Block {
		staging, err := s.places.Target(use.StagingPath)
		if err != nil {
			return nil, err
		}
		defer staging.Close()

		return staging.Open()
	}

	number, err := s.deviceFor(ctx, use, wanted)
	if err != nil {
		return nil, err
	}

	node, err := os.OpenFile(s.loops.Path(number), unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open the node of the device: %w", err)
	}

	return node, nil
}

// deviceFor is the device of a publication, which takes only what that may do.
func (s *Service) deviceFor(ctx context.Context, use *staged.Volume, wanted staged.Publication) (int, error) {
	if wanted.ReadOnly && !use.IsReadOnly() {
		return s.attachBlock(ctx, use, true)
	}

	known, err := s.devices.get(use.VolumeID)
	if err == nil && known.staged == none {
		err = rpc.Errorf(codes.FailedPrecondition, "its device was taken away; unstage it and stage it again")
	}

	return known.staged, err
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
			if _, ephemeral := s.inline.at(id, target); ephemeral {
				unpublish = s.unpublishEphemeral
			}

			if err := unpublish(ctx, id, target); err != nil {
				return nil, fmt.Errorf("unpublish volume %s from %s: %w", id, target, err)
			}

			return &csi.NodeUnpublishVolumeResponse{}, nil
		})
}

func (s *Service) unpublish(ctx context.Context, id, target string) error {
	place, err := s.places.Target(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if place != nil {
		defer place.Close()
	}

	use, known := s.stagedVolumes.Get(id)
	publication, published := staged.Publication{}, false

	if known {
		publication, published = use.PublicationAt(target)
	}

	if place != nil && !published {
		lost, found, err := s.lostEphemeral(id, place)
		if err != nil {
			return err
		}

		if found {
			return s.destroyEphemeral(ctx, lost)
		}
	}

	if place != nil {
		if err := s.unmountTarget(id, use, published, place); err != nil {
			return err
		}
	}

	if !published {
		return errors.Join(s.withdrawLost(ctx, id, target), s.unstageLast(ctx, id))
	}

	if err := s.removeTarget(use, publication); err != nil {
		return err
	}

	left := use.WithoutPublication(target)
	if err := s.releaseReader(ctx, left); err != nil {
		return err
	}

	return errors.Join(s.stagedVolumes.PutLazily(left), s.unstageLast(ctx, id))
}

// unmountTarget unmounts what is the volume's; without a record of it, only
// what is certainly so.
func (s *Service) unmountTarget(id string, use *staged.Volume, published bool, place *mount.Target) error {
	if published {
		return s.clear(use, place)
	}

	if use != nil && use.StagingPath == place.Path() {
		return nil // what is mounted there is no publication
	}

	point, mounted, err := place.Mounted()
	if err != nil || !mounted || !volume.IsID(id) {
		return err
	}

	for _, lost := range unknownUses(id) {
		ours, err := s.ours(lost, point)
		if err != nil {
			return err
		}

		if ours {
			return s.clear(lost, place)
		}
	}

	return nil
}

// unknownUses are what a volume may be that no record tells of.
func unknownUses(id string) []*staged.Volume {
	return []*staged.Volume{
		{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage}},
		{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingDirectory}},
		{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}},
	}
}

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/remount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
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

	wanted, err := s.config.parsePublish(request, s.config.checkPath)
	if err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(wanted.volumeID)

	call := operation.VolumeCall(wanted.volumeID, wanted.TargetPath, "NodePublishVolume", request)
	doing := fmt.Sprintf("publish volume %s at %s", wanted.volumeID, wanted.TargetPath)

	return run(ctx, &s.config.Common, call, doing, &csi.NodePublishVolumeResponse{}, func(ctx context.Context) error {
		return s.lifecycle.stageAndPublish(ctx, wanted)
	})
}

// publishEphemeral is NodePublishVolume of an inline ephemeral volume, which it creates.
func (s *Service) publishEphemeral(
	ctx context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	target := plain(request.GetTargetPath())
	if err := cmp.Or(rpc.CheckVolumeID(request.GetVolumeId()), rpc.CheckPresent("target_path", target)); err != nil {
		return nil, err
	}

	wanted, err := s.ephemeral.Parse(request, target)
	if err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(wanted.VolumeID)

	call := operation.VolumeCall(wanted.VolumeID, target, "NodePublishVolume", request)
	doing := fmt.Sprintf("publish ephemeral volume %s at %s", wanted.VolumeID, target)

	return run(ctx, &s.config.Common, call, doing, &csi.NodePublishVolumeResponse{}, func(ctx context.Context) error {
		return s.ephemeral.Publish(ctx, wanted)
	})
}

// publicationRequest is a valid NodePublishVolumeRequest.
type publicationRequest struct {
	staged.Publication

	volumeID, stagingPath string
	// unstaged is the volume that the service stages first, without its path; nil where the CO stages it. inline is
	// set for a Simulated only: Service has publishEphemeral.
	unstaged *staged.Volume
	inline   bool
}

// parsePublish parses a request, and refuses what is invalid in any state.
func (c *Common) parsePublish(
	request *csi.NodePublishVolumeRequest, checkPath func(field, path string) error,
) (publicationRequest, error) {
	id, target := request.GetVolumeId(), request.GetTargetPath()

	err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckPresent("target_path", target), checkPath("target_path", target))
	if err != nil {
		return publicationRequest{}, err
	}

	given, err := volume.ParseCapability(request.GetVolumeCapability())
	if err != nil {
		return publicationRequest{}, rpc.Invalid("volume_capability: %w", err)
	}

	if !volume.IsID(id) {
		return publicationRequest{}, rpc.Errorf(codes.NotFound, "volume %s does not exist", id)
	}

	wanted := publicationRequest{
		volumeID: id, stagingPath: plain(request.GetStagingTargetPath()), inline: volume.IsEphemeral(request.GetVolumeContext()),
		Publication: staged.Publication{
			TargetPath: plain(target), Capability: given,
			ReadOnly: request.GetReadonly() || given.ReaderOnly(),
			Pod:      cgroup.PodUID(target, request.GetVolumeContext()),
		},
	}

	switch {
	case wanted.inline:
		wanted.unstaged, err = newEphemeral(request)
	case !c.Capabilities.Has(capability.StageUnstageVolume):
		wanted.unstaged, err = parseVolume(request)
	case wanted.stagingPath == "":
		err = rpc.Errorf(codes.FailedPrecondition, "staging_target_path is missing; stage the volume first and pass its path on")
	}

	return wanted, cmp.Or(err, c.Capabilities.CheckMountGroup(given))
}

// stageAndPublish publishes the volume, and stages it first where the CO does not. If that fails, it unstages a
// volume that it has staged and that has no publication.
func (l *lifecycle) stageAndPublish(ctx context.Context, wanted publicationRequest) error {
	stagingPath, err := l.stagingOf(ctx, wanted)
	if err == nil {
		err = l.Publish(ctx, wanted.volumeID, stagingPath, wanted.Publication)
	}

	if errors.Is(err, errNotStaged) {
		err = errors.Join(l.checkExists(ctx, wanted.volumeID), err)
	}

	if err != nil {
		return errors.Join(err, l.unstageLast(ctx, wanted.volumeID))
	}

	l.prober.StagedOrPublished(wanted.volumeID)

	return nil
}

// Publish publishes the volume that is staged at the path, unless it is published already. It is recorded before
// anything is mounted.
func (l *lifecycle) Publish(ctx context.Context, id, stagingPath string, wanted staged.Publication) error {
	v, err := l.stagedUse(id, stagingPath)
	if err != nil {
		return err
	}

	if v, err = l.prune(v); err != nil {
		return err
	}

	if existing, ok := v.PublicationAt(wanted.TargetPath); ok {
		if err := checkSamePublication(v, existing, wanted); err != nil {
			return err
		}

		return l.ways.For(v).Republish(ctx, v, existing)
	}

	if err := checkPublishable(&l.config.Common, v, wanted); err != nil {
		return err
	}

	if err := l.checkUsable(v); err != nil {
		return err
	}

	target, err := l.config.Dirs.Target(wanted.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the target's parent directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer target.Close()

	if err := l.ways.Targets.UnmountAllLayers(v, target); err != nil {
		return err
	}

	occupied, err := target.Exists()
	if err != nil {
		return err
	}

	wanted.Made = !occupied

	published := v.Clone()
	published.Publications = append(published.Publications, wanted)

	if err := l.volumes.Record(ctx, published); err != nil {
		return err
	}

	if err := l.publishRecorded(ctx, published, wanted, target); err != nil {
		return errors.Join(err, l.ways.For(v).Unpublish(v, wanted, nil), l.volumes.Staged.PutLazily(v),
			l.devices.DetachUnusedReader(ctx, v))
	}

	return l.config.Point.At(ctx, operation.VolumePublished, id)
}

func (l *lifecycle) publishRecorded(ctx context.Context, v *staged.Volume, wanted staged.Publication, target *mount.Target) error {
	if err := l.config.Point.At(ctx, operation.PublicationRecorded, v.VolumeID); err != nil {
		return err
	}

	return l.ways.For(v).Publish(ctx, v, wanted, target)
}

// checkUsable returns an error for a staged volume that no pod could use.
func (l *lifecycle) checkUsable(v *staged.Volume) error {
	if _, err := l.pools.Of(v); err != nil {
		return err
	}

	return l.ways.CheckNotShutDown(v)
}

// stagedUse returns the record of a volume that really is staged there.
func (l *lifecycle) stagedUse(id, stagingPath string) (*staged.Volume, error) {
	v, isStaged, err := l.stagedNow(id)

	switch {
	case err != nil:
		return nil, err
	case !isStaged:
		return nil, errNotStaged
	case v.StagingPath != stagingPath:
		return nil, rpc.Errorf(codes.FailedPrecondition, "it is staged at %s, not at %s", v.StagingPath, stagingPath)
	default:
		return v, nil
	}
}

// errNotStaged is returned by NodePublishVolume for a volume that is not staged.
var errNotStaged = rpc.Errorf(codes.FailedPrecondition, "it is not staged; call NodeStageVolume first")

// checkExists returns NOT_FOUND if no pool has the volume.
func (l *lifecycle) checkExists(ctx context.Context, id string) error {
	exists, err := l.prober.IsStored(ctx, id)
	if err != nil || exists {
		return nil //nolint:nilerr // it may exist
	}

	return rpc.Errorf(codes.NotFound, "volume %s does not exist", id)
}

// checkSamePublication returns ALREADY_EXISTS unless a volume that is published at the wanted path is
// published as wanted.
func checkSamePublication(v *staged.Volume, existing, wanted staged.Publication) error {
	if differences := v.Differences(existing, wanted); differences != "" {
		return rpc.Errorf(codes.AlreadyExists, "it is published there with another capability or readonly flag: %s; unpublish it first",
			differences)
	}

	return nil
}

// checkPublishable returns FAILED_PRECONDITION if the volume does not have the wanted capability,
// or must not have another target, and INVALID_ARGUMENT for the path where it is staged.
func checkPublishable(config *Common, v *staged.Volume, wanted staged.Publication) error {
	if v.StagingPath == wanted.TargetPath {
		return rpc.Invalid("target_path: %s is where the volume is staged", wanted.TargetPath)
	}

	if v.Capability.Block != wanted.Capability.Block {
		return rpc.Errorf(codes.FailedPrecondition, "volume_capability: it is not staged for this access type")
	}

	if err := checkCapability(config, v, wanted.Capability); err != nil {
		return rpc.Errorf(codes.FailedPrecondition, "volume_capability: %w", err)
	}

	if err := checkSELinuxContexts(v, wanted.Capability); err != nil {
		return err
	}

	return checkAnotherTarget(v, wanted)
}

// checkSELinuxContexts returns FAILED_PRECONDITION unless the volume is mounted with the wanted SELinux contexts: all mounts
// of a filesystem have the same ones. They are not named, since mount flags may be sensitive.
func checkSELinuxContexts(v *staged.Volume, wanted volume.Capability) error {
	if v.Capability.SELinuxContexts() == wanted.SELinuxContexts() {
		return nil
	}

	return rpc.Errorf(codes.FailedPrecondition, "volume_capability: it is mounted with other SELinux contexts (context=) than those "+
		"in mount_flags, and a filesystem can have only one set of them; unpublish and unstage it first")
}

// checkAnotherTarget returns FAILED_PRECONDITION if the volume is published and the access
// mode of an existing publication or of the wanted one allows only one target on this node.
func checkAnotherTarget(v *staged.Volume, wanted staged.Publication) error {
	if len(v.Publications) == 0 {
		return nil
	}

	alone := wanted.Capability.SingleTarget() ||
		slices.ContainsFunc(v.Publications, func(p staged.Publication) bool { return p.Capability.SingleTarget() })
	if !alone {
		return nil
	}

	return rpc.Errorf(codes.FailedPrecondition, "it is published at %s with access mode %s; unpublish it there first",
		v.Publications[0].TargetPath, v.Publications[0].Capability.Mode)
}

// NodeUnpublishVolume unmounts the volume from the target path, and removes
// the path if it was made for it (CSI v1.13, NodeUnpublishVolume).
func (s *Service) NodeUnpublishVolume(
	ctx context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	id, target := request.GetVolumeId(), plain(request.GetTargetPath())
	if err := cmp.Or(rpc.CheckVolumeID(id), rpc.CheckPresent("target_path", target)); err != nil {
		return nil, err
	}

	defer s.prober.ProbeAfterOperation(id)

	call := operation.VolumeCall(id, target, "NodeUnpublishVolume", request)
	doing := fmt.Sprintf("unpublish volume %s from %s", id, target)

	return run(ctx, &s.config.Common, call, doing, &csi.NodeUnpublishVolumeResponse{}, func(ctx context.Context) error {
		return s.lifecycle.unpublish(ctx, id, target)
	})
}

func (l *lifecycle) unpublish(ctx context.Context, id, targetPath string) error {
	if _, found := l.volumes.Inline.At(id, targetPath); found {
		return l.ephemeral.Unpublish(ctx, id, targetPath)
	}

	target, err := l.config.Dirs.Target(targetPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if target != nil {
		defer target.Close()
	}

	if err := remount.End(ctx, l.volumes.Staged, l.prober, id, targetPath); err != nil {
		return err
	}

	v, known := l.volumes.Staged.Get(id)
	if known {
		if publication, published := v.PublicationAt(targetPath); published {
			return l.endPublication(ctx, v, publication, target)
		}
	}

	if target != nil {
		if found, err := l.ephemeral.RemoveUnrecorded(ctx, id, target); found || err != nil {
			return err
		}

		if err := l.unmountUnrecorded(id, v, target); err != nil {
			return err
		}
	}

	return errors.Join(l.direct.Assignments.RemoveUnrecorded(ctx, id, targetPath), l.unstageLast(ctx, id))
}

// endPublication removes a recorded publication, and its record last.
func (l *lifecycle) endPublication(ctx context.Context, v *staged.Volume, publication staged.Publication, target *mount.Target) error {
	if err := l.ways.For(v).Unpublish(v, publication, target); err != nil {
		return err
	}

	left := v.WithoutPublication(publication.TargetPath)
	if err := l.devices.DetachUnusedReader(ctx, left); err != nil {
		return err
	}

	return errors.Join(l.volumes.Staged.PutLazily(left), l.unstageLast(ctx, v.VolumeID))
}

// unmountUnrecorded unmounts a publication that has no record, if the mount is certainly the
// volume's. V is nil if the volume has no record at all.
func (l *lifecycle) unmountUnrecorded(id string, v *staged.Volume, target *mount.Target) error {
	if v != nil && v.StagingPath == target.Path() {
		return nil // the mount is the staging
	}

	point, mounted, err := target.Mounted()
	if err != nil || !mounted || !volume.IsID(id) {
		return err
	}

	for _, lost := range access.UnrecordedVolumes(id) {
		isVolume, err := l.observe.IsMountOf(lost, point)
		if err != nil {
			return err
		}

		if isVolume {
			return l.ways.Targets.UnmountAllLayers(lost, target)
		}
	}

	return nil
}

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// ephemeralStep is what the size of an inline ephemeral volume is a multiple of.
const ephemeralStep = 4096

// publishEphemeral is NodePublishVolume of a volume that exists from its
// publication to its unpublication.
func (s *Service) publishEphemeral(
	ctx context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	wanted, err := s.parseEphemeral(request)
	if err != nil {
		return nil, rpc.Status(err)
	}

	id, target := wanted.VolumeID, wanted.Publication.TargetPath

	defer s.prober.ProbeAfterOperation(id)

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(id, target, "NodePublishVolume", request),
		func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
			if err := s.ensureEphemeral(ctx, wanted); err != nil {
				return nil, fmt.Errorf("publish ephemeral volume %s at %s: %w", id, target, err)
			}

			return &csi.NodePublishVolumeResponse{}, nil
		})
}

func (s *Service) parseEphemeral(request *csi.NodePublishVolumeRequest) (*Ephemeral, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, err
	}

	if request.GetTargetPath() == "" {
		return nil, rpc.Invalid("target_path is missing")
	}

	capability, err := s.parseEphemeralCapability(request.GetVolumeCapability())
	if err != nil {
		return nil, rpc.Invalid("volume_capability: %w", err)
	}

	parameters, size, err := volume.ParseEphemeral(request.GetVolumeContext())
	if err != nil {
		return nil, rpc.Invalid("volume_context: %w", err)
	}

	if _, named := request.GetVolumeContext()[volume.KeyPool]; !named {
		parameters.Pool = s.pools.Default()
	}

	if !s.pools.Has(parameters.Pool) {
		return nil, rpc.Invalid("volume_context: pool %q does not exist; there are %s",
			parameters.Pool, strings.Join(s.pools.Names(), ", "))
	}

	wanted := &Ephemeral{
		VolumeID: request.GetVolumeId(), SizeBytes: size, Parameters: parameters,
		Publication: staged.Publication{
			TargetPath: plain(request.GetTargetPath()), Capability: capability,
			ReadOnly: request.GetReadonly() || capability.ReaderOnly(),
		},
	}

	return wanted, s.completeEphemeral(wanted)
}

func (s *Service) parseEphemeralCapability(given *csi.VolumeCapability) (volume.Capability, error) {
	capability, err := volume.ParseCapability(given)
	if err != nil {
		return volume.Capability{}, err
	}

	options, err := mount.ParseFlags(capability.MountFlags)
	if err != nil {
		return volume.Capability{}, err
	}

	if options.PanicsOnError() {
		return volume.Capability{}, rpc.Invalid("mount_flags: the author of a pod must not make an error of its volume halt the node; " +
			"leave out errors=panic and fatal_errors=panic")
	}

	if err := s.config.Capabilities.CheckAccessMode(capability); err != nil {
		return volume.Capability{}, err
	}

	if capability.Block {
		return volume.Capability{}, rpc.Invalid("an inline ephemeral volume is mounted, it is no block device")
	}

	if !capability.SingleNode() {
		return volume.Capability{}, rpc.Invalid("access mode %s: an inline ephemeral volume is on one node only", capability.Mode)
	}

	return capability, s.checkMountGroup(capability)
}

// completeEphemeral decides filesystem and size, as CreateVolume does for other
// volumes.
func (s *Service) completeEphemeral(e *Ephemeral) error {
	e.SizeBytes = roundUp(e.SizeBytes)

	if e.Parameters.MkfsOptions != "" && !s.config.EphemeralMkfsOptions {
		return rpc.Invalid("volume_context: %s: an inline ephemeral volume takes none on this node (--ephemeral-mkfs-options=false); "+
			"leave it out, or use a claim and a StorageClass that has it", volume.KeyMkfsOptions)
	}

	if e.Parameters.Backing == volume.BackingImage {
		e.Parameters.FSType = e.use().FSType()

		if err := filesystem.CheckOptions(e.Parameters.FSType, strings.Fields(e.Parameters.MkfsOptions)); err != nil {
			return rpc.Invalid("volume_context: %s: %w", volume.KeyMkfsOptions, err)
		}

		made, err := filesystem.ByName(e.Parameters.FSType, s.config.Run)
		if err != nil {
			return rpc.Invalid("volume_capability: %w", err)
		}

		e.SizeBytes = max(e.SizeBytes, roundUp(made.MinimumBytes()))
	}

	if s.config.MaxVolumeBytes > 0 && e.SizeBytes > s.config.MaxVolumeBytes {
		return rpc.Errorf(codes.OutOfRange, "volume_context: %s: %d bytes are more than the largest volume has, %d (--max-volume-size)",
			volume.KeySize, e.SizeBytes, s.config.MaxVolumeBytes)
	}

	return nil
}

func roundUp(bytes int64) int64 { return (bytes + ephemeralStep - 1) / ephemeralStep * ephemeralStep }

// ensureEphemeral makes the volume unless it is there. What an earlier attempt
// or a reboot has left of it is useless and removed first.
func (s *Service) ensureEphemeral(ctx context.Context, wanted *Ephemeral) error {
	if existing, known := s.inline.Get(wanted.VolumeID); known {
		there, err := s.isEphemeralPublished(existing)
		if err != nil {
			return err
		}

		if there {
			return s.checkSameEphemeral(existing, wanted)
		}

		if err := s.destroyEphemeral(ctx, existing); err != nil {
			return err
		}
	}

	place, err := s.dirs.Target(wanted.Publication.TargetPath)
	if errors.Is(err, fs.ErrNotExist) {
		return rpc.Errorf(codes.FailedPrecondition, "the CO must make the target's parent directory: %w", err)
	}

	if err != nil {
		return err
	}
	defer place.Close()

	if wanted, err = s.recordEphemeral(ctx, wanted, place); err != nil {
		return err
	}

	s.prober.Observations().SetContentID(wanted.ContentID, wanted.VolumeID)

	if err := s.makeEphemeral(ctx, wanted, place); err != nil {
		return errors.Join(err, s.destroyEphemeral(ctx, wanted))
	}

	return nil
}

// checkSameEphemeral returns OK when the volume is what is wanted.
func (s *Service) checkSameEphemeral(existing, wanted *Ephemeral) error {
	if existing.Publication.TargetPath != wanted.Publication.TargetPath {
		return rpc.Errorf(codes.FailedPrecondition, "it is published at %s, and an ephemeral volume has one target; unpublish it there first",
			existing.Publication.TargetPath)
	}

	if existing.SizeBytes != wanted.SizeBytes || existing.Parameters != wanted.Parameters {
		return rpc.Errorf(codes.AlreadyExists, "it is published there with another volume_context; unpublish it first")
	}

	if err := checkSamePublication(existing.Publication, wanted.Publication); err != nil {
		return err
	}

	mounted, err := s.access.Observer().IsMountedAt(existing.use(), existing.Publication.TargetPath)
	if err != nil {
		return err
	}

	if !mounted {
		return rpc.Errorf(codes.FailedPrecondition, "something else is mounted over it; unmount that first")
	}

	return nil
}

// recordEphemeral records the volume before it is created, if the pool has free space.
func (s *Service) recordEphemeral(ctx context.Context, wanted *Ephemeral, place *mount.Target) (*Ephemeral, error) {
	point, mounted, err := place.Mounted()
	if err != nil {
		return nil, err
	}

	if mounted {
		return nil, rpc.Errorf(codes.FailedPrecondition, "%s is mounted there; unmount it first", point.Source)
	}

	_, occupied, err := place.Stat()
	if err != nil {
		return nil, err
	}

	// A copy: a retry that joins finds the request's own record as it was.
	recorded := *wanted
	recorded.Publication.Made = !occupied

	if recorded.ContentID, err = volume.NewID(); err != nil {
		return nil, err
	}

	held, err := s.access.PoolOf(recorded.use())
	if err != nil {
		return nil, err
	}

	return &recorded, s.config.Admission.Admit(ctx, func(check pool.Check) error {
		return s.inline.PutIf(ctx, &recorded, func() error { return check(held, recorded.SizeBytes, false) })
	})
}

// makeEphemeral creates the pool object, and mounts it at the target only.
func (s *Service) makeEphemeral(ctx context.Context, e *Ephemeral, place *mount.Target) error {
	options, err := access.MountOptions(e.Publication.Capability, e.Publication.ReadOnly)
	if err != nil {
		return err
	}

	makeTree := s.imageTree
	if !e.use().IsImage() {
		makeTree = s.directoryTree
	}

	tree, err := makeTree(ctx, e, options)
	if err != nil {
		return err
	}
	defer tree.Close()

	if err := access.SetGroup(ctx, e.Publication.Capability, options, tree); err != nil {
		return err
	}

	if _, err := place.MakeDir(access.TargetDirectoryMode); err != nil {
		return err
	}

	return tree.Attach(place)
}

// imageTree formats the image in place: if that is interrupted, the image is
// deleted and never read again.
func (s *Service) imageTree(ctx context.Context, e *Ephemeral, options mount.Options) (*mount.Detached, error) {
	made, err := filesystem.ByName(e.Parameters.FSType, s.config.Run)
	if err != nil {
		return nil, err
	}

	held, err := s.access.PoolOf(e.use())
	if err != nil {
		return nil, err
	}

	thick := e.Parameters.Provisioning == volume.Thick
	if err := held.EnsureImage(e.ContentID, e.SizeBytes, thick); err != nil {
		return nil, err
	}

	err = made.Make(ctx, held.VolumePath(e.ContentID, volume.BackingImage), filesystem.MakeOptions{
		BlockSize: e.Parameters.BlockSize, NoLazyInit: thick, Options: strings.Fields(e.Parameters.MkfsOptions),
	})
	if err != nil {
		return nil, fmt.Errorf("format as %s: %w", made.Name(), err)
	}

	// mkfs may have zeroed blocks of a thick image by punching holes.
	if err := held.EnsureImage(e.ContentID, e.SizeBytes, thick); err != nil {
		return nil, err
	}

	image, err := held.OpenImage(e.ContentID, access.OpenFlag(e.Publication.ReadOnly))
	if err != nil {
		return nil, err
	}
	defer image.Close()

	device, err := s.access.AttachImage(ctx, e.use(), image, e.Publication.ReadOnly, true)
	if err != nil {
		return nil, err
	}
	defer device.Close()

	return mount.Mount(device.Path, made.Name(), options)
}

func (s *Service) directoryTree(_ context.Context, e *Ephemeral, options mount.Options) (*mount.Detached, error) {
	held, err := s.access.PoolOf(e.use())
	if err != nil {
		return nil, err
	}

	if err := held.EnsureDirectory(e.ContentID); err != nil {
		return nil, err
	}

	return s.access.DirectoryTree(e.use(), options)
}

// unpublishEphemeral ends the volume that is at the target.
func (s *Service) unpublishEphemeral(ctx context.Context, id, target string) error {
	existing, known := s.inline.at(id, target)
	if !known {
		return nil
	}

	return s.destroyEphemeral(ctx, existing)
}

// destroyEphemeral ends the volume. Interrupted at any step it is the same call
// again: the record goes last.
func (s *Service) destroyEphemeral(ctx context.Context, e *Ephemeral) error {
	// The pod must end although its pool has failed.
	held, unavailable := s.access.PoolOf(e.use())
	if unavailable != nil && !errors.Is(unavailable, pool.ErrUnavailable) {
		return unavailable
	}

	object := e.object()
	if unavailable == nil {
		if err := checkMounts(held.ObjectPath(object), e.Parameters.Backing); err != nil {
			return err
		}
	}

	there, err := s.isEphemeralPublished(e)
	if err != nil {
		return err
	}

	if there {
		if err := s.unmountEphemeral(ctx, e); err != nil {
			return err
		}
	}

	if err := s.access.For(e.use()).Unpublish(e.use(), e.Publication, nil); err != nil {
		return err
	}

	if unavailable != nil {
		s.config.Log.Warn("the data of an ephemeral volume are removed when its pool is served again",
			"volume", e.VolumeID, "pool", e.Parameters.Pool, "error", unavailable)

		return nil
	}

	// What takes long or can't be removed goes in the background: the pod must end.
	if err := held.Discard(ctx, object); err != nil {
		return err
	}

	// After the record, so that a running probe does not restore it.
	defer s.prober.Observations().Forget(e.VolumeID)

	return s.inline.DeleteLazily(e.VolumeID)
}

// checkMounts returns FAILED_PRECONDITION while something is mounted below the
// directory of a volume: what is mounted there is not the volume's.
func checkMounts(directory string, backing volume.Backing) error {
	if backing != volume.BackingDirectory {
		return nil
	}

	found, err := mount.ListBeneath(directory)
	if err != nil {
		return err
	}

	if len(found) > 0 {
		return rpc.Errorf(codes.FailedPrecondition, "%s is mounted at %s, in the volume's directory; unmount it first",
			found[0].Source, found[0].Path)
	}

	return nil
}

func (s *Service) unmountEphemeral(ctx context.Context, e *Ephemeral) error {
	target, err := s.dirs.Target(e.Publication.TargetPath)
	if err != nil {
		return err
	}
	defer target.Close()

	return s.access.UnmountAndDetach(ctx, e.use(), target)
}

func (s *Service) isEphemeralPublished(e *Ephemeral) (bool, error) {
	use := e.use()

	return s.access.For(use).IsPublished(use, e.Publication)
}

// recoverEphemeral removes volumes that are not mounted any more, since a crash
// while it was made, or a reboot.
func (s *Service) recoverEphemeral(ctx context.Context, poolName string) {
	for _, each := range s.inline.All() {
		if each.Parameters.Pool != poolName {
			continue
		}

		call := rpc.VolumeCall(each.VolumeID, "", "recover", nil)

		_, err := operation.Do(ctx, s.ops, call, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.recoverOneEphemeral(ctx, each.VolumeID, each.Publication.TargetPath)
		})
		if err != nil {
			// As with others, one unhealthy volume must not affect the others.
			s.config.Log.Error("an ephemeral volume could not be recovered", "volume", each.VolumeID, "error", err)
		}
	}
}

func (s *Service) recoverOneEphemeral(ctx context.Context, id, target string) error {
	recorded, known := s.inline.at(id, target)
	if !known {
		return nil
	}

	there, err := s.isEphemeralPublished(recorded)
	if err != nil || there {
		return err
	}

	s.config.Log.Info("an ephemeral volume is not published any more", "volume", id, "target", target)

	return s.destroyEphemeral(ctx, recorded)
}

// lostEphemeral returns the ephemeral volume that is mounted at a target without a
// record: such a volume belongs to its target only.
func (s *Service) lostEphemeral(id string, at *mount.Target) (*Ephemeral, bool, error) {
	point, mounted, err := at.Mounted()
	if err != nil || !mounted {
		return nil, false, err
	}

	content := path.Base(strings.TrimSuffix(point.Root, "//deleted"))

	if number, isLoop := point.LoopDevice(); isLoop {
		attachment, _, err := s.loops.Attachment(number)
		if err != nil {
			return nil, false, err
		}

		content = strings.TrimSuffix(path.Base(attachment.BackingPath), layout.ImageSuffix)
	}

	if !volume.IsID(content) {
		return nil, false, nil
	}

	for _, known := range s.inline.All() {
		if known.ContentID == content {
			return nil, false, nil
		}
	}

	for _, backing := range []volume.Backing{volume.BackingImage, volume.BackingDirectory} {
		for _, name := range s.config.Ephemeral.Names() {
			lost := &Ephemeral{
				VolumeID: id, ContentID: content, Parameters: volume.Parameters{Pool: name, Backing: backing},
				Publication: staged.Publication{TargetPath: at.Path()},
			}

			found, err := s.access.Observer().IsMountOf(lost.use(), point)
			if err == nil && found {
				err = s.access.For(lost.use()).CheckStored(lost.use())
			}

			switch {
			case errors.Is(err, pool.ErrMissing): // it is not in this pool
			case err != nil:
				return nil, false, err
			case found:
				return lost, true, nil
			}
		}
	}

	return nil, false, nil
}

// object is the content of the volume in its pool.
func (e *Ephemeral) object() pool.Object {
	return pool.Object{ID: e.ContentID, Backing: e.Parameters.Backing}
}

// ProvisionedBytes returns the total size of inline ephemeral volumes in the pool.
func (s *Service) ProvisionedBytes(poolName string) int64 { return s.inline.provisionedBytes(poolName) }

// AddAllocated adds what inline ephemeral volumes have allocated in the pool.
func (s *Service) AddAllocated(ctx context.Context, poolName string, sum *pool.Allocation) error {
	for _, each := range s.inline.All() {
		if each.Parameters.Pool != poolName {
			continue
		}

		place, err := s.access.PoolOf(each.use())
		if err != nil {
			return err
		}

		if err := sum.Add(ctx, place, each.object()); err != nil {
			return err
		}
	}

	return nil
}

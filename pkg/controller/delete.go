package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// DeleteVolume makes a volume and its data be gone (CSI v1.13, DeleteVolume).
// An attached or published volume is refused with FAILED_PRECONDITION.
func (s *Service) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	return rpc.Run(ctx, s.config.Log, s.ops, rpc.VolumeCall(id, "", "DeleteVolume", request),
		func(ctx context.Context) (*csi.DeleteVolumeResponse, error) {
			if err := s.delete(ctx, id); err != nil {
				return nil, fmt.Errorf("delete volume %s: %w", id, err)
			}

			return &csi.DeleteVolumeResponse{}, nil
		})
}

func (s *Service) delete(ctx context.Context, id string) error {
	found, ok := s.catalog.Volumes.Get(id)
	if !ok {
		return nil
	}

	// While its pool cannot be used, the volume stays as it is.
	p, err := s.poolOf(found)
	if err != nil {
		return err
	}

	if !found.Phase.IsUnfinished() {
		if err := s.checkDeletable(ctx, p, found); err != nil {
			return err
		}

		// Once this is durable the volume is gone for every CO, whatever
		// happens to its bytes before the next start.
		marked, err := s.catalog.UpdateVolume(ctx, id, func(v *record.Volume) error {
			v.Phase = record.PhaseDeleting

			return s.checkNotAttachedOrUsed(v)
		})
		if err != nil {
			return err
		}

		found = marked
	}

	return catalog.IgnoreReadOnly(s.config.Removals.Do(ctx, s.removalOf(found)))
}

// checkDeletable returns FAILED_PRECONDITION while anything uses the volume.
func (s *Service) checkDeletable(ctx context.Context, p *pool.Pool, v *record.Volume) error {
	if err := s.checkNotAttachedOrUsed(v); err != nil {
		return err
	}

	if err := checkMounts(p, v.Object()); err != nil {
		return err
	}

	return s.checkDetached(ctx, p, v)
}

// checkMounts returns FAILED_PRECONDITION while something is mounted below an
// object's directory: what is mounted there is not the object's.
func checkMounts(p *pool.Pool, object pool.Object) error {
	if object.Backing != volume.BackingDirectory {
		return nil
	}

	found, err := mount.ListBeneath(p.ObjectPath(object))
	if err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}

	if len(found) > 0 {
		return rpc.Errorf(codes.FailedPrecondition, "%s is mounted at %s, in the directory of %s; unmount it first",
			found[0].Source, found[0].Path, object)
	}

	return nil
}

// checkDetached returns FAILED_PRECONDITION while a loop device has the volume's image: its space would
// stay in use, without a name, for as long as another mount namespace has the volume mounted.
func (s *Service) checkDetached(ctx context.Context, p *pool.Pool, v *record.Volume) error {
	if v.Parameters.Backing != volume.BackingImage {
		return nil
	}

	err := p.CheckDetached(ctx, v.ID)
	if errors.Is(err, pool.ErrInUse) {
		err = fmt.Errorf("%w: %s", err, s.config.LocalNode.DescribeHolders(v.ID))
	}

	return err
}

// checkNotAttachedOrUsed returns FAILED_PRECONDITION while the volume is in use.
func (s *Service) checkNotAttachedOrUsed(v *record.Volume) error {
	// Without the capability an earlier attachment could not be removed.
	if len(v.Attachments) > 0 && s.has(capability.PublishUnpublishVolume) {
		return rpc.Errorf(codes.FailedPrecondition, "volume %s is attached to %s; unpublish it there first",
			v.ID, strings.Join(v.NodeIDs(), ", "))
	}

	return s.checkNotUsedHere(v)
}

// checkNotUsedHere returns FAILED_PRECONDITION for a volume that is in use on this node, and
// InUse's error where that is unknown.
func (s *Service) checkNotUsedHere(v *record.Volume) error {
	user, used, err := s.config.LocalNode.InUse(v.ID)
	if err != nil || !used {
		return err
	}

	return rpc.Errorf(codes.FailedPrecondition, "volume %s is in use at %s; unpublish and unstage it first", v.ID, user)
}

// removalOf is the task that gives the space of a volume back that no CO sees any
// more, and forgets it.
func (s *Service) removalOf(v *record.Volume) removal.Task {
	return removal.Task{
		Pool: v.Parameters.Pool, Object: "volume " + v.ID,
		Remove: func(ctx context.Context) error {
			p, err := s.poolOf(v)
			if err != nil {
				return err
			}

			if err := p.Remove(ctx, v.Object()); err != nil {
				return err
			}

			if err := s.config.Point.At(ctx, operation.VolumeRemoved, v.ID, v.Name); err != nil {
				return err
			}

			// A power failure before that brings the bytes back; without the record they would stay.
			if err := p.SyncRemovals(); err != nil {
				return err
			}

			return s.forget(v.ID)
		},
	}
}

// recoverVolumes schedules what a crash has left half-done. Nothing is removed
// before the driver is ready.
func (s *Service) recoverVolumes() error {
	var unfinished []*record.Volume

	s.catalog.Volumes.Ascend("", func(_ string, v *record.Volume) bool {
		if v.Phase.IsUnfinished() {
			unfinished = append(unfinished, v)
		}

		return true
	})

	for _, v := range unfinished {
		s.config.Log.Info("removing an unfinished volume", "volume", v.ID, "phase", v.Phase)
		s.config.Removals.Add(s.removalOf(v))
	}

	return s.catalog.FreeVolumeNames(unfinished...)
}

// forget forgets a volume whose bytes are gone.
func (s *Service) forget(id string) error {
	s.monitor.Forget(id)
	s.config.LocalNode.Deleted(id)

	return s.catalog.ForgetVolume(id)
}

package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// DeleteVolume makes a volume and its data be gone (CSI v1.13, DeleteVolume).
// An attached or published volume is refused with FAILED_PRECONDITION.
func (s *Service) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, err
	}

	return operation.DoLogged(ctx, s.config.Log, s.ops, operation.VolumeCall(id, "", "DeleteVolume", request),
		func(ctx context.Context) (*csi.DeleteVolumeResponse, error) {
			return &csi.DeleteVolumeResponse{}, s.delete(ctx, id)
		})
}

func (s *Service) delete(ctx context.Context, id string) (err error) {
	defer errdefs.Wrapf(&err, "delete volume %s", id)

	found, ok := s.catalog.Volumes.Get(id)
	// One that is being created was not acknowledged.
	if !ok || found.Phase == record.PhaseCreating {
		return nil
	}

	// While its pool cannot be used, the volume stays as it is.
	p, err := s.catalog.PoolOf(found)
	if err != nil {
		return err
	}

	if !found.Phase.IsUnfinished() {
		if err := s.checkDeletable(ctx, p, found); err != nil {
			return err
		}

		// Once this is durable the volume is gone for every CO, whatever
		// happens to its bytes before the next start.
		found, err = s.catalog.UpdateVolume(ctx, id, func(v *record.Volume) error {
			v.Phase = record.PhaseDeleting

			return s.use.CheckNone(v)
		})
		if err != nil {
			return err
		}
	}

	return catalog.IgnoreReadOnly(s.remover.Queue.Do(ctx, s.remover.Volume(found)))
}

// checkDeletable returns FAILED_PRECONDITION while anything uses the volume.
func (s *Service) checkDeletable(ctx context.Context, p *pool.Pool, v *record.Volume) error {
	if err := s.use.CheckNone(v); err != nil {
		return err
	}

	if err := objects.CheckMounts(p, v.Object()); err != nil {
		return err
	}

	// A loop device that has the image would keep its space in use, without a name, for as long as another
	// mount namespace has the volume mounted.
	err := p.Backing(v.Parameters.Backing).CheckDetached(ctx, v.ID)
	if errors.Is(err, pool.ErrInUse) {
		err = fmt.Errorf("%w: %s", err, s.config.LocalNode.DescribeHolders(v.ID))
	}

	return err
}

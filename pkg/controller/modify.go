package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/controller/changes"
)

// ControllerModifyVolume changes mutable parameters of a volume, in use or not
// (CSI v1.13, ControllerModifyVolume).
func (s *Service) ControllerModifyVolume(
	ctx context.Context, request *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, err
	}

	if len(request.GetMutableParameters()) == 0 {
		return nil, rpc.Invalid("mutable_parameters are missing")
	}

	mutable, err := s.parseMutable(request.GetMutableParameters())
	if err != nil {
		return nil, err
	}

	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	wanted := changes.Request{Mutable: mutable}
	// What is wrong with this request alone is no other's failure.
	if err := s.changes.Check(ctx, found, wanted); err != nil {
		return nil, err
	}

	if _, err := s.changes.Make(ctx, found, wanted); err != nil {
		return nil, err
	}

	return &csi.ControllerModifyVolumeResponse{}, nil
}

package controller

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// ValidateVolumeCapabilities confirms what the volume can do, or says in the
// message why not (CSI v1.13, ValidateVolumeCapabilities).
func (s *Service) ValidateVolumeCapabilities(
	_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, rpc.Invalid("volume_capabilities are missing")
	}

	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if given := request.GetParameters(); len(given) > 0 {
		parameters, err := s.parseParameters(given)
		if _, named := given[volume.KeyFSType]; !named {
			// It came with a capability then.
			parameters.FSType = found.Parameters.FSType
		}

		if err != nil || found.ApplyClaim(parameters) != found.Parameters {
			return notConfirmed("the volume was made with other parameters")
		}
	}

	if given := request.GetVolumeContext(); len(given) > 0 && !found.HasContext(given) {
		return notConfirmed("the volume has another volume_context")
	}

	for _, each := range request.GetVolumeCapabilities() {
		err := s.checkCapability(each, found)
		if errors.Is(err, volume.ErrIncomplete) {
			return nil, rpc.Invalid("volume_capabilities: %w", err)
		}

		if err != nil {
			return notConfirmed(err.Error())
		}
	}

	mutable, err := s.parseMutable(request.GetMutableParameters())
	if err != nil || !found.Mutable.With(mutable).Equal(found.Mutable) {
		return notConfirmed("the volume has other mutable_parameters")
	}

	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      request.GetVolumeContext(),
			VolumeCapabilities: request.GetVolumeCapabilities(),
			Parameters:         request.GetParameters(),
			MutableParameters:  request.GetMutableParameters(),
		},
	}, nil
}

func notConfirmed(message string) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Message: shorten.Text(message, shorten.MaxBytes)}, nil
}

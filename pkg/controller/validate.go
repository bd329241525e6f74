package controller

import (
	"cmp"
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
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, err
	}

	wanted, unsupported, err := s.parseValidated(request.GetVolumeCapabilities())
	if err != nil {
		return nil, err
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

	for _, each := range wanted {
		unsupported = cmp.Or(unsupported, s.checkCapability(each, found))
	}

	if unsupported != nil {
		return notConfirmed(unsupported.Error())
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

// parseValidated returns why no volume has one of the capabilities as unsupported. Error: INVALID_ARGUMENT for one
// that lacks a part.
func (p *parser) parseValidated(given []*csi.VolumeCapability) (wanted []volume.Capability, unsupported, err error) {
	if len(given) == 0 {
		return nil, nil, rpc.Invalid("volume_capabilities are missing")
	}

	for _, each := range given {
		parsed, err := p.parseCapability(each)
		if errors.Is(err, volume.ErrIncomplete) {
			return nil, nil, rpc.Invalid("volume_capabilities: %w", err)
		}

		wanted, unsupported = append(wanted, parsed), cmp.Or(unsupported, err)
	}

	return wanted, unsupported, nil
}

func notConfirmed(message string) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Message: shorten.Text(message, shorten.MaxBytes)}, nil
}

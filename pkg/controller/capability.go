package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
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
		parameters, _, err := s.choosePool(given)
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

	if given := request.GetMutableParameters(); len(given) > 0 {
		mutable, err := s.parseMutable(given)
		if err != nil || !found.Mutable.With(mutable).Equal(found.Mutable) {
			return notConfirmed("the volume has other mutable_parameters")
		}
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

// checkCapability refuses, with volume.ErrCapability, a capability that an existing volume cannot
// have.
func (s *Service) checkCapability(given *csi.VolumeCapability, to *record.Volume) error {
	parsed, err := s.parseCapability(given, to.Parameters)
	if err != nil || to.IsRaw() {
		return err
	}

	return to.Parameters.CheckFSType(parsed)
}

// parseCapability refuses a capability that a volume with these parameters
// can't have, with volume.ErrCapability.
func (s *Service) parseCapability(given *csi.VolumeCapability, parameters volume.Parameters) (volume.Capability, error) {
	parsed, err := volume.ParseCapability(given)
	if err != nil {
		return volume.Capability{}, err
	}

	if err := s.config.Capabilities.CheckAccessMode(parsed); err != nil {
		return volume.Capability{}, err
	}

	if _, err := mount.ParseFlags(parsed.MountFlags); err != nil {
		return volume.Capability{}, fmt.Errorf("%w: %w", volume.ErrCapability, err)
	}

	return parsed, parameters.CheckCapability(parsed, s.config.Shared)
}

func (s *Service) parseCapabilities(
	given []*csi.VolumeCapability, parameters volume.Parameters,
) ([]volume.Capability, error) {
	parsed := make([]volume.Capability, 0, len(given))
	fsType := ""

	for _, each := range given {
		capability, err := s.parseCapability(each, parameters)
		if err != nil {
			return nil, err
		}

		if !capability.Block {
			wanted := fsTypeOf(parameters, capability)
			if fsType != "" && wanted != fsType {
				return nil, fmt.Errorf("%w: a volume can't be both %s and %s", volume.ErrCapability, fsType, wanted)
			}

			fsType = wanted
		}

		parsed = append(parsed, capability)
	}

	return parsed, nil
}

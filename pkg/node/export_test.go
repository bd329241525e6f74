package node

import (
	"context"

	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/direct"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Used are the volumes in use.
func (s *Service) Used() staged.Volumes { return s.volumes }

// Direct is the access of direct volumes, and Raw their devices.
func (s *Service) Direct() *direct.Access { return s.direct }

// Raw are the devices of raw-block and direct volumes.
func (s *Service) Raw() *device.Raw { return s.devices.Raw() }

// Do runs do as an operation on the volume.
func (s *Service) Do(ctx context.Context, id string, do func(context.Context) error) error {
	return s.own.run(ctx, id, "check", do)
}

// RevokeLost revokes the assignments of a volume whose devices are gone, as a probe does.
func (s *Service) RevokeLost(ctx context.Context, v *staged.Volume) error {
	lost, err := s.direct.Assignments.HasLost(v)
	if err != nil || !lost {
		return err
	}

	return s.revokeLost(ctx, v.VolumeID)
}

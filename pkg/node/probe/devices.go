package probe

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// probeRawDevices probes the devices of a raw-block or direct volume.
func (s *probeState) probeRawDevices(ctx context.Context) error {
	release, err := s.prober.pools.Acquire(ctx, s.volume.Parameters.Pool)
	if err != nil {
		return err
	}
	defer release()

	devices, err := s.prober.config.Raw.Found(s.volume.VolumeID)
	if err != nil {
		return err
	}

	if devices.ReadOnly != device.None {
		if _, err := s.probeRawDevice(devices.ReadOnly, devices.ReadOnlySequence); err != nil {
			return err
		}
	}

	found, err := s.probeRawDevice(devices.Staged, devices.StagedSequence)
	if err != nil || found == nil {
		return err
	}

	s.device = found
	s.attached = &Attachment{Number: devices.Staged, Sequence: found.Sequence, deviceBytes: found.SizeBytes}
	s.usage = &health.Usage{Bytes: health.Amount{Total: found.SizeBytes}}

	return nil
}

// probeRawDevice adds a finding and returns nil for a device that is not the volume's any
// more, also where another image is attached to the number.
func (s *probeState) probeRawDevice(number int, sequence uint64) (*loop.Status, error) {
	if number == device.None {
		s.addDetached()

		return nil, nil //nolint:nilnil // documented: the finding says it
	}

	found, attached, err := s.prober.config.Loops.Status(number)
	if err != nil {
		return nil, err
	}

	if !attached || found.Sequence != sequence {
		s.addDetached()

		return nil, nil //nolint:nilnil // as above
	}

	if found.AutoClear {
		s.addDetaching(number, sequence)
	}

	return &found, nil
}

// revokeLostDevices is the one change that a probe makes itself: until it is done, a pod may
// be given another volume, to which the kernel has given the device's number.
func (c *Config) revokeLostDevices(ctx context.Context, v *staged.Volume) error {
	lost, err := c.Assignments.HasLost(v)
	if err != nil || !lost {
		return err
	}

	return c.Revoke(ctx, v.VolumeID)
}

package probe

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// probeRawDevices probes the devices of a raw-block or direct volume.
func (s *probeState) probeRawDevices(ctx context.Context) error {
	release, err := s.prober.pools.Acquire(ctx, s.volume.Parameters.Pool)
	if err != nil {
		return err
	}
	defer release()

	devices, err := s.prober.config.Volumes.RawDevices(s.volume.VolumeID)
	if err != nil {
		return err
	}

	if devices.ReadOnly != noDevice {
		if _, err := s.probeRawDevice(devices.ReadOnly, devices.ReadOnlySequence); err != nil {
			return err
		}
	}

	device, err := s.probeRawDevice(devices.Staged, devices.StagedSequence)
	if err != nil || device == nil {
		return err
	}

	s.device = device
	s.attached = &Attachment{Number: devices.Staged, Sequence: device.Sequence, deviceBytes: device.SizeBytes}
	s.usage = &health.Usage{Bytes: health.Amount{Total: device.SizeBytes}}

	return nil
}

// probeRawDevice adds a finding and returns nil for a device that is not the volume's any
// more, also where another image is attached to the number.
func (s *probeState) probeRawDevice(number int, sequence uint64) (*loop.Status, error) {
	if number == noDevice {
		s.addDetached()

		return nil, nil //nolint:nilnil // documented: the finding says it
	}

	device, attached, err := s.prober.config.Loops.Status(number)
	if err != nil {
		return nil, err
	}

	if !attached || device.Sequence != sequence {
		s.addDetached()

		return nil, nil //nolint:nilnil // as above
	}

	if device.AutoClear {
		s.addDetaching(number, sequence)
	}

	return &device, nil
}

// revokeLostDevices is the one change that a probe makes itself: until it is done, a pod may
// be given another volume, to which the kernel has given the device's number.
func (s *probeState) revokeLostDevices(ctx context.Context) error {
	return s.prober.config.Volumes.RevokeLostDevices(ctx, s.volume)
}

func (s *probeState) addDetached() {
	s.unsettled = true
	s.add(health.DeviceMissing, "its image was detached from its loop device; unpublish and unstage it, then stage it again")
}

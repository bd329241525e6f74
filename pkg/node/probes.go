package node

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Prober probes the volumes on this node.
func (s *Service) Prober() *probe.Prober { return s.prober }

// leave deletes the record of a volume that was unstaged, and then its last observation: in
// this order, so that a probe that is running does not restore the observation. A volume
// whose staging fails keeps its observation.
func (s *Service) leave(record *staged.Volume) error {
	defer s.prober.Observations().Forget(record.VolumeID)

	return s.forget(record)
}

// probedVolumes implements probe.Volumes.
type probedVolumes struct{ service *Service }

func (v probedVolumes) InUse(id string) (*staged.Volume, staged.Record, bool) {
	if record, ok := v.service.stagedVolumes.Get(id); ok {
		return record, record, true
	}

	if inline, ok := v.service.ephemeral.Get(id); ok {
		used := inline.StagedVolume()

		return used, inline, true
	}

	return nil, nil, false
}

func (v probedVolumes) IDsInUse() []string {
	records, ephemerals := v.service.stagedVolumes.All(), v.service.ephemeral.All()
	ids := make([]string, 0, len(records)+len(ephemerals))

	for _, record := range records {
		ids = append(ids, record.VolumeID)
	}

	for _, inline := range ephemerals {
		ids = append(ids, inline.VolumeID)
	}

	return ids
}

func (v probedVolumes) PoolOf(record *staged.Volume) (*pool.Pool, error) {
	return v.service.access.PoolOf(record)
}

func (v probedVolumes) RawDevices(volumeID string) (probe.RawDevices, error) {
	devices, err := v.service.access.Attachments(volumeID)

	return probe.RawDevices{
		Staged: devices.Staged, StagedSequence: devices.StagedSequence,
		ReadOnly: devices.ReadOnly, ReadOnlySequence: devices.ReadOnlySequence,
	}, err
}

func (v probedVolumes) HadRawDevice(volumeID string, number int) bool {
	return v.service.access.HadDevice(volumeID, number)
}

func (v probedVolumes) GuestUsage(ctx context.Context, record *staged.Volume, deviceBytes int64) (mount.Usage, error) {
	return v.service.access.GuestUsage(ctx, record, deviceBytes)
}

func (v probedVolumes) RevokeLostDevices(ctx context.Context, record *staged.Volume) error {
	for _, publication := range record.Publications {
		lost, err := v.service.access.IsLostDeviceAssigned(record, publication)
		if err != nil {
			return err
		}

		if lost {
			return v.revokeLostDevices(ctx, record.VolumeID)
		}
	}

	return nil
}

func (v probedVolumes) revokeLostDevices(ctx context.Context, id string) error {
	return v.service.own.run(ctx, id, "revoke", func(context.Context) error {
		record, known := v.service.stagedVolumes.Get(id)
		if !known {
			return nil
		}

		return v.service.access.RevokeLostDevices(record)
	})
}

package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// guestUsage is what the guest says, or else the device's size, and the record
// that goes with that. Its errors are those of a volume that is not there.
func (s *Service) guestUsage(
	ctx context.Context, use *staged.Volume, path string, record *health.Record,
) ([]*csi.VolumeUsage, *health.Record, error) {
	device, err := s.deviceUsage(use.VolumeID, use, path)
	if err != nil {
		return nil, record, err
	}

	if len(use.Publications) == 0 {
		return device, s.answered(use.VolumeID, record, nil), nil
	}

	usage, err := s.askGuest(ctx, use, device[0].GetTotal())
	record = s.answered(use.VolumeID, record, err)

	if err != nil {
		return device, record, nil //nolint:nilerr // the record says it
	}

	return volumeUsages(usage), record, nil
}

// answered returns the record that goes with how a guest has answered just now,
// whatever was known before.
func (s *Service) answered(id string, record *health.Record, failure error) *health.Record {
	if (failure != nil) == record.Has(health.GuestStatsUnavailable) {
		return record
	}

	s.prober.Monitor().Suspect(id)

	now := probe.NewRecord(id, slices.DeleteFunc(entriesOf(record),
		func(entry health.Entry) bool { return entry.Reason == health.GuestStatsUnavailable })...)

	if failure != nil {
		now.Entries = append(now.Entries, probe.GuestFinding(failure))
	}

	return now
}

// entriesOf returns a copy.
func entriesOf(record *health.Record) []health.Entry {
	if record == nil {
		return nil
	}

	return slices.Clone(record.Entries)
}

// askGuest asks the guest that has the volume how full its filesystem is. The
// answer is a guest's: it may be more than the device has.
func (s *Service) askGuest(ctx context.Context, use *staged.Volume, deviceBytes int64) (mount.Usage, error) {
	entry, err := s.assigned(use)
	if err != nil {
		return mount.Usage{}, err
	}

	usage, err := s.config.Direct.Guest.Stats(ctx, entry)
	if err == nil && usage.Bytes.Total > deviceBytes {
		err = fmt.Errorf("%w: it says that the filesystem has %d bytes on a device of %d",
			kata.ErrNoAnswer, usage.Bytes.Total, deviceBytes)
	}

	if err != nil {
		s.config.Log.Debug("a guest gave no statistics", "volume", use.VolumeID, "error", err)
	}

	return usage, err
}

// assigned is what the runtime knows of the volume's one publication.
func (s *Service) assigned(use *staged.Volume) (kata.Entry, error) {
	publication := use.Publications[0]

	entry, ok, err := s.config.Direct.Root.Get(publication.TargetPath)
	if err == nil && !ok {
		err = fmt.Errorf("%w: what the runtime was told about %s is gone; publish it there again",
			kata.ErrNoSandbox, publication.TargetPath)
	}

	return entry, err
}

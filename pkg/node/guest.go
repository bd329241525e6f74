package node

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/pkg/directassign"
	"github.com/touchstone-csi/touchstone/pkg/health"
)

// guest asks the guest of a direct volume how full it is: nobody else can know.
func (l *look) guest(ctx context.Context) error {
	if !l.use.direct() || len(l.use.Publications) == 0 || l.device == nil {
		return nil
	}

	usage, err := l.service.askGuest(ctx, l.use, l.device.SizeBytes)
	if err != nil {
		l.entries = append(l.entries, withoutStats(err))

		return nil
	}

	l.usage = usageFrom(usage)
	l.full(usage)

	return nil
}

// withoutStats says what is the matter in words of ours: those of a guest are its
// user's.
func withoutStats(failure error) health.Entry {
	message := "its virtual machine does not say how full it is; see the log of the runtime"
	if errors.Is(failure, directassign.ErrNoSandbox) {
		message = "no sandbox says that it has taken it; if that lasts, see the pod's runtimeClassName (not every runtime says so)"
	}

	return health.NewEntry(health.GuestStatsUnavailable, message)
}

// guestUsage is what the guest says, or else the device's size, and the record
// that goes with that. Its errors are those of a volume that is not there.
func (s *Service) guestUsage(
	ctx context.Context, use *Use, path string, record *health.Record,
) ([]*csi.VolumeUsage, *health.Record, error) {
	id := use.VolumeID

	device, err := s.deviceUsage(id, use, path)
	if err != nil || len(use.Publications) == 0 {
		return device, record, err
	}

	usage, err := s.askGuest(ctx, use, device[0].GetTotal())

	silent := err != nil
	if silent != record.Has(health.GuestStatsUnavailable) {
		// The answer and its condition are to go together, whatever was known before.
		s.monitor.Suspect(id)

		record = recordOf(id, slices.DeleteFunc(entriesOf(record),
			func(entry health.Entry) bool { return entry.Reason == health.GuestStatsUnavailable })...)

		if silent {
			record.Entries = append(record.Entries, withoutStats(err))
		}
	}

	if silent {
		return device, record, nil //nolint:nilerr // the record says it
	}

	return volumeUsages(usage), record, nil
}

// entriesOf returns a copy.
func entriesOf(record *health.Record) []health.Entry {
	if record == nil {
		return nil
	}

	return slices.Clone(record.Entries)
}

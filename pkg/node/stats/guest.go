package stats

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// guestUsage is what the guest says, or else the device's size, and the record
// that goes with that. Its errors are those of a volume that is not there.
func (r *Reader) guestUsage(
	ctx context.Context, v *staged.Volume, path string, record *health.Record,
) ([]*csi.VolumeUsage, *health.Record, error) {
	measured, err := r.measure(ctx, v, path)
	if err != nil {
		return nil, record, err
	}

	device := measured.answer

	if len(v.Publications) == 0 {
		return device, r.answered(v.VolumeID, record, nil), nil
	}

	usage, err := r.config.Assignments.GuestUsage(ctx, v, device[0].GetTotal())
	record = r.answered(v.VolumeID, record, err)

	if err != nil {
		return device, record, nil //nolint:nilerr // the record says it
	}

	return volumeUsages(usage), record, nil
}

// answered returns the record that goes with how a guest has answered just now,
// whatever was known before.
func (r *Reader) answered(id string, record *health.Record, failure error) *health.Record {
	now := withAnswer(id, record, failure)
	if now != record {
		r.config.Prober.Monitor().Suspect(id)
	}

	return now
}

// withAnswer returns the record with GuestStatsUnavailable if the guest has failed to answer, and
// without it if it has answered: the same record where nothing changes.
func withAnswer(id string, record *health.Record, failure error) *health.Record {
	if (failure != nil) == record.Has(health.GuestStatsUnavailable) {
		return record
	}

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

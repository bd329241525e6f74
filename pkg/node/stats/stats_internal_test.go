package stats

import (
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
)

func record(reasons ...health.Reason) *health.Record {
	made := probe.NewRecord("v")
	for _, reason := range reasons {
		made.Entries = append(made.Entries, health.NewEntry(reason, "message"))
	}

	return made
}

func reasons(of *health.Record) []health.Reason {
	var found []health.Reason
	for _, entry := range entriesOf(of) {
		found = append(found, entry.Reason)
	}

	return found
}

// TestWithAnswer is the condition after a guest has answered, or has not.
func TestWithAnswer(t *testing.T) {
	t.Parallel()

	const unavailable, full = health.GuestStatsUnavailable, health.OutOfCapacity

	failure := errors.New("no answer")

	for name, test := range map[string]struct {
		before  *health.Record
		failure error
		want    []health.Reason
		same    bool
	}{
		"it answers":                    {record(), nil, nil, true},
		"it answers, nothing was known": {nil, nil, nil, true},
		"it answers, which was known":   {record(full), nil, []health.Reason{full}, true},
		"it answers again":              {record(unavailable, full), nil, []health.Reason{full}, false},
		"it fails":                      {record(full), failure, []health.Reason{full, unavailable}, false},
		"it fails, nothing was known":   {nil, failure, []health.Reason{unavailable}, false},
		"it fails again":                {record(unavailable), failure, []health.Reason{unavailable}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			had := reasons(test.before)
			now := withAnswer("v", test.before, test.failure)
			require.Equal(t, test.want, reasons(now))
			require.Equal(t, test.same, now == test.before, "want: another record only for a change")
			require.Equal(t, had, reasons(test.before), "want: the monitor's record is not changed")
		})
	}
}

func TestIsSilent(t *testing.T) {
	t.Parallel()

	for reason, want := range map[health.Reason]bool{
		health.ProbeTimedOut: true, health.DiskFailure: true, health.OutOfCapacity: false, health.FilesystemErrors: false,
	} {
		require.Equal(t, want, isSilent(record(reason)), "%v", reason)
	}

	require.False(t, isSilent(nil), "want: what is not known is no silence")
}

func TestVolumeUsages(t *testing.T) {
	t.Parallel()

	const bytes, inodes = csi.VolumeUsage_BYTES, csi.VolumeUsage_INODES

	amount := mount.Amount{Total: 10, Used: 7, Available: 2}

	for name, test := range map[string]struct {
		usage mount.Usage
		units []csi.VolumeUsage_Unit
	}{
		"a filesystem with inodes": {mount.Usage{Bytes: amount, Inodes: mount.Amount{Total: 5}}, []csi.VolumeUsage_Unit{bytes, inodes}},
		"a device, or btrfs":       {mount.Usage{Bytes: amount}, []csi.VolumeUsage_Unit{bytes}},
	} {
		answer := volumeUsages(test.usage)
		require.Len(t, answer, len(test.units), name)

		for i, each := range answer {
			require.Equal(t, test.units[i], each.GetUnit(), name)
		}

		require.Equal(t, []int64{10, 7, 2}, []int64{answer[0].GetTotal(), answer[0].GetUsed(), answer[0].GetAvailable()}, name)
	}
}

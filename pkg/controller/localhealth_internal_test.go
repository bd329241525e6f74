package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// monitoredNode is a local node with the conditions of a monitor.
type monitoredNode struct {
	NoLocalNode

	monitor *health.Monitor
}

func (n monitoredNode) Condition(id string) *health.Record {
	record, _ := n.monitor.Get(id)

	return record
}

func (n monitoredNode) Unhealthy(after string) []*health.Record { return n.monitor.Abnormal(after) }

// TestReportedUnhealthyMergesBothViewsInOrder: each volume once, by id, also where only one view
// has it or where none of the node's findings is about the volume.
func TestReportedUnhealthyMergesBothViewsInOrder(t *testing.T) {
	t.Parallel()

	own, local := health.New(health.Config{Name: "controller"}), health.New(health.Config{Name: "node"})
	w := &Watch{node: monitoredNode{monitor: local}, Monitor: own}

	set := func(monitor *health.Monitor, id string, reasons ...health.Reason) {
		var observed health.Observation
		for _, reason := range reasons {
			observed.Entries = append(observed.Entries, health.NewEntry(reason, "because"))
		}

		require.True(t, monitor.Set(id, observed, time.Now()), "want: the monitor takes the observation")
	}

	set(own, "b", health.BackingFileMissing)
	set(own, "d", health.BackingFileTruncated)
	set(own, "g", health.VolumeNotFound)
	set(own, "h")
	set(local, "a", health.OutOfCapacity)
	set(local, "b", health.BackingFileMissing, health.IOErrors)
	set(local, "c", health.VolumeUnmounted, health.DeviceMissing, health.GuestStatsUnavailable)
	set(local, "e", health.ReadOnlyRemount, health.VolumeUnmounted)
	set(local, "h", health.VolumeBusy)
	set(local, "i", health.DeviceMissing)

	want := []struct {
		id      string
		reasons []health.Reason
	}{
		{"a", []health.Reason{health.OutOfCapacity}},
		{"b", []health.Reason{health.BackingFileMissing, health.IOErrors}},
		{"d", []health.Reason{health.BackingFileTruncated}},
		{"e", []health.Reason{health.ReadOnlyRemount}},
		{"g", []health.Reason{health.VolumeNotFound}},
		{"h", []health.Reason{health.VolumeBusy}},
	}

	for _, after := range []string{"", "a", "b", "c", "d", "h", "i"} {
		expected := want
		for len(expected) > 0 && expected[0].id <= after {
			expected = expected[1:]
		}

		reported := w.reportedUnhealthy(after)
		require.Len(t, reported, len(expected), "behind %q", after)

		for i, record := range reported {
			require.Equal(t, expected[i].id, record.ID)
			require.Equal(t, expected[i].reasons, reasonsOf(record))

			one := w.reported(record.ID)
			require.NotNil(t, one, record.ID)
			require.Equal(t, expected[i].reasons, reasonsOf(one))
		}
	}

	require.Nil(t, w.reported("c"), "want: a volume without a record has no condition")
}

func reasonsOf(record *health.Record) []health.Reason {
	reasons := make([]health.Reason, 0, len(record.Entries))
	for _, entry := range record.Entries {
		reasons = append(reasons, entry.Reason)
	}

	slices.Sort(reasons)

	return reasons
}

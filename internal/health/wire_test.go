package health_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/health"
)

func record(id string, entries ...health.Entry) *health.Record {
	return &health.Record{ID: id, Entries: entries}
}

// condition reads the legacy field off the wire, as a client of CSI v1.12 does.
func condition(t *testing.T, message proto.Message) (abnormal bool, text string) {
	t.Helper()

	encoded, err := proto.Marshal(message)
	require.NoError(t, err)

	field := bytesOf(t, encoded, 2)
	require.True(t, utf8.Valid(bytesOf(t, field, 2)), "want: the message is UTF-8")

	return len(valuesOf(t, field, 1)) > 0, string(bytesOf(t, field, 2))
}

func bytesOf(t *testing.T, message []byte, number protowire.Number) []byte {
	t.Helper()

	values := valuesOf(t, message, number)
	require.Len(t, values, 1, "field %d", number)

	value, read := protowire.ConsumeBytes(values[0])
	require.NoError(t, protowire.ParseError(read))

	return value
}

// valuesOf returns the values of a field, still encoded, behind their tags.
func valuesOf(t *testing.T, message []byte, number protowire.Number) [][]byte {
	t.Helper()

	var values [][]byte

	for len(message) > 0 {
		found, kind, tag := protowire.ConsumeTag(message)
		require.NoError(t, protowire.ParseError(tag))

		value := protowire.ConsumeFieldValue(found, kind, message[tag:])
		require.NoError(t, protowire.ParseError(value))

		if found == number {
			values = append(values, message[tag:tag+value])
		}

		message = message[tag+value:]
	}

	return values
}

func TestLegacyConditionNamesEveryEntry(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("ö", 100)

	for name, of := range map[string]struct {
		record   *health.Record
		abnormal bool
		text     string
	}{
		"nothing is known": {text: "healthy"},
		"healthy":          {record: record("a"), text: "healthy"},
		"one": {
			record:   record("a", health.NewEntry(health.IOErrors, "the device answered EIO")),
			abnormal: true, text: "IOErrors: the device answered EIO",
		},
		"several": {
			record: record("a",
				health.NewEntry(health.FilesystemCorrupted, "check it"), health.NewEntry(health.OutOfCapacity, "it is full")),
			abnormal: true, text: "FilesystemCorrupted: check it; OutOfCapacity: it is full",
		},
		"just not too long": {
			record:   record("a", health.NewEntry(health.IOErrors, strings.Repeat("x", 118))),
			abnormal: true, text: "IOErrors: " + strings.Repeat("x", 118),
		},
		"several, just not too long": {
			record:   record("a", health.NewEntry(health.IOErrors, "EIO"), health.NewEntry(health.DiskFailure, strings.Repeat("x", 100))),
			abnormal: true, text: "IOErrors: EIO; DiskFailure: " + strings.Repeat("x", 100),
		},
		"too long for one string": {
			record:   record("a", health.NewEntry(health.IOErrors, long), health.NewEntry(health.DiskFailure, long)),
			abnormal: true, text: "IOErrors: " + strings.Repeat("ö", 24) + "…; DiskFailure: " + strings.Repeat("ö", 24) + "…",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			for _, message := range []proto.Message{
				&csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n"}},
				&csi.ControllerGetVolumeResponse_VolumeStatus{},
				&csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Total: 1}}},
			} {
				health.PutCondition(message, of.record)

				abnormal, text := condition(t, message)
				require.Equal(t, of.abnormal, abnormal, "want: the volume is abnormal if it has a condition")
				require.Equal(t, of.text, text)
				require.LessOrEqual(t, len(text), 128, "want: the message fits the limit of the spec")
			}
		})
	}
}

func TestEveryReasonAtOnceFitsTheLegacyCondition(t *testing.T) {
	t.Parallel()

	var entries []health.Entry
	for _, reason := range health.Reasons() {
		entries = append(entries, health.NewEntry(reason, "something"))
	}

	message := &csi.NodeGetVolumeStatsResponse{}
	health.PutCondition(message, record("a", entries...))

	abnormal, text := condition(t, message)
	require.True(t, abnormal, "want: the volume is abnormal")
	require.LessOrEqual(t, len(text), 128, "want: the message fits the limit of the spec")
	require.True(t, strings.HasPrefix(text, string(entries[0].Reason)), text)
}

func TestPutConditionKeepsOtherFields(t *testing.T) {
	t.Parallel()

	other := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 7)
	spare := append(make([]byte, 0, 100), other...)

	message := &csi.NodeGetVolumeStatsResponse{}
	message.ProtoReflect().SetUnknown(spare)
	health.PutCondition(message, nil)

	abnormal, text := condition(t, message)
	require.False(t, abnormal, "want: the volume is not abnormal")
	require.Equal(t, "healthy", text)
	require.Len(t, valuesOf(t, message.ProtoReflect().GetUnknown(), 99), 1, "want: the unknown field stays")
	require.Zero(t, spare[:cap(spare)][len(other)], "bytes beyond the message were written")
}

func TestVolumeHealthHasTheSpecsValues(t *testing.T) {
	t.Parallel()

	var none *health.Record

	require.True(t, proto.Equal(&csi.VolumeHealth{VolumeId: "v"}, none.VolumeHealth("v")), "want: a volume without a record has no conditions")
	require.True(t, proto.Equal(&csi.VolumeHealth{VolumeId: "v"}, record("v").VolumeHealth("v")), "want: a healthy volume has no conditions")

	told := record("v",
		health.NewEntry(health.BackingFileTruncated, strings.Repeat("x", 200)),
		health.NewEntry(health.VolumeUnmounted, "it is not mounted"),
		health.NewEntry(health.ReadOnlyRemount, ""),
	).VolumeHealth("v").GetHealthStatuses()

	require.Len(t, told, 3, "want: each condition is on the wire")
	require.Equal(t, csi.VolumeHealthErrorType_DATA_LOSS, told[0].GetStatus(), "want: the worst condition is first")
	require.Equal(t, strings.Repeat("x", 125)+"…", told[0].GetMessage())
	require.Equal(t, csi.VolumeHealthErrorType_INACCESSIBLE, told[1].GetStatus(), "want: the second condition is INACCESSIBLE")
	require.Equal(t, "VolumeUnmounted", told[1].GetReason())
	require.Equal(t, "it is not mounted", told[1].GetMessage())
	require.Equal(t, csi.VolumeHealthErrorType_DEGRADED, told[2].GetStatus(), "want: the last condition is DEGRADED")
}

func TestStorageHealthHasOneEntryPerReason(t *testing.T) {
	t.Parallel()

	require.Empty(t, health.StorageHealth(nil), "want: no record has no entries")
	require.Empty(t, health.StorageHealth([]*health.Record{record("pool a")}), "want: healthy records have no entries")

	told := health.StorageHealth([]*health.Record{
		record("pool b", health.NewEntry(health.PoolNearlyFull, "pool b is nearly full")),
		record("state", health.NewEntry(health.ProbeTimedOut, "it hangs")),
		record("pool a",
			health.NewEntry(health.PoolNearlyFull, "pool a is nearly full"), health.NewEntry(health.PoolUnreachable, "pool a is gone")),
	})

	require.Len(t, told, 3, "want: each reason has one entry")
	require.Equal(t, csi.StorageHealthErrorType_STORAGE_UNREACHABLE, told[0].GetStatus(), "want: the worst condition is first")
	require.Equal(t, "PoolUnreachable", told[0].GetReason())
	require.Equal(t, csi.StorageHealthErrorType_STORAGE_DEGRADED, told[1].GetStatus(), "want: a nearly full pool is degraded")
	require.Equal(t, "pool a is nearly full; pool b is nearly full", told[1].GetMessage())
	require.Equal(t, csi.StorageHealthErrorType_STORAGE_DEGRADED, told[2].GetStatus(), "want: the last condition is degraded")
	require.Equal(t, "ProbeTimedOut", told[2].GetReason())
}

func TestRecordReportsItsEntries(t *testing.T) {
	t.Parallel()

	var none *health.Record

	require.False(t, none.Has(health.IOErrors), "want: the record lacks the reason")
	require.NotNil(t, none.Reports("node"), "want: the reports of no record are an empty list")
	require.Empty(t, none.Reports("node"), "want: no record has no reports")

	entry, since := health.NewEntry(health.IOErrors, "it has errors"), time.Unix(1, 0)
	known := record("v", entry)
	known.Since = map[health.Reason]time.Time{health.IOErrors: since}

	require.True(t, known.Has(health.IOErrors), "want: the record has the reason")
	require.False(t, known.Has(health.DiskFailure), "want: the record lacks the reason")
	require.Equal(t, []health.ConditionReport{{Entry: entry, View: "node", Since: since}}, known.Reports("node"))
}

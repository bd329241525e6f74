package stats

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
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

// TestUnreadableUsageIsAnsweredWithTheLastOne, and explained by the condition of the volume where one is
// known.
func TestUnreadableUsageIsAnsweredWithTheLastOne(t *testing.T) {
	t.Parallel()

	log := slog.New(slog.DiscardHandler)
	prober := probe.New(probe.Config{Memory: probe.NewMemory(), Log: log})
	without, err := capability.Without("VOLUME_CONDITION")
	require.NoError(t, err)

	ended, end := context.WithCancel(t.Context())
	end()

	set := func(id string, usage *health.Usage, reason health.Reason) {
		observed := health.Observation{Usage: usage, Entries: []health.Entry{health.NewEntry(reason, "message")}}
		require.True(t, prober.Monitor().Set(id, observed, time.Now()), "want: the record is new")
	}
	set("silent", &health.Usage{Bytes: health.Amount{Total: 9, Used: 2}}, health.ProbeTimedOut)
	set("errors", nil, health.IOErrors)

	for _, id := range []string{"silent", "errors"} {
		prober.Observations().SetUsage(id, health.Usage{Bytes: health.Amount{Total: 5, Used: 1}})
	}

	failure := errors.New("failure")

	for name, test := range map[string]struct {
		id      string
		without capability.Set
		ctx     context.Context //nolint:containedctx // of the case
		failure error
		inUse   error
		want    []health.Reason
	}{
		"no answer, nothing known":  {"unknown", capability.Set{}, t.Context(), probe.ErrNoResponse, nil, []health.Reason{health.ProbeTimedOut}},
		"no answer, errors known":   {"errors", capability.Set{}, t.Context(), probe.ErrNoResponse, nil, []health.Reason{health.IOErrors, health.ProbeTimedOut}},
		"errors known":              {"errors", capability.Set{}, t.Context(), failure, nil, []health.Reason{health.IOErrors}},
		"not in use any more":       {"errors", capability.Set{}, t.Context(), failure, errors.New("not found"), nil},
		"answers have no condition": {"errors", without, t.Context(), failure, nil, nil},
		"the caller has left":       {"errors", capability.Set{}, ended, failure, nil, nil},
	} {
		reader := New(Config{Prober: prober, Capabilities: test.without, Volumes: volumeAt{nil, test.inUse}})
		found, err := reader.explain(test.ctx, test.id, "/path", test.failure)
		require.Equal(t, test.want, reasons(found), name)

		if test.want == nil {
			require.ErrorIs(t, err, failure, name)
		} else {
			require.NoError(t, err, name)
		}
	}

	known, _ := prober.Monitor().Get("errors")
	require.Equal(t, []health.Reason{health.IOErrors}, reasons(known), "want: the monitor's record is not changed")

	reader := New(Config{Prober: prober, Volumes: volumeAt{&staged.Volume{}, nil}})
	usages, condition, err := reader.Read(t.Context(), "silent", "/path")
	require.NoError(t, err)
	require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(condition), "want: a silent volume is not read")
	require.EqualValues(t, 2, usages[0].GetUsed(), "want: the usage that the last probe has read")
	require.EqualValues(t, 1, reader.lastUsage("errors")[0].GetUsed(), "want: the usage of the last answer if no probe has read one")
}

// TestFilesystemsThatHangAreNotAsked, and no more of a pool are walked at once than its limit.
func TestFilesystemsThatHangAreNotAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := New(Config{Prober: probe.New(probe.Config{Memory: probe.NewMemory(), Log: slog.New(slog.DiscardHandler)})})
		_, err := reader.config.Prober.Observations().BeginQuery("v")
		require.NoError(t, err)

		time.Sleep(probe.ResponseTimeout + 1)

		_, err = reader.measure(t.Context(), &staged.Volume{VolumeID: "v", Parameters: volume.Parameters{Backing: volume.BackingImage}}, "/path")
		require.ErrorIs(t, err, probe.ErrNoResponse)

		for range pool.MaxInPool {
			_, err = reader.walks.Acquire(t.Context(), "default")
			require.NoError(t, err)
		}

		ended, end := context.WithCancel(t.Context())
		end()

		_, err = reader.measure(ended, &staged.Volume{Parameters: volume.Parameters{Pool: "default", Backing: volume.BackingDirectory}}, "/path")
		require.ErrorIs(t, err, pool.ErrUnreachable)
	})
}

// volumeAt is the answer about each path.
type volumeAt struct {
	v   *staged.Volume
	err error
}

func (v volumeAt) At(string, string) (*staged.Volume, error) { return v.v, v.err }

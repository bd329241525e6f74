package health_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
)

func TestHistoryRecordsBeginAndEnd(t *testing.T) {
	t.Parallel()

	history, at := health.NewHistory(100), time.Now().Add(-time.Hour)
	monitor := health.New(health.Config{Name: "node", Settings: health.Settings{History: history}})
	other := health.New(health.Config{Name: "controller", Settings: health.Settings{History: history}})
	after := func(seconds int) time.Time { return at.Add(time.Duration(seconds) * time.Second) }

	require.True(t, monitor.Set("a", observed(), after(0)), "want: Set takes the observation")
	require.True(t, monitor.Set("a", observed(health.IOErrors), after(1)), "want: Set takes the observation")
	require.True(t, monitor.Set("a", observed(health.IOErrors), after(2)), "nothing new")
	require.True(t, other.Set("a", observed(health.BackingFileMissing), after(3)), "want: Set takes the observation")
	require.True(t, monitor.Set("a", observed(health.DiskFailure), after(4)), "want: Set takes the observation")
	other.Forget("a")

	changes := history.Changes()
	require.Len(t, changes, 5, "want: the history has each change")
	require.WithinDuration(t, time.Now(), changes[0].At, time.Minute)

	changes[0].At = time.Time{}
	change := func(at time.Time, view string, reason health.Reason, cleared bool) health.Change {
		return health.Change{
			At: at, View: view, Subject: "a", Status: reason.Status(), Reason: reason, Message: "it is " + string(reason), Cleared: cleared,
		}
	}
	require.Equal(t, []health.Change{
		change(time.Time{}, "controller", health.BackingFileMissing, true),
		change(after(4), "node", health.DiskFailure, false),
		change(after(4), "node", health.IOErrors, true),
		change(after(3), "controller", health.BackingFileMissing, false),
		change(after(1), "node", health.IOErrors, false),
	}, changes)
}

func TestHistoryKeepsTheNewest(t *testing.T) {
	t.Parallel()

	for size, want := range map[int][]string{
		0: {}, 1: {"c"}, 2: {"c", "b"}, 3: {"c", "b", "a"}, 8: {"c", "b", "a"},
	} {
		history := health.NewHistory(size)
		monitor := health.New(health.Config{Name: "node", Settings: health.Settings{History: history}})

		for _, id := range []string{"a", "b", "c"} {
			require.True(t, monitor.Set(id, observed(health.IOErrors), time.Now()), "want: Set takes the observation")
		}

		subjects := []string{}
		for _, change := range history.Changes() {
			subjects = append(subjects, change.Subject)
		}

		require.Equal(t, want, subjects)
	}
}

func TestHistoryTakesConcurrentMonitors(t *testing.T) {
	t.Parallel()

	const each = 500

	history := health.NewHistory(4 * each)

	var writing sync.WaitGroup

	for _, view := range []string{"node", "controller", "storage"} {
		writing.Go(func() {
			monitor := health.New(health.Config{Name: view, Settings: health.Settings{History: history}})

			for range each / 2 {
				monitor.Set("a", observed(health.IOErrors), time.Now())
				monitor.Forget("a")
				history.Changes()
			}
		})
	}

	await.Return(t, writing.Wait, "all writers to end")

	counts := map[string]int{}
	for _, change := range history.Changes() {
		counts[change.View]++
	}

	require.Equal(t, map[string]int{"node": each, "controller": each, "storage": each}, counts)
}

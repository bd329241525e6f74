package events_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
)

// directorySet is a set of directories that changes.
type directorySet struct {
	mu      sync.Mutex
	listed  []string
	changed chan struct{}
}

func (s *directorySet) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.listed
}

func (s *directorySet) awaitChange() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.changed
}

func (s *directorySet) set(directories ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.changed != nil {
		close(s.changed)
	}

	s.listed, s.changed = directories, make(chan struct{})
}

// awaitWatched makes files in the directory until one is reported.
func (r *running) awaitWatched(tb testing.TB, directory string) {
	tb.Helper()

	count := 0

	require.Eventually(tb, func() bool {
		count++
		path := filepath.Join(directory, "file-"+strconv.Itoa(count))
		require.NoError(tb, os.WriteFile(path, nil, 0o600))

		for _, event := range r.drain() {
			if filepath.Dir(event.Path) == directory && event.Kind == health.FileChanged {
				return true
			}
		}

		return false
	}, soon, 5*time.Millisecond, "want: files in %s are reported", directory)
}

// TestChangedDirectoriesAreWatched has one added, and one removed that is not listed any more.
func TestChangedDirectoriesAreWatched(t *testing.T) {
	first, second, third := t.TempDir(), t.TempDir(), t.TempDir()
	gone := filepath.Join(third, "gone")
	require.NoError(t, os.Mkdir(gone, 0o700))

	set := &directorySet{}
	set.set(first)

	running := start(t, events.NewFilesOf(set.list, set.awaitChange))
	running.awaitWatched(t, first)

	set.set(first, second)
	running.awaitWatched(t, second)

	// Each change is followed, and not only the first one.
	set.set(first, gone)
	running.awaitWatched(t, gone)
	running.awaitWatched(t, first)

	set.set(first, third)
	running.awaitWatched(t, third)
	running.drain()
	require.NoError(t, os.RemoveAll(gone))
	running.next(t, ofKind(health.Lost))
	running.awaitWatched(t, first)

	require.NoError(t, os.Rename(first, first+"-moved"))
	require.ErrorIs(t, running.awaitEnd(t, "a listed directory was moved"), events.ErrGone)
	require.NoError(t, os.Rename(first+"-moved", first))
}

// TestUnwatchableDirectoryEndsTheSource at the begin, and when it is added.
func TestUnwatchableDirectoryEndsTheSource(t *testing.T) {
	dir := t.TempDir()
	set := &directorySet{}
	set.set(dir)

	running := start(t, events.NewFilesOf(set.list, set.awaitChange))
	set.set(dir, filepath.Join(dir, "missing"))
	require.ErrorIs(t, running.awaitEnd(t, "a missing directory was listed"), os.ErrNotExist)

	err := events.NewFilesOf(set.list, set.awaitChange).Run(t.Context(), func() { t.Error("it has connected") }, func(health.Event) {})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, events.ErrGone)
}

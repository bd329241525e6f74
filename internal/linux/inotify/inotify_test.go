package inotify_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
	"github.com/touchstone-csi/touchstone/test/await"
)

// watch watches directories for the test. It returns the events, what is sent whenever the directories of a
// changed list are watched, and how the watch ended.
func watch(t *testing.T, of inotify.Directories) (events <-chan inotify.Event, watched <-chan struct{}, ended <-chan error) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	watching, notified, result := make(chan struct{}, 16), make(chan inotify.Event, 16), make(chan error, 1)

	go func() {
		result <- inotify.Watch(ctx, of, func() { watching <- struct{}{} }, func(event inotify.Event) { notified <- event })
	}()

	t.Cleanup(cancel)
	await.Receive(t, watching, "the directories are watched")

	return notified, watching, result
}

func TestEachKindOfEventIsReported(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		cause func(path string) error
		want  inotify.Kind
	}{
		"created":    {func(path string) error { return os.Mkdir(path+"2", 0o700) }, inotify.Appeared},
		"moved in":   {func(path string) error { return os.Rename(filepath.Dir(path)+"-other", path+"2") }, inotify.Appeared},
		"removed":    {os.Remove, inotify.Changed},
		"moved away": {func(path string) error { return os.Rename(path, filepath.Dir(path)+"-away") }, inotify.Changed},
		"attributes": {func(path string) error { return os.Chmod(path, 0o640) }, inotify.Changed},
		"truncated":  {func(path string) error { return os.Truncate(path, 1) }, inotify.Written},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := filepath.Join(t.TempDir(), "watched")
			path := filepath.Join(dir, "entry")
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))
			require.NoError(t, os.WriteFile(dir+"-other", nil, 0o600))

			events, _, _ := watch(t, inotify.Fixed(dir))
			require.NoError(t, test.cause(path))

			event := await.Receive(t, events, "the event of the entry")
			require.Equal(t, test.want, event.Kind, "the kind of the event")
			require.Contains(t, event.Path, path, "the entry of the event")
			require.False(t, event.At.IsZero(), "the event has its time")
		})
	}
}

func TestARemovedDirectoryEndsTheWatch(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "removed")
	require.NoError(t, os.Mkdir(dir, 0o700))

	events, _, ended := watch(t, inotify.Fixed(t.TempDir(), dir))
	require.NoError(t, os.Remove(dir))
	require.Equal(t, inotify.Lost, await.Receive(t, events, "the end of the directory").Kind, "what is reported of it")
	require.ErrorIs(t, await.Receive(t, ended, "the end of the watch"), inotify.ErrGone)
}

// TestAChangedListIsWatched: its caller learns when, as what happened before raises no event.
func TestAChangedListIsWatched(t *testing.T) {
	t.Parallel()

	first, second := t.TempDir(), t.TempDir()
	changed := make(chan struct{})

	var listed atomic.Pointer[[]string]

	listed.Store(&[]string{first})
	events, watched, _ := watch(t, inotify.Directories{
		List: func() []string { return *listed.Load() }, Changed: func() <-chan struct{} { return changed },
	})

	listed.Store(&[]string{first, second})
	await.Send(t, changed, struct{}{}, "the change of the list")
	await.Receive(t, watched, "the directories of the changed list are watched")

	for _, dir := range []string{first, second} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "entry"), 0o700))
		require.Equal(t, filepath.Join(dir, "entry"), await.Receive(t, events, "the event of the entry").Path)
	}
}

// TestFailedDirectoryEndsNoOtherWatch, if its caller takes the failure.
func TestFailedDirectoryEndsNoOtherWatch(t *testing.T) {
	t.Parallel()

	good, removed := t.TempDir(), filepath.Join(t.TempDir(), "removed")
	require.NoError(t, os.Mkdir(removed, 0o700))

	failures := make(chan error, 2)
	events, _, _ := watch(t, inotify.Directories{
		List:   func() []string { return []string{filepath.Join(good, "missing"), removed, good} },
		Failed: func(err error) { failures <- err },
	})
	require.ErrorIs(t, await.Receive(t, failures, "the failure of a missing directory"), fs.ErrNotExist)

	require.NoError(t, os.Remove(removed))
	require.Equal(t, inotify.Lost, await.Receive(t, events, "the end of a directory").Kind)
	require.ErrorIs(t, await.Receive(t, failures, "the failure of a removed directory"), inotify.ErrGone)

	require.NoError(t, os.Mkdir(filepath.Join(good, "entry"), 0o700))

	for event := await.Receive(t, events, "an event"); event.Path != filepath.Join(good, "entry"); {
		event = await.Receive(t, events, "the event of the other directory") // that of the removed one may be twice
	}
}

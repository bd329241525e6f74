package inotify_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
	"github.com/touchstone-csi/touchstone/test/await"
)

// watch watches directories for the test, and returns the events and how the watch ended.
func watch(t *testing.T, of inotify.Directories) (events <-chan inotify.Event, ended <-chan error) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	connected, notified, result := make(chan struct{}), make(chan inotify.Event, 16), make(chan error, 1)

	go func() {
		result <- inotify.Watch(ctx, of, func() { close(connected) }, func(event inotify.Event) { notified <- event })
	}()

	t.Cleanup(cancel)
	await.Receive(t, connected, "the directories are watched")

	return notified, result
}

func TestKindsOfEvents(t *testing.T) {
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

			events, _ := watch(t, inotify.These(dir))
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

	events, ended := watch(t, inotify.These(t.TempDir(), dir))
	require.NoError(t, os.Remove(dir))
	require.Equal(t, inotify.Lost, await.Receive(t, events, "the end of the directory").Kind, "what is reported of it")
	require.ErrorIs(t, await.Receive(t, ended, "the end of the watch"), inotify.ErrGone)
}

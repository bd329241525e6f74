package events

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// newTracefs is a directory with the files of a tracing instance, which accept any value.
func newTracefs(t *testing.T, files ...string) *os.Root {
	t.Helper()

	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })

	for _, each := range files {
		addFile(t, root, each)
	}

	return root
}

func addFile(t *testing.T, root *os.Root, name string) {
	t.Helper()
	require.NoError(t, root.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(t, root.WriteFile(name, []byte("before"), 0o600))
}

func content(t *testing.T, root *os.Root, name string) string {
	t.Helper()

	text, err := root.ReadFile(name)
	require.NoError(t, err)

	return string(text)
}

func TestAnInstanceIsSetUp(t *testing.T) {
	t.Parallel()

	want := map[string]string{
		allEventsOn: "0", "trace": "", "tracing_on": "1", "buffer_size_kb": "64", "buffer_percent": "0", "options/context-info": "0",
		blockErrorDir + "/filter": "dev >= 7340032 && dev < 8388608 && error != -95", blockErrorOn: "1",
	}

	names := make([]string, 0, len(want))
	for name := range want {
		names = append(names, name)
	}

	root := newTracefs(t, names...)
	require.NoError(t, (&traceInstance{Root: root}).setUp())

	for name, value := range want {
		require.Equal(t, value, content(t, root, name), name)
	}

	for _, missing := range names {
		require.NoError(t, root.Remove(missing))
		require.ErrorIs(t, (&traceInstance{Root: root}).setUp(), fs.ErrNotExist, missing)
		addFile(t, root, missing)
	}
}

// TestShutdownEventsAreEnabledWithTheirModule is of two filesystems, of which one is loaded later.
func TestShutdownEventsAreEnabledWithTheirModule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const here, later, never = "events/xfs/xfs_force_shutdown", "events/ext4/ext4_shutdown", "events/ext4/half"

		root := newTracefs(t, here+"/filter", here+"/enable", never+"/filter")
		instance := &traceInstance{Root: root}
		missing := instance.turnOnShutdowns([]string{"xfs/xfs_force_shutdown", "ext4/ext4_shutdown", "ext4/half"})
		require.Equal(t, []string{"ext4/ext4_shutdown", "ext4/half"}, missing)
		require.Equal(t, loopDevices, content(t, root, here+"/filter"))
		require.Equal(t, "1", content(t, root, here+"/enable"))

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})

		go func() {
			defer close(ended)

			instance.awaitModules(ctx, missing)
		}()

		time.Sleep(2*modulePeriod + time.Second)
		addFile(t, root, later+"/filter")
		addFile(t, root, later+"/enable")
		time.Sleep(modulePeriod)
		synctest.Wait()
		require.Equal(t, "1", content(t, root, later+"/enable"))

		// All are on.
		addFile(t, root, never+"/enable")
		<-ended
		cancel()

		began := time.Now()
		instance.awaitModules(t.Context(), nil)
		require.Zero(t, time.Since(began), "want: without a missing event it does not wait")

		instance.awaitModules(ctx, missing)
		require.Zero(t, time.Since(began), "want: it ends with its context")
	})
}

func TestAbandonedInstancesAreRemoved(t *testing.T) {
	t.Parallel()

	root := newTracefs(t)
	add := func(name string, age time.Duration) string {
		path := filepath.Join(instancesDir, name)
		require.NoError(t, root.MkdirAll(path, 0o700))

		at := time.Now().Add(-age)
		require.NoError(t, root.Chtimes(path, at, at))

		return path
	}
	exists := func(path string) bool {
		_, err := root.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}

		return err == nil
	}

	own, fresh := add("driver-own", time.Hour), add("driver-fresh", 50*time.Second)
	foreign, killed := add("other-killed", time.Hour), add("driver-killed", 70*time.Second)

	add("driver-active", time.Hour)

	active, err := holdInstance(root, "driver-active")
	require.NoError(t, err)
	t.Cleanup(func() { active.remove(root) })

	_, err = holdInstance(root, "driver-active")
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorIs(t, err, unix.EWOULDBLOCK)

	_, err = holdInstance(root, "driver-missing")
	require.ErrorIs(t, err, fs.ErrNotExist)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	sweepInstances(ended, root, "driver-own")
	sweepInstances(t.Context(), root, "own")
	require.True(t, exists(killed), "want: neither a cancelled sweep nor one of a driver of another kind removes it")

	sweepInstances(t.Context(), root, "driver-own")
	require.False(t, exists(killed), "want: an abandoned instance of the kind is removed")

	for _, path := range []string{own, fresh, foreign, active.path} {
		require.True(t, exists(path), "want: it is not abandoned: %s", path)
	}

	taken, err := openInstance(root, "driver-own")
	require.NoError(t, err, "want: the instance of an earlier run is used again")
	taken.remove(root)
	require.False(t, exists(own), "want: the instance is removed at the end")

	_, err = taken.Open(".")
	require.Error(t, err, "want: the directory is closed")
	require.ErrorIs(t, taken.lock.Close(), os.ErrClosed)
}

func TestReasonsOfAMissingSource(t *testing.T) {
	t.Parallel()

	for err, want := range map[error]error{
		unix.ENODEV: ErrKernel, unix.EPERM: ErrPermission, unix.EACCES: ErrPermission, unix.EROFS: ErrPermission, unix.ENOENT: ErrKernel,
	} {
		got := explained(err, "a certain kernel")
		require.ErrorIs(t, got, want)
		require.ErrorIs(t, got, err)
		errtext.Require(t, got, "a certain kernel")
	}
}

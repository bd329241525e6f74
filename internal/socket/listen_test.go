package socket_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/served"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	goleak.VerifyTestMain(m)
}

func noName(context.Context, *grpc.ClientConn) string { return "" }

func listen(t *testing.T, path string) *socket.Listener {
	t.Helper()

	listener, err := socket.Listen(t.Context(), path, noName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })

	return listener
}

func TestTheListenerKnowsWhetherItsSocketIsInPlace(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "a.sock")
	listener := listen(t, path)
	require.Equal(t, path, listener.Path())
	require.True(t, listener.InPlace(), "want: the listener's socket is at its path")

	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode(), "want: the socket is for its owner only")

	// It is known whether it was moved, removed or replaced.
	require.NoError(t, os.Rename(path, path+".old"))
	require.False(t, listener.InPlace(), "want: the listener's socket is no longer at its path")

	second := listen(t, path)
	require.True(t, second.InPlace(), "want: the listener's socket is at its path")
	require.False(t, listener.InPlace(), "want: the listener's socket is no longer at its path")

	require.NoError(t, listener.Close())
	require.FileExists(t, path, "it is the second's")
	require.NoError(t, second.Close())
	require.NoFileExists(t, path)
	require.NoError(t, second.Close())
}

func TestListenReplacesAnUnservedSocket(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "a.sock")
	served.Ended(t, path)
	require.FileExists(t, path)
	require.True(t, listen(t, path).InPlace(), "want: the listener's socket is at its path")
}

func TestListenRefuses(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))

	for _, path := range []string{"", dir + "/", file, filepath.Join(dir, strings.Repeat("x", 107))} {
		_, err := socket.Listen(t.Context(), path, noName)
		require.ErrorIs(t, err, socket.ErrPath, path)
	}

	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "mine", string(kept))

	_, err = socket.Listen(t.Context(), filepath.Join(dir, "absent", "a.sock"), noName)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestListenRefusesAServedSocket(t *testing.T) {
	t.Parallel()

	first := listen(t, filepath.Join(t.TempDir(), "a.sock"))
	_, err := socket.Listen(t.Context(), first.Path(), func(ctx context.Context, connection *grpc.ClientConn) string {
		require.Equal(t, "passthrough:///"+first.Path(), connection.CanonicalTarget())

		_, limited := ctx.Deadline()
		require.True(t, limited, "want: the wait for the answer of the other process ends")

		return "it.example.org v1"
	})

	var inUse *socket.InUseError

	require.ErrorAs(t, err, &inUse)
	require.Equal(t, &socket.InUseError{Path: first.Path(), PID: int32(os.Getpid()), Driver: "it.example.org v1"}, inUse)
	errtext.Require(t, err, "it.example.org v1")
	require.True(t, first.InPlace(), "want: the listener's socket is at its path")
}

// TestListenRefusesConcurrentCallers, although the owner's name is delayed until all have asked: a
// process that is asked may just be starting, and no other has to wait for its answer.
func TestListenRefusesConcurrentCallers(t *testing.T) {
	t.Parallel()

	const starts = 8

	first := listen(t, filepath.Join(t.TempDir(), "a.sock"))
	refused := make(chan error, starts)

	var asking sync.WaitGroup

	asking.Add(starts)

	all := make(chan struct{})

	go func() {
		defer close(all)

		asking.Wait()
	}()

	for range starts {
		go func() {
			_, err := socket.Listen(t.Context(), first.Path(), func(ctx context.Context, _ *grpc.ClientConn) string {
				asking.Done()

				select {
				case <-all:
					return "it.example.org v1"
				case <-ctx.Done():
					return ""
				}
			})
			refused <- err
		}()
	}

	for range starts {
		err := await.Receive(t, refused, "Listen to refuse")
		require.ErrorAs(t, err, new(*socket.InUseError))
		errtext.Require(t, err, "it.example.org v1")
	}
}

// TestAHiddenSocketComesBack, or is removed with the listener.
func TestAHiddenSocketComesBack(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "csi.sock")
	listener := listen(t, path)

	restore, err := listener.Hide()
	require.NoError(t, err)
	require.NoFileExists(t, path)

	_, err = listener.Hide()
	require.ErrorIs(t, err, socket.ErrPath)
	restore()
	restore()
	require.True(t, listener.InPlace(), "want: the listener's socket is at its path again")

	_, err = listener.Hide()
	require.NoError(t, err)
	require.NoError(t, listener.Close())

	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Empty(t, left, "want: the directory of the socket is empty")

	_, err = listener.Hide()
	require.ErrorIs(t, err, socket.ErrPath)
}

// TestHiddenSocketKeepsAnothersPath: what another process has made meanwhile stays.
func TestHiddenSocketKeepsAnothersPath(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "csi.sock")
	listener := listen(t, path)

	restore, err := listener.Hide()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("another's"), 0o600))
	restore()

	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "another's", string(kept))
	require.NoError(t, listener.Close())

	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "want: the hidden socket is removed, and the other file stays")
}

// TestOwnerOfASocketIsNamed as far as it is known.
func TestOwnerOfASocketIsNamed(t *testing.T) {
	t.Parallel()

	for want, err := range map[string]socket.InUseError{
		"/a.sock is already served by another process":        {Path: "/a.sock"},
		"/a.sock is already served by another process, pid 7": {Path: "/a.sock", PID: 7},
		"/a.sock is already served by x v1":                   {Path: "/a.sock", Driver: "x v1"},
		"/a.sock is already served by x v1, pid 7":            {Path: "/a.sock", Driver: "x v1", PID: 7},
	} {
		require.EqualError(t, &err, want)
	}
}

// TestListenWaitsForAnotherStart in the same directory, and ends with its context.
func TestListenWaitsForAnotherStart(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "a.sock")
	dir, err := os.Open(filepath.Dir(path))
	require.NoError(t, err)
	require.NoError(t, flock.TryLock(dir, unix.LOCK_EX))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = socket.Listen(ctx, path, noName)
	errtext.Require(t, err, "which another start holds")
	require.NoFileExists(t, path)

	listened := make(chan error, 1)

	go func() {
		listener, err := socket.Listen(t.Context(), path, noName)
		if err == nil {
			err = listener.Close()
		}
		listened <- err
	}()

	require.Never(t, func() bool { return len(listened) > 0 }, 100*time.Millisecond, time.Millisecond, "want: Listen waits for the lock")
	require.NoError(t, dir.Close())
	require.NoError(t, await.Receive(t, listened, "Listen to return once the lock is free"))
}

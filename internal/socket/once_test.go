package socket_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/served"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// listenOnce listens, and closes the listener. Its error must be that of the call that was made to fail.
func listenOnce(directory string) (run, end func() error, err error) {
	path := filepath.Join(directory, "csi.sock")

	return func() error {
		listener, err := socket.Listen(context.Background(), path, noName)
		if err == nil {
			err = listener.Close()
			if differs := syscallfault.Differs("the error of another Close", err, listener.Close()); differs != nil {
				return differs
			}
		}

		if err == nil || errors.Is(err, unix.EIO) {
			return err
		}

		return syscallfault.Differs("the report", "that of the failed call", err)
	}, func() error { return nil }, nil
}

var onceOperations = map[string]syscallfault.Operation{"listen": listenOnce}

// TestEachCallFailsOnce has each call fail once by which a socket is made and removed, in place of one
// that is not served. The failure is reported, and the socket can be made again.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()
	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Operation: "listen", Lossy: []string{"*"}, Reported: []string{"openat", "unlinkat", "fstatat", "fchmod"},
		Prepare: func(t *testing.T, directory string) {
			t.Helper()
			served.Ended(t, filepath.Join(directory, "csi.sock"))
		},
		Verify: func(t *testing.T, directory string) {
			t.Helper()

			left, err := os.ReadDir(directory)
			require.NoError(t, err)
			require.Empty(t, left, "want: nothing is left of the socket")
		},
	})
}

// TestAnotherKindOfSocketIsLeftAlone, as nothing says whether a process serves it.
func TestAnotherKindOfSocketIsLeftAlone(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "csi.sock")
	other, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(other, &unix.SockaddrUnix{Name: path}))

	_, err = socket.Listen(t.Context(), path, noName)
	require.ErrorIs(t, err, socket.ErrPath)
	require.ErrorIs(t, err, syscall.EPROTOTYPE)
	require.NoError(t, unix.Close(other))
	require.FileExists(t, path)
}

// TestASocketThatCannotBeHidden stays at its path, and so does what is in the way.
func TestASocketThatCannotBeHidden(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "csi.sock")
	listener := listen(t, path)
	require.NoError(t, os.Mkdir(path+".hidden", 0o700))

	restore, err := listener.Hide()
	errtext.Require(t, err, "hide the socket")
	require.Nil(t, restore, "what would bring it back")
	require.True(t, listener.InPlace(), "want: the socket is at its path")
	require.NoError(t, listener.Close())
	require.DirExists(t, path+".hidden")

	// A listener whose socket is not there hides nothing.
	moved := listen(t, path)
	require.NoError(t, os.Rename(path, path+".moved"))

	_, err = moved.Hide()
	require.ErrorIs(t, err, socket.ErrPath)
}

// TestPathsOfSockets have to name a file, and fit into an address.
func TestPathsOfSockets(t *testing.T) {
	t.Parallel()

	longest := "/" + strings.Repeat("x", 107)

	for path, valid := range map[string]bool{
		"/a": true, "a": true, longest[:107]: true, longest: false, "": false, "/a/": false, "/": false, "/a\x00b": false, "\x00": false,
	} {
		err := socket.CheckPath(path)
		require.Equal(t, valid, err == nil, "whether %q is the path of a socket: %v", path, err)

		if !valid {
			require.ErrorIs(t, err, socket.ErrPath, path)
		}
	}
}

func TestAddressesAreSocketsOrOnTheLoopback(t *testing.T) {
	t.Parallel()

	for address, want := range map[string][2]string{
		"/run/a.sock": {"unix", "/run/a.sock"}, "unix:///run/a.sock": {"unix", "/run/a.sock"}, "unix:/run/a.sock": {"unix", "/run/a.sock"},
		"unix:a.sock": {"unix", "a.sock"}, "//run/a.sock": {"unix", "//run/a.sock"},
		"127.0.0.1:80": {"tcp", "127.0.0.1:80"}, "tcp://127.1.2.3:80": {"tcp", "127.1.2.3:80"}, "localhost:0": {"tcp", "localhost:0"},
		"tcp://localhost:65535": {"tcp", "localhost:65535"}, "[::1]:80": {"tcp", "[::1]:80"},
		"": {}, "unix:": {}, "unix://": {}, "unix:///run/": {}, "/run/": {}, "a.sock": {}, "127.0.0.1": {}, "127.0.0.1:": {},
		"127.0.0.1:65536": {}, "127.0.0.1:http": {}, "127.0.0.1:-1": {}, "192.0.2.1:80": {}, "example.org:80": {}, ":80": {}, "[::]:80": {},
	} {
		network, target, err := socket.ParseAddress(address)
		require.Equal(t, want, [2]string{network, target}, "what %q is", address)
		require.Equal(t, want == [2]string{}, err != nil, "whether %q has an error: %v", address, err)

		if err != nil {
			require.ErrorIs(t, err, socket.ErrAddress, address)
		}
	}
}

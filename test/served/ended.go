package served

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Ended leaves the socket of a server that has ended at path: it refuses. It never
// listened, since a child that another test is just forking would go on
// listening until its exec.
func Ended(tb testing.TB, path string) {
	tb.Helper()

	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(tb, err)

	defer func() { require.NoError(tb, unix.Close(fd)) }()

	require.NoError(tb, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
}

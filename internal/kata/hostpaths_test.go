package kata_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
)

func TestTheLongestHostPathIsReplaced(t *testing.T) {
	t.Parallel()

	paths, err := kata.ParseHostPaths([]string{"/dev=/host/dev/", "/dev/shm=/elsewhere", "/var//lib=/mnt"})
	require.NoError(t, err)

	for in, out := range map[string]string{
		"/dev/loop7":  "/host/dev/loop7",
		"/dev":        "/host/dev",
		"/dev/shm/a":  "/elsewhere/a",
		"/devices/a":  "/devices/a",
		"/var/lib/a":  "/mnt/a",
		"/dev/../etc": "/etc",
		"/other//b":   "/other/b",
	} {
		require.Equal(t, out, paths.Host(in), in)
	}

	require.Equal(t, "/dev/loop7", kata.HostPaths{}.Host("/dev/loop7"))
}

func TestTheRootReplacesEachHostPath(t *testing.T) {
	t.Parallel()

	paths, err := kata.ParseHostPaths([]string{"/=/host"})
	require.NoError(t, err)
	require.Equal(t, "/host/dev/loop7", paths.Host("/dev/loop7"))
}

func TestInvalidHostPathsAreRefused(t *testing.T) {
	t.Parallel()

	for _, given := range [][]string{{""}, {"/dev"}, {"dev=/dev"}, {"/dev=dev"}, {"=/dev"}, {"/dev=/a", "/dev/=/b"}} {
		_, err := kata.ParseHostPaths(given)
		require.ErrorIs(t, err, kata.ErrHostPath, "%v", given)
	}
}

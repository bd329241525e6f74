package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestParentsOfMountPaths are made for all users to pass, and removed if mount has made them.
func TestParentsOfMountPaths(t *testing.T) {
	namespace.NeedRoot(t)

	mnt, elsewhere := t.TempDir(), t.TempDir()
	d := harness.Start(t, func(c *driver.Config) { c.NodeID, c.AllowPaths = "n1", []string{mnt} })
	t.Setenv("TOUCHSTONE_ENDPOINT", d.Config.Endpoint)

	ctl := func(want int, args ...string) {
		code, _, problems := touchstone(append([]string{"ctl", "volume"}, args...)...)
		require.Equal(t, want, code, "want: the code of %v: %s", args, problems)
	}
	own := filepath.Join(mnt, "own")
	require.NoError(t, os.Mkdir(own, 0o700))

	for _, at := range []string{filepath.Join(mnt, "a", "b", "data"), filepath.Join(own, "c", "data")} {
		ctl(exitGood, "mount", "data", at, "--create", "--size", "20Mi")

		info, err := os.Stat(filepath.Dir(at))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "want: every user may pass")
		ctl(exitGood, "umount", "data")
		require.NoDirExists(t, filepath.Dir(at), "want: what mount has made is removed")
	}

	require.NoDirExists(t, filepath.Join(mnt, "a"), "want: all that mount has made is removed")
	require.DirExists(t, own, "want: a directory of before stays")

	used := filepath.Join(mnt, "a", "b", "data")
	ctl(exitGood, "mount", "data", used)
	put(t, filepath.Join(mnt, "a", "file"), "kept")
	ctl(exitGood, "umount", "data")
	require.NoDirExists(t, filepath.Join(mnt, "a", "b"), "want: the empty directory is removed")
	require.FileExists(t, filepath.Join(mnt, "a", "file"), "want: one that is not empty stays")

	ctl(exitNotWell, "mount", "data", filepath.Join(elsewhere, "x", "data"))
	require.NoDirExists(t, filepath.Join(elsewhere, "x"), "want: a mount that is refused leaves nothing")
	ctl(exitGood, "delete", "data")
}

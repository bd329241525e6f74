package sysfs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestAttributes reads what was written, and never makes a file.
func TestAttributes(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	path := filepath.Join(directory, "attribute")

	require.ErrorIs(t, sysfs.Write(path, "1"), fs.ErrNotExist)
	require.NoFileExists(t, path)

	_, err := sysfs.Read(path)
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, os.WriteFile(path, []byte(" a longer value\n"), 0o600))

	value, err := sysfs.Read(path)
	require.NoError(t, err)
	require.Equal(t, "a longer value", value)
	require.NoError(t, sysfs.Write(path, "short"))

	value, err = sysfs.Read(path)
	require.NoError(t, err)
	require.Equal(t, "short", value)

	long := strings.Repeat("a line of several\n", 1000)
	require.NoError(t, os.WriteFile(path, []byte(long), 0o600))

	content, err := sysfs.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, long, string(content), "want: nothing is trimmed or missing")

	_, err = sysfs.ReadFile(directory)
	require.ErrorIs(t, err, unix.EISDIR)
	errtext.Require(t, err, directory)
	require.ErrorIs(t, sysfs.Write(directory, "1"), unix.EISDIR)
	require.ErrorIs(t, sysfs.Write("/dev/full", "1"), unix.ENOSPC)
}

// TestNothingIsLeftOpen: a descriptor that stays open would keep a cgroup or a device in use.
func TestNothingIsLeftOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attribute")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, sysfs.Write(path, "1"))

	_, err := sysfs.Read(path)
	require.NoError(t, err)

	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)

	for _, each := range open {
		target, _ := os.Readlink("/proc/self/fd/" + each.Name())
		require.NotEqual(t, path, target, "want: Write and Read close the file")
	}
}

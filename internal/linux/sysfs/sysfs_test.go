package sysfs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
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
	require.ErrorIs(t, sysfs.Write(directory, "1"), unix.EISDIR)
	require.ErrorIs(t, sysfs.Write("/dev/full", "1"), unix.ENOSPC)
}

// TestWriteLeavesNothingOpen: a descriptor that stays open would keep a cgroup or a device in use.
func TestWriteLeavesNothingOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attribute")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, sysfs.Write(path, "1"))

	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)

	for _, each := range open {
		target, _ := os.Readlink("/proc/self/fd/" + each.Name())
		require.NotEqual(t, path, target, "want: Write closes the file")
	}
}

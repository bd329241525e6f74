package state

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestExclusively has the directory while it is called, and may remove it.
func TestExclusively(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		store := New(dir, Options{})
		require.NoError(t, store.Open(t.Context()))
		require.ErrorAs(t, Exclusively(dir, "a test", func() error { return nil }), new(*LockedError))
		require.NoError(t, store.Close())

		require.NoError(t, Exclusively(dir, "a test", func() error {
			var locked *LockedError

			require.ErrorAs(t, New(dir, Options{}).Open(t.Context()), &locked)
			require.Contains(t, locked.Owner, "a test")

			return nil
		}))

		text, err := os.ReadFile(filepath.Join(dir, lockName))
		require.NoError(t, err)
		require.Empty(t, text, "want: no owner is named any more")

		require.NoError(t, Exclusively(dir, "a test", func() error { return os.RemoveAll(dir) }))
		require.NoDirExists(t, dir)
		require.ErrorIs(t, Exclusively(dir, "a test", func() error { return nil }), fs.ErrNotExist)
	})
}

// TestTheLockOfARemovedFileIsNone: a successor may be locked by another process.
func TestTheLockOfARemovedFileIsNone(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), lockName)
	file, err := os.Create(path)
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, checkInPlace(file))
	require.NoError(t, os.Remove(path))
	require.ErrorIs(t, lock(filepath.Dir(path), file, unix.LOCK_EX), fs.ErrNotExist)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.ErrorIs(t, checkInPlace(file), fs.ErrNotExist, "want: its successor is another file")
	require.NoError(t, file.Close())
	require.ErrorIs(t, checkInPlace(file), fs.ErrClosed, "want: unknown is no lock")
}

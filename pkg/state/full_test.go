package state_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestStateOpensOnAFullFilesystem, on which the lock cannot name its owner.
func TestStateOpensOnAFullFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })

	f := newFixture(dir, state.Options{Owner: "the first"})
	require.NoError(t, f.Open(t.Context()))
	require.NoError(t, f.put("a", &volume{}))
	require.NoError(t, f.Close())

	require.NoError(t, os.Truncate(filepath.Join(dir, "lock"), 0))
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 8<<20), 0o600), unix.ENOSPC, "want: the filesystem is full")

	again := newFixture(dir, state.Options{Owner: "the second"})
	require.NoError(t, again.Open(t.Context()))
	require.Equal(t, 1, again.volumes.Len(), "want: the records can be read")
	errtext.Require(t, newFixture(dir, state.Options{}).Open(t.Context()), "a process that has not named itself")
	require.NoError(t, again.Close())
}

package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDirectoriesMoveUpIntoOne moves directories into one directory of their own, or to the top if that cannot be made.
func TestDirectoriesMoveUpIntoOne(t *testing.T) {
	t.Parallel()

	top := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(top, "a", "b", "content"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "a", "c", "content"), 0o700))

	area, err := os.Open(top)
	require.NoError(t, err)

	parent, err := os.Open(filepath.Join(top, "a"))
	require.NoError(t, err)

	r := &remover{area: area}
	require.NoError(t, r.moveUp(parent, "b"))
	require.NoError(t, r.moveUp(parent, "c"))

	moved, err := filepath.Glob(filepath.Join(top, "*", "*", "content"))
	require.NoError(t, err)
	require.Len(t, moved, 2, "want: the directories are in one at the top")
	require.Equal(t, filepath.Dir(filepath.Dir(moved[0])), filepath.Dir(filepath.Dir(moved[1])))
	require.NoError(t, r.spill.Close())
	require.NoError(t, area.Close())

	r = &remover{area: area}
	require.ErrorIs(t, r.moveUp(parent, "missing"), unix.EBADF)
	require.Same(t, area, r.spill, "want: the top is used where no directory can be made")
	require.NoError(t, parent.Close())
}

// TestWhatCannotBeMovedIsRemovedInPlace: what is in the wrong place, or finds no space elsewhere, is removed where it is.
func TestWhatCannotBeMovedIsRemovedInPlace(t *testing.T) {
	t.Parallel()

	for _, err := range []error{unix.EXDEV, unix.ENOSPC, unix.EDQUOT} {
		require.True(t, unmovable(fmt.Errorf("moved: %w", err)), "want: %v does not end the removal", err)
	}

	for _, err := range []error{nil, unix.EIO, errors.ErrUnsupported} {
		require.False(t, unmovable(err), "want: %v ends the removal, or the move", err)
	}
}

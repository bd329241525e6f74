package tree_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// TestUnreadableDirectoriesFail each call, which changes nothing: none takes them for empty or for
// missing.
func TestUnreadableDirectoriesFail(t *testing.T) {
	t.Parallel()

	root := grow(t)
	before := list(t, root)
	good := open(t, root)
	above := open(t, filepath.Dir(root))
	closed, err := os.Open(root)
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	gone, err := os.OpenRoot(root)
	require.NoError(t, err)
	require.NoError(t, gone.Close())

	calls := 0
	visit := func(*os.File, bool) error { calls++; return nil }
	count := func(context.Context, *os.File, uint32) error { calls++; return nil }
	copied := func(source, target, links *os.File) error {
		copier := tree.NewCopier(target, links, "links")
		defer copier.Close()

		return copier.Copy(t.Context(), source, nil)
	}

	for name, call := range map[string]func() error{
		"Visit":       func() error { return tree.Visit(t.Context(), closed, visit) },
		"Measure":     func() error { _, err := tree.Measure(t.Context(), closed, nil); return err },
		"Measure, of": func() error { _, err := tree.Measure(t.Context(), closed, count); return err },
		"Copy from":   func() error { return copied(closed, open(t, t.TempDir()), open(t, t.TempDir())) },
		"Copy to":     func() error { return copied(good, closed, open(t, t.TempDir())) },
		"Copy links":  func() error { return copied(good, open(t, t.TempDir()), closed) },
		"Remove":      func() error { return tree.Remove(t.Context(), closed, "a") },
		"RemoveName":  func() error { _, err := tree.RemoveName(closed, "sparse"); return err },
		"Move from":   func() error { return tree.Move(closed, "a", above, "b") },
		"Move to":     func() error { return tree.Move(good, "a", closed, "b") },
		"OpenAt":      func() error { _, err := tree.OpenAt(closed, "a", os.O_RDONLY, 0); return err },
		"OpenIn":      func() error { _, err := tree.OpenIn(gone, "a", os.O_RDONLY, 0); return err },
		"OpenPinned":  func() error { _, err := tree.OpenPinned(closed); return err },
		"Stat":        func() error { _, err := tree.Stat(closed); return err },
	} {
		require.Error(t, call(), "want: %s fails", name)
	}

	require.Zero(t, calls, "want: nothing is visited")
	require.Equal(t, before, list(t, root))
}

package kata_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// refused has every call refuse the root.
func refused(t *testing.T, root *kata.Root, what string) {
	t.Helper()

	_, _, getting := root.Get(target)
	_, listing := root.List()

	for _, err := range []error{root.Put(plain()), root.Remove(target), getting, listing} {
		require.ErrorIs(t, err, kata.ErrUnsafeRoot)
		errtext.Require(t, err, what)
	}
}

func TestRootWritableByOthersIsRefused(t *testing.T) {
	t.Parallel()

	for _, mode := range []fs.FileMode{0o720, 0o702, 0o777, 0o777 | fs.ModeSticky} {
		root, path := madeRoot(t)
		put(t, filepath.Join(path, entryOfTarget, "mountInfo.json"), golden(t, "full.mountInfo.json"))
		require.NoError(t, os.Chmod(path, mode))

		before := tree(t, path)

		refused(t, root, "chmod go-w")
		require.Equal(t, before, tree(t, path))

		require.NoError(t, os.Chmod(path, 0o755))
		require.NoError(t, root.Put(plain()))
	}
}

func TestARootOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	namespace.NeedRoot(t)

	root, path := madeRoot(t)
	require.NoError(t, os.Chown(path, 65534, -1))
	refused(t, root, "it belongs to uid 65534; give it to uid 0 (chown)")
	require.Equal(t, map[string]string{".": "drwx------"}, tree(t, path))
}

func TestRootOfAnotherTypeIsRefused(t *testing.T) {
	t.Parallel()

	victim := t.TempDir()
	path := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Symlink(victim, path))
	refused(t, kata.NewRoot(path), "symlink")
	refused(t, kata.NewRoot(path+"/"), "symlink")
	require.Len(t, tree(t, victim), 1, "want: nothing is made behind the symlink")

	dangling := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Symlink(filepath.Join(victim, "nothing"), dangling))
	refused(t, kata.NewRoot(dangling), "symlink")
	require.Len(t, tree(t, victim), 1, "want: nothing is made behind the symlink")

	file := filepath.Join(t.TempDir(), "root")
	put(t, file, "content")
	refused(t, kata.NewRoot(file), "file instead of a directory")
}

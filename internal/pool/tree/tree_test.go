package tree_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

const block = 4096

var modified = time.Unix(1_000_000_000, 5000)

// open opens a directory, which is closed with the test.
func open(t *testing.T, path string) *os.File {
	t.Helper()

	directory, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = directory.Close() })

	return directory
}

// grow makes a tree of what an ordinary user can make, below a directory beside what is not of it.
func grow(t *testing.T) string {
	t.Helper()

	base := t.TempDir()
	root := filepath.Join(base, "tree")
	at := func(name string) string { return filepath.Join(root, name) }

	require.NoError(t, os.MkdirAll(at("a/b/c"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "outside"), []byte("outside"), 0o600))
	require.NoError(t, os.WriteFile(at("a/file"), []byte("content"), 0o600))
	require.NoError(t, os.Link(at("a/file"), at("a/b/hard link")))
	require.NoError(t, os.Symlink("../outside", at("symlink")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))

	sparse, err := os.Create(at("sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1024*block))
	_, err = sparse.WriteAt([]byte("data"), 512*block)
	require.NoError(t, err)
	require.NoError(t, sparse.Close())

	require.NoError(t, os.Chmod(at("a/file"), 0o640))
	require.NoError(t, os.Chmod(at("a/b"), 0o750|fs.ModeSticky))
	require.NoError(t, os.Chtimes(at("sparse"), modified, modified))
	require.NoError(t, os.Chtimes(at("a/b"), modified, modified))

	return root
}

// list has a line for each name of a tree: mode, links, size, time and content, or where a symlink leads.
func list(t *testing.T, root string) map[string]string {
	t.Helper()

	found := map[string]string{}

	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)

		var stat unix.Stat_t

		require.NoError(t, unix.Lstat(path, &stat))

		info, err := os.Lstat(path)
		require.NoError(t, err)

		line := []string{info.Mode().String(), info.ModTime().String()}
		content := ""

		switch info.Mode().Type() {
		case 0:
			read, err := os.ReadFile(path)
			require.NoError(t, err)

			content = string(read)
			line = append(line, strings.Repeat("link ", int(stat.Nlink)))
		case fs.ModeSymlink:
			content, err = os.Readlink(path)
			require.NoError(t, err)
		}

		relative, err := filepath.Rel(root, path)
		require.NoError(t, err)

		found[relative] = strings.Join(append(line, content), " ")

		return nil
	}))

	return found
}

func TestCopyKeepsAll(t *testing.T) {
	t.Parallel()

	root := grow(t)
	target := t.TempDir()
	copier := tree.NewCopier(open(t, target), open(t, filepath.Dir(target)), "links")

	defer copier.Close()

	var last, total int64

	require.NoError(t, copier.Copy(t.Context(), open(t, root), func(done, of int64) {
		require.GreaterOrEqual(t, done, last, "want: progress goes on")
		last, total = done, of
	}))
	require.Equal(t, total, last, "the progress at the end")
	require.Positive(t, total, "want: the tree has bytes")
	require.Positive(t, copier.AllocatedBytes(), "want: the copy has allocated bytes")

	links := filepath.Join(filepath.Dir(target), "links")
	require.DirExists(t, links, "want: the caller removes the directory of links")
	require.NoError(t, os.RemoveAll(links))
	require.Equal(t, list(t, root), list(t, target))

	usage, err := tree.Measure(t.Context(), open(t, target), nil)
	require.NoError(t, err)
	require.Less(t, usage.Bytes, int64(1024*block), "want: holes are kept")
}

// TestMeasureCountsAFileOfTwoNamesOnce, and nothing that a symlink leads to.
func TestMeasureCountsAFileOfTwoNamesOnce(t *testing.T) {
	t.Parallel()

	root := grow(t)

	usage, err := tree.Measure(t.Context(), open(t, root), nil)
	require.NoError(t, err)
	require.EqualValues(t, 8, usage.Inodes, "the root, 3 directories, file, symlink, FIFO and sparse file")
	require.Positive(t, usage.Bytes, "want: the tree uses bytes")

	visited := 0
	without, err := tree.Measure(t.Context(), open(t, root), func(context.Context, *os.File, uint32) error {
		visited++

		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, visited, "the names of regular files")
	require.EqualValues(t, 6, without.Inodes, "want: the skipped names are not counted")
	require.Less(t, without.Bytes, usage.Bytes, "want: the skipped files use no bytes")

	failure, calls := errors.New("failure"), 0
	_, err = tree.Measure(t.Context(), open(t, root), func(context.Context, *os.File, uint32) error {
		calls++

		return failure
	})
	require.ErrorIs(t, err, failure)
	require.Equal(t, 1, calls, "want: the first error ends a walk whose result it takes away")
}

func TestVisitCallsForEachFileOnce(t *testing.T) {
	t.Parallel()

	root := grow(t)

	var found []string

	err := tree.Visit(t.Context(), open(t, root), func(file *os.File, isDirectory bool) error {
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
		require.NoError(t, err)

		info, err := file.Stat()
		require.NoError(t, err)
		require.Equal(t, info.IsDir(), isDirectory, "want: whether %s is a directory", path)

		found = append(found, strings.TrimPrefix(strings.TrimPrefix(path, root), "/"))

		if strings.HasSuffix(path, "/c") {
			return os.ErrClosed
		}

		return nil
	})
	require.ErrorIs(t, err, os.ErrClosed, "want: the first error, after all was visited")
	require.ElementsMatch(t, []string{"", "a", "a/b", "a/b/c", "a/b/hard link", "a/file", "sparse"}, found)
}

func TestRemoveLeavesNothing(t *testing.T) {
	t.Parallel()

	root := grow(t)
	base := filepath.Dir(root)

	// Deeper than the directories that are open at once.
	require.NoError(t, os.MkdirAll(filepath.Join(root, strings.Repeat("d/", 100)), 0o700))

	removed, err := tree.RemoveName(open(t, base), "tree")
	require.NoError(t, err)
	require.False(t, removed, "want: a directory that is not empty stays")

	require.NoError(t, tree.Move(open(t, base), "tree", open(t, t.TempDir()), "new"))
	require.NoDirExists(t, root)

	root = grow(t)
	base = filepath.Dir(root)

	require.NoError(t, os.MkdirAll(filepath.Join(root, strings.Repeat("d/", 100)), 0o700))
	require.NoError(t, tree.Remove(t.Context(), open(t, base), "tree"))
	require.NoError(t, tree.Remove(t.Context(), open(t, base), "tree"), "want: a missing name is no error")

	left, err := os.ReadDir(base)
	require.NoError(t, err)
	require.Len(t, left, 1, "want: the outer directory alone is left")
	require.Equal(t, "outside", left[0].Name(), "want: a symlink is not followed")
}

// TestMoveJoinsAnEarlierDirectory of the name, which was not removed yet.
func TestMoveJoinsAnEarlierDirectory(t *testing.T) {
	t.Parallel()

	from, to := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(to, "id", "earlier"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(from, "id", "later"), 0o700))

	require.NoError(t, tree.Move(open(t, from), "id", open(t, to), "id"))

	found, err := filepath.Glob(filepath.Join(to, "id", "*", "later"))
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the later one is in the earlier one")
	require.DirExists(t, filepath.Join(to, "id", "earlier"))
}

func TestCancelledContextEndsEachCall(t *testing.T) {
	t.Parallel()

	root := grow(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	target := open(t, t.TempDir())
	copier := tree.NewCopier(target, target, "links")

	defer copier.Close()

	require.ErrorIs(t, copier.Copy(ctx, open(t, root), nil), context.Canceled)

	_, err := tree.Measure(ctx, open(t, root), nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, tree.Remove(ctx, open(t, filepath.Dir(root)), "tree"), context.Canceled)
	require.FileExists(t, filepath.Join(root, "a", "file"))
}

// TestOpenAtFollowsNoSymlink, also none that stays in the directory.
func TestOpenAtFollowsNoSymlink(t *testing.T) {
	t.Parallel()

	root := grow(t)
	require.NoError(t, os.Symlink("sparse", filepath.Join(root, "inside")))

	_, err := tree.OpenAt(open(t, root), "inside", os.O_RDONLY, 0)
	require.ErrorIs(t, err, unix.ELOOP)

	opened, err := os.OpenRoot(root)
	require.NoError(t, err)

	defer opened.Close()

	_, err = tree.OpenIn(opened, "inside", os.O_RDONLY, 0)
	require.ErrorIs(t, err, unix.ELOOP)

	file, err := tree.OpenIn(opened, "sparse", os.O_RDONLY, 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

package tree_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool/tree"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// within returns an operation of a directory that is open.
func within(run func(directory *os.File) error) syscallfault.Operation {
	return func(path string) (func() error, func() error, error) {
		directory, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}

		return func() error { return run(directory) }, directory.Close, nil
	}
}

// inTree returns an operation of the directory "tree" in the one that is open.
func inTree(run func(directory *os.File) error) syscallfault.Operation {
	return within(func(outer *os.File) error {
		directory, err := tree.OpenAt(outer, "tree", os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}

		return errors.Join(run(directory), directory.Close())
	})
}

// copyTo copies the directory "tree" to a new one beside it.
func copyTo(directory *os.File, name, links string) error {
	source, err := tree.OpenAt(directory, "tree", os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer source.Close()

	if err := unix.Mkdirat(int(directory.Fd()), name, 0o700); err != nil {
		return err
	}

	target, err := tree.OpenAt(directory, name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer target.Close()

	copier := tree.NewCopier(target, directory, links)
	defer copier.Close()

	return copier.Copy(context.Background(), source, func(int64, int64) {})
}

var onceOperations = map[string]syscallfault.Operation{
	"visit": inTree(func(directory *os.File) error {
		visited := 0

		err := tree.Visit(context.Background(), directory, func(*os.File, bool) error {
			visited++

			return nil
		})
		if err != nil {
			return err
		}

		return syscallfault.Differs("visited", 7, visited)
	}),
	"measure": inTree(func(directory *os.File) error {
		usage, err := tree.Measure(context.Background(), directory, nil)
		if err != nil {
			return err
		}

		return syscallfault.Differs("inodes", 8, usage.Inodes)
	}),
	"copy": func(path string) (run, end func() error, err error) {
		copies := 0

		// What a failed one leaves is not completed.
		return within(func(directory *os.File) error {
			copies++

			return copyTo(directory, fmt.Sprint("copy ", copies), fmt.Sprint("links ", copies))
		})(path)
	},
	"restore times": inTree(func(directory *os.File) error {
		made, err := tree.Stat(directory)
		if err != nil {
			return err
		}

		made.Atime, made.Mtime = unix.StatxTimestamp{Sec: 1000}, unix.StatxTimestamp{Sec: 2000, Nsec: 3}

		return tree.RestoreTimes(directory, made)
	}),
	"remove": within(func(directory *os.File) error { return tree.Remove(context.Background(), directory, "tree") }),
	"remove a name": within(func(directory *os.File) error {
		removed, err := tree.RemoveName(directory, "outside")
		if err != nil {
			return err
		}

		return syscallfault.Differs("removed", true, removed)
	}),
	"move": within(func(directory *os.File) error {
		target, err := tree.OpenAt(directory, "target", os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer target.Close()

		return tree.Move(directory, "tree", target, "earlier")
	}),
}

// TestEachCallFailsOnce has each system call fail once that is made for a tree. It is reported, and the
// operation succeeds when it is repeated.
func TestEachCallFailsOnce(t *testing.T) {
	t.Parallel()

	cases := map[string]*syscallfault.Case{
		"visit": {}, "measure": {},
		"copy": {Verify: func(t *testing.T, directory string) {
			t.Helper()

			copies, err := filepath.Glob(filepath.Join(directory, "copy *"))
			require.NoError(t, err)
			require.NotEmpty(t, copies, "want: the tree is copied")
			require.NoError(t, os.RemoveAll(strings.Replace(copies[len(copies)-1], "copy ", "links ", 1)))
			require.Equal(t, list(t, filepath.Join(directory, "tree")), list(t, copies[len(copies)-1]), "want: the copy has all of the tree")
		}},
		"restore times": {Reported: []string{"statx", "utimensat", "fsync"}, Verify: func(t *testing.T, directory string) {
			t.Helper()

			var found unix.Stat_t
			require.NoError(t, unix.Stat(filepath.Join(directory, "tree"), &found))
			require.Equal(t, unix.Timespec{Sec: 2000, Nsec: 3}, found.Mtim)
		}},
		// What could not be removed at first is removed by a later pass.
		"remove": {Except: regexp.MustCompile("/deep"), Reported: []string{"unlinkat outside", "openat2 tree#1"}, Verify: func(t *testing.T, directory string) {
			t.Helper()
			require.NoDirExists(t, filepath.Join(directory, "tree"))
			require.FileExists(t, filepath.Join(directory, "outside"))
		}},
		"remove a name": {Verify: func(t *testing.T, directory string) {
			t.Helper()
			require.NoFileExists(t, filepath.Join(directory, "outside"))
		}},
		"move": {Verify: func(t *testing.T, directory string) {
			t.Helper()
			require.NoDirExists(t, filepath.Join(directory, "tree"))

			found, err := filepath.Glob(filepath.Join(directory, "target", "earlier", "*", "symlink"))
			require.NoError(t, err)
			require.Len(t, found, 1, "want: the directory is in the earlier one of the name")
		}},
	}

	for name, c := range cases {
		c.Operation, c.Lossy = name, []string{"*", "*/*", "*/*/*", "*/*/*/*"}

		if c.Reported == nil {
			c.Reported = []string{""}
		}

		c.Prepare = func(t *testing.T, directory string) {
			t.Helper()
			require.NoError(t, os.Rename(grow(t), filepath.Join(directory, "tree")))
			require.NoError(t, os.WriteFile(filepath.Join(directory, "outside"), nil, 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(directory, "target", "earlier", "file"), 0o700))

			if name == "remove" { // what is too deep for one pass
				require.NoError(t, os.MkdirAll(filepath.Join(directory, "tree", "deep", strings.Repeat("d/", 40)), 0o700))
			}
		}

		if c.Verify == nil {
			c.Verify = func(*testing.T, string) {}
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			c.Causes = true
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}

// TestVisitContinuesAfterAnError calls for all files, reports the first error, and leaves out what
// is neither a directory nor a regular file.
func TestVisitContinuesAfterAnError(t *testing.T) {
	t.Parallel()

	root := grow(t)
	first := errors.New("the first error")
	visited := 0

	err := tree.Visit(t.Context(), open(t, root), func(*os.File, bool) error {
		visited++
		if visited == 1 {
			return first
		}

		return os.ErrClosed
	})
	require.ErrorIs(t, err, first)
	require.NotErrorIs(t, err, os.ErrClosed)
	require.Equal(t, 7, visited, "want: all directories and regular files are visited")
}

// TestTooDeepTreeIsRefused: it is deeper than a path can be; one that is as deep is copied.
func TestTooDeepTreeIsRefused(t *testing.T) {
	t.Parallel()

	const most = 2048

	root := testpool.InMemory(t)
	at := open(t, root)

	for levels := 1; levels <= most+2; levels++ {
		require.NoError(t, unix.Mkdirat(int(at.Fd()), "d", 0o700))

		next, err := tree.OpenAt(at, "d", os.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		require.NoError(t, at.Close())

		at = next

		if levels < most {
			continue
		}

		usage, err := tree.Measure(t.Context(), open(t, root), nil)
		if levels > most {
			require.ErrorIs(t, err, errors.ErrUnsupported, "want: a tree of %d levels is refused", levels)
		} else {
			require.NoError(t, err)
			require.EqualValues(t, levels+1, usage.Inodes, "want: all levels are counted")
		}
	}

	require.NoError(t, at.Close())
	require.NoError(t, tree.Remove(t.Context(), open(t, filepath.Dir(root)), filepath.Base(root)))
}

// TestCopyKeepsLinksAlone copies hard links in several directories, beside a file of one name, and
// reports what it copies of all regular files.
func TestCopyKeepsLinksAlone(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	root := filepath.Join(base, "tree")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a"), 0o700))

	for _, name := range []string{"one", "two"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(name), 0o600))
		require.NoError(t, os.Link(filepath.Join(root, name), filepath.Join(root, "a", name)))
	}

	target := t.TempDir()
	copier := tree.NewCopier(open(t, target), open(t, base), "links")
	require.NoError(t, copier.Copy(t.Context(), open(t, root), nil))
	copier.Close()

	names, err := os.ReadDir(filepath.Join(base, "links"))
	require.NoError(t, err)
	require.Len(t, names, 2, "want: the directory of links has one for each file with several names")
	require.NoError(t, os.RemoveAll(filepath.Join(base, "links")))
	require.Equal(t, list(t, root), list(t, target))

	inodes := map[uint64][]string{}

	for _, name := range []string{"one", "two", "a/one", "a/two"} {
		var found unix.Stat_t
		require.NoError(t, unix.Stat(filepath.Join(target, name), &found))
		inodes[found.Ino] = append(inodes[found.Ino], filepath.Base(name))
	}

	require.Len(t, inodes, 2, "want: each file is copied once")

	for _, each := range inodes {
		require.Len(t, slices.Compact(each), 1, "want: the names of a file lead to its copy: %v", each)
	}
}

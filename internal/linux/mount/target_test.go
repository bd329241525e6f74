package mount_test

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// fillDir makes one entry of each type.
func fillDir(t *testing.T, dir string) {
	t.Helper()

	makeDir(t, dir, "directory")
	makeDir(t, dir, "full", "child")
	writeFile(t, filepath.Join(dir, "file"), "")
	writeFile(t, filepath.Join(dir, "content"), "data")
	require.NoError(t, os.Symlink("file", filepath.Join(dir, "symlink")))
	require.NoError(t, os.Symlink("directory", filepath.Join(dir, "symlink-to-directory")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))

	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
}

func TestExists(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	fillDir(t, dir)

	for name, want := range map[string]bool{
		"directory": true, "file": true, "symlink": true, "dangling": true, "pipe": true, "socket": true, "nothing": false,
	} {
		exists, err := find(t, dirs, filepath.Join(dir, name)).Exists()
		require.NoError(t, err)
		require.Equal(t, want, exists, name)
	}
}

func TestMakeDirReportsWhetherItMadeIt(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	fillDir(t, dir)

	target := find(t, dirs, dir+"/new")
	made, err := target.MakeDir(0o750)
	require.NoError(t, err)
	require.True(t, made, "want: the target was made")

	made, err = target.MakeDir(0o750)
	require.NoError(t, err)
	require.False(t, made, "the second time it was there")

	info, err := os.Stat(dir + "/new")
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|0o750, info.Mode(), "want: the new directory has its mode")

	for name, want := range map[string]error{
		"file": mount.ErrWrongType, "pipe": mount.ErrWrongType, "socket": mount.ErrWrongType,
		"symlink": mount.ErrSymlink, "symlink-to-directory": mount.ErrSymlink, "dangling": mount.ErrSymlink,
	} {
		made, err := find(t, dirs, filepath.Join(dir, name)).MakeDir(0o750)
		require.ErrorIs(t, err, want, name)
		errtext.Require(t, err, filepath.Join(dir, name))
		require.False(t, made, "want: the target was there already")
	}
}

func TestMakeFileReportsWhetherItMadeIt(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	fillDir(t, dir)

	target := find(t, dirs, dir+"/new")
	made, err := target.MakeFile(0o600)
	require.NoError(t, err)
	require.True(t, made, "want: the target was made")

	made, err = target.MakeFile(0o600)
	require.NoError(t, err)
	require.False(t, made, "want: the target was there already")

	made, err = find(t, dirs, dir+"/content").MakeFile(0o600)
	require.NoError(t, err)
	require.False(t, made, "want: the target was there already")

	content, err := os.ReadFile(dir + "/content")
	require.NoError(t, err)
	require.Equal(t, "data", string(content), "it must not be truncated")

	for name, want := range map[string]error{
		"directory": mount.ErrWrongType, "pipe": mount.ErrWrongType, "socket": mount.ErrWrongType,
		"symlink": mount.ErrSymlink, "dangling": mount.ErrSymlink,
	} {
		_, err := find(t, dirs, filepath.Join(dir, name)).MakeFile(0o600)
		require.ErrorIs(t, err, want, name)
	}

	require.NoFileExists(t, dir+"/nowhere", "nothing is made through a dangling symlink")
}

func TestRemoveKeepsNonEmptyTargets(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	fillDir(t, dir)

	for name, want := range map[string]error{
		"directory": nil, "file": nil, "nothing": nil,
		"full": mount.ErrNotEmpty, "content": mount.ErrNotEmpty,
		"symlink": mount.ErrWrongType, "symlink-to-directory": mount.ErrWrongType, "dangling": mount.ErrWrongType,
		"pipe": mount.ErrWrongType, "socket": mount.ErrWrongType,
	} {
		path := filepath.Join(dir, name)
		require.ErrorIs(t, find(t, dirs, path).Remove(), want, name)

		_, err := os.Lstat(path)
		if want == nil {
			require.ErrorIs(t, err, fs.ErrNotExist, name)
		} else {
			require.NoError(t, err, "%s must still be there", name)
		}
	}

	require.DirExists(t, dir+"/full/child")
}

func TestRemoveKeepsMountPoints(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	target := findDir(t, dirs, dir+"/target")
	mountTmpfs(t, target.Path())

	require.ErrorIs(t, target.Remove(), mount.ErrBusy)
	requireMounted(t, target)
	require.NoError(t, target.Unmount())
	require.NoError(t, target.Remove())
	require.NoDirExists(t, target.Path())
}

func TestOpenFollowsNoSymlink(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	fillDir(t, dir)

	for name, want := range map[string]error{
		"directory": nil, "file": nil, "symlink": mount.ErrSymlink, "dangling": mount.ErrSymlink, "nothing": fs.ErrNotExist,
	} {
		file, err := find(t, dirs, filepath.Join(dir, name)).Open()
		require.ErrorIs(t, err, want, name)

		if err == nil {
			require.NoError(t, file.Close())
		}
	}

	opened, err := find(t, dirs, dir+"/full").OpenDir()
	require.NoError(t, err)

	defer opened.Close()

	names, err := opened.Readdirnames(-1)
	require.NoError(t, err)
	require.Equal(t, []string{"child"}, names)

	_, err = find(t, dirs, dir+"/file").OpenDir()
	require.ErrorIs(t, err, mount.ErrWrongType)
}

// The opened directory counts, not the one to which the path leads later.
func TestTargetStaysInTheOpenedDirectory(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	outside := t.TempDir()
	pod := makeDir(t, dir, "pod")
	target := find(t, dirs, pod+"/target")

	require.NoError(t, os.Rename(pod, dir+"/moved"))
	require.NoError(t, os.Symlink(outside, pod))

	_, err := target.MakeDir(0o750)
	require.NoError(t, err)
	require.DirExists(t, dir+"/moved/target")
	require.NoDirExists(t, outside+"/target")
}

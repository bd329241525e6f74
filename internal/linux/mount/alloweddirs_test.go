package mount_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestRefusalNamesEachDirectoryOnce: the kubelet's may be among those that a flag allows, too.
func TestRefusalNamesEachDirectoryOnce(t *testing.T) {
	t.Parallel()

	dirs, err := mount.NewAllowedDirs("/var/lib/kubelet", "/tmp", "/var/lib/kubelet/")
	require.NoError(t, err)
	errtext.Require(t, dirs.CheckPath("/etc/x"), "it must be beneath /var/lib/kubelet or /tmp")
}

func TestNewAllowedDirsRefusesBadDirectories(t *testing.T) {
	t.Parallel()

	_, err := mount.NewAllowedDirs()
	require.ErrorIs(t, err, mount.ErrOutsideAllowed)

	_, err = mount.NewAllowedDirs("/run", "var/lib/kubelet")
	require.ErrorIs(t, err, mount.ErrNotAbsolute)
	errtext.Require(t, err, "var/lib/kubelet")

	_, err = mount.NewAllowedDirs("/run\x00")
	require.ErrorIs(t, err, mount.ErrInvalidPath)
}

func TestFindRefuses(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	outside := t.TempDir()

	makeDir(t, dir, "pods")
	makeDir(t, outside, "deeper")
	makeDir(t, dir+"-sibling")
	t.Cleanup(func() { _ = os.RemoveAll(dir + "-sibling") })
	writeFile(t, filepath.Join(dir, "file"), "content")
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink("pods", filepath.Join(dir, "inner")))
	require.NoError(t, os.Symlink("/proc/self/cwd", filepath.Join(dir, "magic")))

	for name, test := range map[string]struct {
		path string
		want error
	}{
		"empty":                    {"", mount.ErrNotAbsolute},
		"relative":                 {"pods/x", mount.ErrNotAbsolute},
		"only dots":                {"..", mount.ErrNotAbsolute},
		"two dots inside":          {dir + "/pods/../pods/x", mount.ErrInvalidPath},
		"two dots to the outside":  {dir + "/../x", mount.ErrInvalidPath},
		"two dots at the end":      {dir + "/pods/..", mount.ErrInvalidPath},
		"dot":                      {dir + "/./pods/x", mount.ErrInvalidPath},
		"dot at the end":           {dir + "/pods/.", mount.ErrInvalidPath},
		"NUL":                      {dir + "/pods/x\x00y", mount.ErrInvalidPath},
		"a name too long":          {dir + "/pods/" + strings.Repeat("n", 256), mount.ErrInvalidPath},
		"a path too long":          {dir + strings.Repeat("/name", 900), mount.ErrInvalidPath},
		"a mebibyte":               {"/" + strings.Repeat("n", 1<<20), mount.ErrInvalidPath},
		"outside":                  {"/etc/x", mount.ErrOutsideAllowed},
		"the root":                 {"/", mount.ErrOutsideAllowed},
		"a sibling":                {dir + "-sibling/x", mount.ErrOutsideAllowed},
		"the directory":            {dir, mount.ErrOutsideAllowed},
		"the directory with slash": {dir + "//", mount.ErrOutsideAllowed},
		"the directory's parent":   {filepath.Dir(dir), mount.ErrOutsideAllowed},
		"symlink to the outside":   {dir + "/out/x", mount.ErrSymlink},
		"symlink further up":       {dir + "/out/deeper/x", mount.ErrSymlink},
		"symlink to the inside":    {dir + "/inner/x", mount.ErrSymlink},
		"magic link":               {dir + "/magic/x", mount.ErrSymlink},
		"file as parent":           {dir + "/file/x", mount.ErrWrongType},
		"missing parent":           {dir + "/missing/x", fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			target, err := dirs.Target(test.path)
			require.ErrorIs(t, err, test.want)
			require.Nil(t, target, "want: a refused path has no target")
			require.Less(t, len(err.Error()), 1500, "a long path must not fill the log")
			require.NotContains(t, err.Error(), "\x00")

			if byItsWords := dirs.CheckPath(test.path); byItsWords != nil {
				require.EqualError(t, byItsWords, err.Error())
			} else {
				require.NotErrorIs(t, err, mount.ErrNotAbsolute)
				require.NotErrorIs(t, err, mount.ErrInvalidPath)
				require.NotErrorIs(t, err, mount.ErrOutsideAllowed)
			}
		})
	}

	_, err := dirs.Target(dir + "/missing/x")
	errtext.Require(t, err, dir+"/missing")
}

// The path is only parsed, so that it need not exist. A message quotes 512 bytes of it.
func TestLongestPathIsAccepted(t *testing.T) {
	t.Parallel()

	const (
		mostBytes, mostOfName, mostQuoted = 4095, 255, 512
	)

	dir, dirs := allowedDir(t)
	long := func(bytes int) string {
		path := dir + strings.Repeat("/name", bytes/len("/name"))

		return path[:bytes-1] + "x"
	}

	for path, want := range map[string]string{
		long(mostBytes - 1): "",
		long(mostBytes):     "",
		long(mostBytes + 1): fmt.Sprintf("%q… (4096 bytes): %s: it has 4096 bytes and the kernel takes 4095",
			long(mostBytes + 1)[:mostQuoted], mount.ErrInvalidPath),
		dir + "/" + strings.Repeat("n", mostOfName-1): "",
		dir + "/" + strings.Repeat("n", mostOfName):   "",
		"/" + strings.Repeat("n", mostOfName+1): fmt.Sprintf("%q: %s: a name in it has 256 bytes and the kernel takes 255",
			"/"+strings.Repeat("n", mostOfName+1), mount.ErrInvalidPath),
		strings.Repeat("n", mostQuoted-1): fmt.Sprintf("%q: %s", strings.Repeat("n", mostQuoted-1), mount.ErrNotAbsolute),
		strings.Repeat("n", mostQuoted):   fmt.Sprintf("%q: %s", strings.Repeat("n", mostQuoted), mount.ErrNotAbsolute),
		strings.Repeat("n", mostQuoted+1): fmt.Sprintf("%q… (513 bytes): %s", strings.Repeat("n", mostQuoted), mount.ErrNotAbsolute),
	} {
		err := dirs.CheckPath(path)
		if want == "" {
			require.NoError(t, err, "a path of %d bytes", len(path))
		} else {
			require.EqualError(t, err, want)
		}
	}
}

func TestFindToleratesExtraSlashes(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	makeDir(t, dir, "pods")

	target := find(t, dirs, dir+"//pods///target//")
	require.Equal(t, dir+"/pods/target", target.Path())

	made, err := target.MakeDir(0o750)
	require.NoError(t, err)
	require.True(t, made, "want: the target was made")
	require.DirExists(t, dir+"/pods/target")
}

func TestFindReopensTheAllowedDirectory(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	link := filepath.Join(base, "kubelet")

	dirs, err := mount.NewAllowedDirs(link)
	require.NoError(t, err)

	_, err = dirs.Target(link + "/target")
	require.ErrorIs(t, err, fs.ErrNotExist)
	errtext.Require(t, err, link)

	// Made later, as a symlink; then replaced.
	for _, target := range []string{makeDir(t, base, "first"), makeDir(t, base, "second")} {
		_ = os.Remove(link)

		require.NoError(t, os.Symlink(target, link))

		made, err := find(t, dirs, link+"/target").MakeDir(0o750)
		require.NoError(t, err)
		require.True(t, made, "want: the target was made")
		require.DirExists(t, target+"/target")
	}
}

func TestFindTakesTheLongestAllowedDirectory(t *testing.T) {
	t.Parallel()

	dir, elsewhere := t.TempDir(), t.TempDir()
	nested := filepath.Join(dir, "nested")
	// Only an allowed directory may be a symlink: it is followed exactly when
	// the longer one was taken.
	require.NoError(t, os.Symlink(elsewhere, nested))

	dirs, err := mount.NewAllowedDirs(dir, nested)
	require.NoError(t, err)

	_, err = find(t, dirs, nested+"/target").MakeDir(0o750)
	require.NoError(t, err)
	require.DirExists(t, elsewhere+"/target")

	_, err = dirs.Target(nested)
	require.ErrorIs(t, err, mount.ErrOutsideAllowed)
}

func TestTheRootAllowsAllBeneathIt(t *testing.T) {
	t.Parallel()

	dirs, err := mount.NewAllowedDirs("/")
	require.NoError(t, err)

	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	exists, err := find(t, dirs, dir).Exists()
	require.NoError(t, err)
	require.True(t, exists, "want: the path exists")

	_, err = dirs.Target("/")
	require.ErrorIs(t, err, mount.ErrOutsideAllowed)
}

func TestFindCrossesMounts(t *testing.T) {
	t.Parallel()
	needRoot(t)

	dir, dirs := allowedDir(t)
	mountTmpfs(t, makeDir(t, dir, "plugins"))
	makeDir(t, dir, "plugins", "staging")

	target := find(t, dirs, dir+"/plugins/staging/volume")
	made, err := target.MakeDir(0o750)
	require.NoError(t, err)
	require.True(t, made, "want: the target was made")
	requireNotMounted(t, target)
}

// A directory is exchanged with a symlink to the outside again and again while
// paths through it are found and written to.
func TestFindRefusesASwappedSymlink(t *testing.T) {
	t.Parallel()

	dir, dirs := allowedDir(t)
	outside := makeDir(t, t.TempDir(), "outside", "volume")
	inside := makeDir(t, dir, "pod")
	makeDir(t, inside, "volume")
	require.NoError(t, os.Symlink(filepath.Dir(outside), dir+"/evil"))

	longAgo := time.Unix(1_000_000_000, 0)
	require.NoError(t, os.Chtimes(outside, longAgo, longAgo))

	stop, stopped := make(chan struct{}), make(chan error, 1)

	go func() { stopped <- exchangeUntil(stop, inside, dir+"/evil") }()

	const atLeast = 2000

	found, refused := 0, 0
	for attempt := 0; attempt < atLeast || found == 0 || refused == 0; attempt++ {
		target, err := dirs.Target(inside + "/volume/target")
		if err != nil {
			require.ErrorIs(t, err, mount.ErrSymlink)

			refused++

			continue
		}

		_, err = target.MakeFile(0o600)
		require.NoError(t, err)
		require.NoError(t, target.Remove())
		target.Close()

		found++
	}

	close(stop)
	require.NoError(t, await.Receive(t, stopped, "the exchange of directories to stop"))

	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left, "want: nothing is made outside of the directory")

	// A file made there and removed again shows in the time.
	info, err := os.Stat(outside)
	require.NoError(t, err)
	require.Equal(t, longAgo, info.ModTime(), "something was made outside")
}

func exchangeUntil(stop <-chan struct{}, one, other string) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}

		err := unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
		if err != nil {
			return err
		}
	}
}

func FuzzFind(f *testing.F) {
	dir, err := filepath.EvalSymlinks(f.TempDir())
	require.NoError(f, err)

	allowed := makeDir(f, dir, "k")
	makeDir(f, allowed, "a", "b")
	makeDir(f, dir, "outside", "b")
	writeFile(f, allowed+"/f", "")
	require.NoError(f, os.Symlink("../outside", allowed+"/l"))
	require.NoError(f, os.Symlink("..", allowed+"/a/up"))
	require.NoError(f, os.Symlink("/proc/self/root", allowed+"/m"))

	dirs, err := mount.NewAllowedDirs(allowed)
	require.NoError(f, err)

	for _, path := range []string{
		"/a/b/c", "/a", "//a//x/", "/l/b/c", "/a/up/x", "/m/etc/x", "/f/x", "/a/../../outside/x", "/.", "", "-sibling/x",
		"/a\x00/x", "/missing/x", "/a/b/" + strings.Repeat("n", 300), "/\xff\xfe/x",
	} {
		f.Add(path, true)
		f.Add(path, false)
	}

	known := []error{
		mount.ErrNotAbsolute, mount.ErrInvalidPath, mount.ErrOutsideAllowed, mount.ErrSymlink, mount.ErrWrongType, fs.ErrNotExist,
	}

	f.Fuzz(func(t *testing.T, path string, beneath bool) {
		if beneath {
			path = allowed + path
		}

		target, err := dirs.Target(path)
		if err != nil {
			for _, want := range known {
				if errors.Is(err, want) {
					return
				}
			}

			t.Fatalf("%q gives an error that is no sentinel: %v", path, err)
		}

		defer target.Close()

		parent, err := mount.ParentPath(target)
		require.NoError(t, err)
		require.Truef(t, parent == allowed || strings.HasPrefix(parent, allowed+"/"), "%q opened %q", path, parent)
		require.Equal(t, parent, filepath.Dir(target.Path()))
	})
}

// TestMakeParentFollowsNoSymlink, and makes missing directories beneath the allowed one.
func TestMakeParentFollowsNoSymlink(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(base, "link")))

	allowed, err := mount.NewAllowedDirs(base)
	require.NoError(t, err)

	for range 2 {
		require.NoError(t, allowed.MakeParent(filepath.Join(base, "a", "b", "c"), 0o755))
	}

	require.DirExists(t, filepath.Join(base, "a", "b"))
	require.NoFileExists(t, filepath.Join(base, "a", "b", "c"))
	require.NoError(t, allowed.MakeParent(filepath.Join(base, "a"), 0o755))

	require.ErrorIs(t, allowed.MakeParent(filepath.Join(base, "link", "d", "e"), 0o755), mount.ErrSymlink)
	require.ErrorIs(t, allowed.MakeParent(outside, 0o755), mount.ErrOutsideAllowed)
	require.NoDirExists(t, filepath.Join(outside, "d"))

	require.NoError(t, os.RemoveAll(base))
	require.ErrorIs(t, allowed.MakeParent(filepath.Join(base, "a", "b"), 0o755), fs.ErrNotExist)
	require.NoDirExists(t, base, "want: the allowed directory is the administrator's to make")
}

func TestWithTargetReturnsTheErrorOfItsFunction(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	allowed, err := mount.NewAllowedDirs(base)
	require.NoError(t, err)

	var target *mount.Target

	do := func(at *mount.Target) error {
		target = at

		return fs.ErrNotExist
	}
	require.ErrorIs(t, allowed.WithTarget(filepath.Join(base, "a"), do), fs.ErrNotExist, "want: the function's own error")
	require.Equal(t, filepath.Join(base, "a"), target.Path(), "want: the target of the path")

	_, err = target.Exists()
	require.ErrorIs(t, err, unix.EBADF, "want: it is closed after the call")

	target = nil
	require.NoError(t, allowed.WithTarget(filepath.Join(base, "missing", "a"), do), "want: nothing can be there")
	require.ErrorIs(t, allowed.WithTarget("/elsewhere/a", do), mount.ErrOutsideAllowed)
	require.Nil(t, target, "want: no call without a target")
}

package mount_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/child"
)

func TestFilesAreForRootToRead(t *testing.T) {
	needRoot(t)

	dir, dirs := allowedDir(t)
	at := find(t, dirs, makeDir(t, dir, "at"))

	tree, err := mount.NewReadOnlyTmpfs("some/source", map[string][]byte{"one": []byte("1"), "two": []byte("22")})
	require.NoError(t, err)

	defer tree.Close()

	require.NoError(t, tree.Attach(at))

	point := requireMounted(t, at)
	require.Equal(t, "tmpfs", point.FSType)
	require.Equal(t, "some/source", point.Source)
	require.True(t, point.ReadOnly, "want: the mount is read-only")
	require.True(t, point.SuperReadOnly, "want: the filesystem is read-only")
	require.Subset(t, point.Options, []string{"nodev", "nosuid", "noexec"})

	content, err := os.ReadFile(filepath.Join(at.Path(), "two"))
	require.NoError(t, err)
	require.Equal(t, "22", string(content))

	for path, mode := range map[string]os.FileMode{"": os.ModeDir | 0o700, "one": 0o600} {
		info, err := os.Stat(filepath.Join(at.Path(), path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), "want: the file is for root only")
	}
}

// A container's runtime binds what the kubelet gives it, for writing.
func TestFilesStayReadOnlyWhereTheyAreBound(t *testing.T) {
	needRoot(t)

	dir, dirs := allowedDir(t)
	at := find(t, dirs, makeDir(t, dir, "at"))
	bound := makeDir(t, dir, "bound")

	tree, err := mount.NewReadOnlyTmpfs("source", map[string][]byte{"file": []byte("content")})
	require.NoError(t, err)

	defer tree.Close()

	require.NoError(t, tree.Attach(at))
	require.NoError(t, unix.Mount(at.Path(), bound, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", bound, "", unix.MS_BIND|unix.MS_REMOUNT, ""))

	file := filepath.Join(bound, "file")
	require.ErrorIs(t, os.WriteFile(file, []byte("forged"), 0o600), unix.EROFS)
	require.ErrorIs(t, os.Chmod(file, 0o666), unix.EROFS)
	require.ErrorIs(t, os.Remove(file), unix.EROFS)
	require.ErrorIs(t, os.WriteFile(filepath.Join(bound, "new"), nil, 0o600), unix.EROFS)
}

// unsealed returns a tmpfs and a file in it that is open for writing.
func unsealed(t *testing.T) (*mount.Detached, *os.File) {
	t.Helper()

	tree, err := mount.Mount("source", "tmpfs", flags(t))
	require.NoError(t, err)
	t.Cleanup(tree.Close)

	file, err := mount.Create(tree, "file")
	require.NoError(t, err)

	return tree, file
}

// A file that was just closed is still open for writing in a child that is being forked.
func TestSealingAwaitsAChildThatIsBeingForked(t *testing.T) {
	t.Parallel()
	needRoot(t)

	tree, file := unsealed(t)
	child.CloseWhileForked(t, file, 300*time.Millisecond)
	require.NoError(t, mount.Seal(tree), "make the filesystem read-only while a child is being forked")

	_, err := mount.Create(tree, "another")
	require.ErrorIs(t, err, unix.EROFS, "make a file in a read-only filesystem")
}

// A file that stays open for writing is no child's copy.
func TestSealingFailsWhileAFileIsOpenForWriting(t *testing.T) {
	t.Parallel()
	needRoot(t)

	tree, file := unsealed(t)
	require.ErrorIs(t, mount.Seal(tree), unix.EBUSY)
	require.NoError(t, file.Close())
	require.NoError(t, mount.Seal(tree), "make the filesystem read-only after the file was closed")
}

func TestUnfitFilesAreRefused(t *testing.T) {
	needRoot(t)

	_, err := mount.NewReadOnlyTmpfs("source", map[string][]byte{"a/b": nil})
	require.ErrorIs(t, err, unix.ENOENT)

	_, err = mount.NewReadOnlyTmpfs("source", map[string][]byte{"large": make([]byte, 1<<20)})
	require.ErrorIs(t, err, unix.ENOSPC)
}

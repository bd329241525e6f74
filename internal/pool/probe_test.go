package pool_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestSizeIsOfTheStoredObject(t *testing.T) {
	t.Parallel()

	opened := openPool(t, t.TempDir())
	id := volume.NewID()
	image := pool.Object{ID: id, Backing: volume.BackingImage}
	directory := pool.Object{ID: id, Backing: volume.BackingDirectory}

	for _, object := range []pool.Object{image, directory} {
		_, err := opened.Size(object)
		require.ErrorIs(t, err, pool.ErrMissing)
	}

	require.NoError(t, opened.Images.Create(id, mebi, false))
	require.NoError(t, opened.Directories.Create(id, 1<<30, false))

	size, err := opened.Size(image)
	require.NoError(t, err)
	require.EqualValues(t, mebi, size, "want: the size is the one of the image")

	size, err = opened.Size(directory)
	require.NoError(t, err)
	require.Zero(t, size, "want: a directory has no size of its own")

	_, err = opened.Size(pool.Object{ID: "../images", Backing: volume.BackingDirectory})
	require.ErrorIs(t, err, volume.ErrInvalidID)

	for _, kind := range []struct {
		object pool.Object
		put    func(path string) error
	}{
		{image, func(path string) error { return os.Mkdir(path, 0o700) }},
		{image, func(path string) error { return os.Symlink("/etc/passwd", path) }},
		{directory, func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{directory, func(path string) error { return os.Symlink("/etc", path) }},
	} {
		path := opened.ObjectPath(pool.Object{ID: id, Backing: kind.object.Backing})
		require.NoError(t, os.Remove(path))
		require.NoError(t, kind.put(path))

		_, err = opened.Size(kind.object)
		require.ErrorIs(t, err, pool.ErrMissing)
	}
}

// TestAVolumeIsFoundByItsID alone: of both backings, but not a snapshot.
func TestAVolumeIsFoundByItsID(t *testing.T) {
	t.Parallel()

	p := openPool(t, t.TempDir())
	image, directory := newImage(t, p, mebi), newDirectory(t, p, 1, kibi)
	snapshot := snapshotOf(t, directory)
	copied(t, p, p, directory, snapshot, pool.CopyOptions{})

	for _, want := range []pool.Object{image, directory} {
		found, info, err := p.Find(want.ID)
		require.NoError(t, err)
		require.Equal(t, want, found, "want: the volume is found")
		require.Equal(t, want == directory, info.IsDir(), "want: the information is that of the %s", want.Backing)

		opened, err := p.Open(want)
		require.NoError(t, err)
		require.Equal(t, p.ObjectPath(want), opened.Name(), "want: the %s is opened", want.Backing)
		require.NoError(t, opened.Close())
	}

	for _, id := range []string{snapshot.ID, newID(t)} {
		_, _, err := p.Find(id)
		require.ErrorIs(t, err, pool.ErrMissing)
	}

	_, _, err := p.Find("../images")
	require.ErrorIs(t, err, volume.ErrInvalidID)
}

func TestProbeReportsThePoolsCondition(t *testing.T) {
	t.Parallel()

	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		require.NoError(t, openPool(t, t.TempDir()).Probe())
	})

	t.Run("moved away", func(t *testing.T) {
		t.Parallel()

		directory := filepath.Join(t.TempDir(), "pool")
		opened := openPool(t, directory)
		require.NoError(t, os.Rename(directory, directory+".away"))
		require.ErrorIs(t, opened.Probe(), os.ErrNotExist)

		require.NoError(t, os.MkdirAll(filepath.Join(directory, "images"), 0o700))
		require.ErrorIs(t, opened.Probe(), pool.ErrReplaced)
	})

	t.Run("full", func(t *testing.T) {
		t.Parallel()
		namespace.NeedRoot(t)

		// No inode is left for a new file.
		directory := t.TempDir()
		require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, "nr_inodes=7"))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, unix.MNT_DETACH)) })

		opened := openPool(t, directory)
		fill(t, directory)
		require.ErrorIs(t, opened.Probe(), pool.ErrNoSpace)
	})

	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		namespace.NeedRoot(t)

		directory := t.TempDir()
		require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, ""))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, unix.MNT_DETACH)) })

		opened := openPool(t, directory)
		require.NoError(t, unix.Mount("", directory, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		require.ErrorIs(t, opened.Probe(), pool.ErrReadOnly)
	})
}

func fill(t *testing.T, directory string) {
	t.Helper()

	for {
		file, err := os.CreateTemp(directory, "")
		if err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)

			return
		}

		require.NoError(t, file.Close())
	}
}

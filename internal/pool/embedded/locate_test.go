package embedded_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestLocateFindsTheObjectsOfAPool, and changes nothing.
func TestLocateFindsTheObjectsOfAPool(t *testing.T) {
	directory := newDirectory(t)
	located := func() string {
		found, err := embedded.Locate(directory)
		require.NoError(t, err)

		return found
	}

	require.Equal(t, directory, located(), "want: a pool without an image is its directory")
	require.NoDirExists(t, directory)

	pool := ensure(t, filesystem.XFS, directory, small)
	require.Equal(t, pool.Directory(), located())
	end(t, pool)

	_, err := embedded.Locate(directory)
	require.ErrorIs(t, err, embedded.ErrNotMounted)
	errtext.Require(t, err, "mount -o loop,discard "+filepath.Join(directory, "pool.img"))
	require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the image is not mounted")

	at := filepath.Join(directory, "mounted")
	require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(at, 0)) })

	_, err = embedded.Locate(directory)
	require.ErrorIs(t, err, embedded.ErrForeign)
	errtext.Require(t, err, directory)
}

// TestADirectoryThatCannotBeMade has no image, and gets none.
func TestADirectoryThatCannotBeMade(t *testing.T) {
	file := emptyDirectory(t)
	write(t, file, "a file")

	options := embedded.Options{Directory: filepath.Join(file, "pool")}
	pool, err := embedded.Ensure(t.Context(), options)
	require.NoError(t, err, "want: an ordinary pool is left alone")
	require.Empty(t, pool.Image(), "want: there is no image")

	options.Bytes = small
	_, err = embedded.Ensure(t.Context(), options)
	require.ErrorIs(t, err, unix.ENOTDIR)
	errtext.Require(t, err, "make the directory")
}

// TestRequiredImageIsNotMade, nor formatted.
func TestRequiredImageIsNotMade(t *testing.T) {
	directory := newDirectory(t)
	options := embedded.Options{Directory: directory, Bytes: small, Filesystem: filesystem.XFS, MustExist: true}

	pool, err := embedded.Ensure(t.Context(), options)
	require.NoError(t, err)
	require.Empty(t, pool.Image(), "want: a missing image is not made")
	require.NoFileExists(t, filepath.Join(directory, "pool.img"))
	end(t, pool)

	empty(t, filepath.Join(directory, "pool.img"), small)
	_, err = embedded.Ensure(t.Context(), options)
	require.ErrorIs(t, err, embedded.ErrForeign)
	errtext.Require(t, err, "which the state knows")
	require.Zero(t, allocated(t, filepath.Join(directory, "pool.img")), "want: a blank image is not formatted")

	require.NoError(t, os.Remove(filepath.Join(directory, "pool.img")))
	end(t, ensure(t, filesystem.XFS, directory, small))

	pool, err = embedded.Ensure(t.Context(), options)
	require.NoError(t, err)
	require.NotEmpty(t, pool.Image(), "want: an image that exists is mounted")
	end(t, pool)
}

// TestCloseDoesNotWaitForVolumes leaves a pool mounted at once if an image in it is attached.
func TestCloseDoesNotWaitForVolumes(t *testing.T) { onEach(t, testCloseDoesNotWaitForVolumes) }

func testCloseDoesNotWaitForVolumes(t *testing.T, kind string) {
	directory := newDirectory(t)
	pool, log := ensureLogged(t, kind, directory, small)

	volume, err := os.Create(filepath.Join(pool.Directory(), "volume"))
	require.NoError(t, err)

	defer volume.Close()

	require.NoError(t, volume.Truncate(mib))

	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), volume, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)
	require.NoError(t, volume.Close())

	began := time.Now()
	end(t, pool)
	require.Less(t, time.Since(began), 4*time.Second, "want: a volume in use is not waited for")
	require.Contains(t, log.String(), stays)
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool stays mounted")

	// Closing it again does nothing.
	end(t, pool)
	require.True(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool stays mounted")

	again := ensure(t, kind, directory, 0)
	require.NoError(t, device.Close())
	end(t, again)
	require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool is not mounted")
}

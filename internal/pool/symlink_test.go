package pool_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// TestLinkedSubdirectoriesAreRefused: a symlink in place of a directory of the pool is not followed, neither
// out of the pool nor within it.
func TestLinkedSubdirectoriesAreRefused(t *testing.T) {
	t.Parallel()

	opened := func(directory string) error {
		p, err := pool.Open("a", directory, pool.Options{})
		if err == nil {
			require.NoError(t, p.Close())
		}

		return err
	}
	inspected := func(directory string) error {
		p, err := pool.Inspect("a", directory)
		if err == nil {
			require.NoError(t, p.Close())
		}

		return err
	}
	ephemeral := func(directory string) error {
		p := openAt(t, directory)
		_, err := p.Ephemeral()

		return err
	}

	for _, test := range []struct {
		open  func(directory string) error
		names []string
	}{
		{opened, layout.Subdirectories()},
		{inspected, []string{layout.Images, layout.Directories, layout.Snapshots, layout.Scratch}},
		{ephemeral, []string{layout.Ephemeral}},
	} {
		for _, name := range test.names {
			directory, outside := t.TempDir(), t.TempDir()
			within := filepath.Join(directory, "within")
			require.NoError(t, os.Mkdir(within, 0o700))

			for _, to := range []string{outside, "within"} {
				link := filepath.Join(directory, name)
				require.NoError(t, os.Symlink(to, link))
				require.ErrorIs(t, test.open(directory), pool.ErrNotDirectory, "want: the link %s to %s is refused", name, to)
				require.NoError(t, os.Remove(link))
			}

			for _, each := range []string{outside, within} {
				left, err := os.ReadDir(each)
				require.NoError(t, err)
				require.Empty(t, left, "want: nothing is made where %s leads to", name)
			}
		}
	}
}

// TestLinkedFilesAreRefused: a symlink in place of a file that is no object is not followed to another
// volume's.
func TestLinkedFilesAreRefused(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	id, other := newID(t), newID(t)
	require.NoError(t, p.SetMutable(other, onceMutable))

	for _, suffix := range []string{layout.MutableSuffix, layout.MutableScratchSuffix} {
		require.NoError(t, os.Symlink(other+layout.MutableSuffix, filepath.Join(p.MutablePath(), id+suffix)))
	}

	_, err := p.Mutable(id)
	require.ErrorIs(t, err, unix.ELOOP)
	require.ErrorIs(t, p.SetMutable(id, volume.Mutable{volume.KeyIOScheduler: "kyber"}), unix.ELOOP)

	found, err := p.Mutable(other)
	require.NoError(t, err)
	require.Equal(t, onceMutable, found, "want: the parameters of the other volume are its own")

	require.NoError(t, os.WriteFile(filepath.Join(p.Path(), "another"), []byte(`{"version":1,"id":"`+onceIdentity+`"}`), 0o600))
	require.NoError(t, os.Symlink("another", filepath.Join(p.Path(), layout.Identity)))

	_, err = p.Identify()
	require.ErrorIs(t, err, unix.ELOOP)
}

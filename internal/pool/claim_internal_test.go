package pool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestOnlyTheFileInPlaceIsClaimed: its previous owner may have renamed or removed it.
func TestOnlyTheFileInPlaceIsClaimed(t *testing.T) {
	t.Parallel()

	const id = "01a20000-0000-7000-8000-000000000001"

	for name, test := range map[string]struct {
		meanwhile func(path string) error
		claimed   bool
		left      bool
	}{
		"nothing else":             {func(string) error { return nil }, true, true},
		"it was renamed":           {func(path string) error { return os.Rename(path, path+".gone") }, false, false},
		"it was replaced":          {func(path string) error { return os.Rename(path+".other", path) }, false, true},
		"it is in place elsewhere": {func(path string) error { return os.Link(path, path+".image") }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p, err := Open("a", t.TempDir())
			require.NoError(t, err)

			path := filepath.Join(p.root.Name(), id+layout.ImageSuffix)
			require.NoError(t, os.WriteFile(path+".other", nil, 0o600))
			require.NoError(t, os.WriteFile(path, []byte("half made"), 0o600))

			file, err := p.lock(id)
			require.NoError(t, err)
			require.NoError(t, test.meanwhile(path))

			claimed, err := p.claim(id, file)
			require.NoError(t, err)
			require.Equal(t, test.claimed, claimed, "want: only the scratch itself is claimed")

			_, err = os.Lstat(path)
			require.Equal(t, test.left, err == nil, "want: a second name of an object is removed")
			require.NoError(t, file.Close())
			require.NoError(t, p.Close())
		})
	}
}

// TestAFailedUnlockIsReported: the next controller could not take the pool.
func TestAFailedUnlockIsReported(t *testing.T) {
	t.Parallel()

	file, err := os.Create(filepath.Join(t.TempDir(), layout.ControllerLock))
	require.NoError(t, err)
	require.NoError(t, file.Close())

	lock := controllerLock{file: file}
	errtext.Require(t, lock.unlock(), file.Name(), "want: the error names the lock")
	require.NoError(t, lock.unlock(), "want: there is nothing to release any more")
}

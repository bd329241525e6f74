package pool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
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

			p, err := Open("a", t.TempDir(), Options{})
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

// setOf returns a set of one pool.
func setOf(opened *Pool) *Set {
	set := NewSet(map[string]string{opened.name: opened.path})
	set.Serve(opened)

	return set
}

// TestAFailedUnlockIsReportedByEachClose of what has the lock.
func TestAFailedUnlockIsReportedByEachClose(t *testing.T) {
	t.Parallel()

	held := func(lock *controllerLock, take error) {
		require.NoError(t, take)
		require.NoError(t, lock.file.Close())
	}

	for name, end := range map[string]func(p *Pool) error{
		"a failed pool": func(p *Pool) error {
			held(&p.controllerLock, p.LockAsController("the first"))

			return setOf(p).Fail(p.name, errClosed)
		},
		"a set": func(p *Pool) error {
			held(&p.controllerLock, p.LockAsController("the first"))

			return setOf(p).Close()
		},
		"an ephemeral pool": func(p *Pool) error {
			inner, err := p.Ephemeral()
			require.NoError(t, err)
			held(&inner.controllerLock, inner.LockAsController("the first"))

			return p.Close()
		},
		"an inspection": func(p *Pool) error {
			require.NoError(t, p.LockAsController("the first"))
			require.NoError(t, p.Close())

			inspected, err := Inspect("a", p.path)
			require.NoError(t, err)
			held(&inspected.controllerLock, inspected.LockForReading())

			return inspected.Close()
		},
	} {
		p, err := Open("a", t.TempDir(), Options{})
		require.NoError(t, err)
		require.ErrorIs(t, end(p), unix.EBADF, "want: the close of %s reports that its lock is not released", name)
	}
}

// TestFailuresToCloseACopyAreReported of each of its files.
func TestFailuresToCloseACopyAreReported(t *testing.T) {
	t.Parallel()

	p, f := newQuotaPool(t)
	f.kind = quota.Plain
	source, target := Object{ID: quotaID, Backing: volume.BackingDirectory}, Object{ID: quotaOtherID, Backing: volume.BackingDirectory}

	for name, end := range map[string]func(c *Copy) error{
		"Abort":  func(c *Copy) error { return c.Abort() },
		"Commit": func(c *Copy) error { _, err := c.Commit(t.Context()); return err },
	} {
		for file, closed := range map[string]func(c *Copy) *os.File{
			"source": func(c *Copy) *os.File { return c.opened }, "lock": func(c *Copy) *os.File { return c.file },
			"tree": func(c *Copy) *os.File { return c.contents.(*treeCopy).tree },
		} {
			making, err := p.NewCopy(p, source, target, CopyOptions{})
			require.NoError(t, err)
			require.NoError(t, making.CopyData(t.Context()))
			require.NoError(t, closed(making).Close())
			require.ErrorIs(t, end(making), os.ErrClosed, "want: %s reports the failure to close the %s", name, file)
			require.NoError(t, making.Abort(), "want: what is closed is closed once")
		}
	}
}

// TestAFileIsMovedUnlessItIsThere, as another process's.
func TestAFileIsMovedUnlessItIsThere(t *testing.T) {
	t.Parallel()

	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)

	defer root.Close()

	require.ErrorIs(t, moveInto(root, "missing", "to"), os.ErrNotExist, "want: the failure of both ways is reported")

	for _, name := range []string{"first", "second"} {
		require.NoError(t, root.WriteFile(name, []byte(name), 0o600))
		require.NoError(t, moveInto(root, name, "to"))
	}

	content, err := root.ReadFile("to")
	require.NoError(t, err)
	require.Equal(t, "first", string(content), "want: the file of the other process is kept")
}

// TestARelativePathNeedsADirectory in which it is.
func TestARelativePathNeedsADirectory(t *testing.T) {
	gone := t.TempDir()
	t.Chdir(gone)
	require.NoError(t, os.Remove(gone))

	_, err := Open("a", "relative", Options{})
	errtext.Require(t, err, "getwd")

	_, err = Inspect("a", "relative")
	errtext.Require(t, err, "getwd")
}

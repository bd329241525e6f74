package pool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func openAt(t *testing.T, directory string) *pool.Pool {
	t.Helper()

	opened, err := pool.Open("default", directory, pool.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })

	return opened
}

func TestAPoolHasOneController(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		directory := t.TempDir()
		first, second := openAt(t, directory), openAt(t, directory)

		require.NoError(t, first.LockAsController("the first\nof two"))

		err := second.LockAsController("the second")
		require.ErrorIs(t, err, pool.ErrControllerRunning)
		errtext.Require(t, err, fmt.Sprintf("process %d (the first of two)", os.Getpid()))
		errtext.Require(t, err, directory)

		// Its end frees the pool also while another process has a copy of the descriptor, as
		// a child has between its fork and its exec.
		copied := copyOfLock(t, directory)
		require.NoError(t, first.Close())
		require.NoError(t, second.LockAsController("the second"))
		require.NoError(t, copied.Close())

		errtext.Require(t, openAt(t, directory).LockAsController("the third"), "the second")

		// The pool of a pool has an owner of its own.
		require.NoError(t, openAt(t, filepath.Join(directory, "ephemeral")).LockAsController("the first"))
	})
}

// copyOfLock returns one more descriptor of the lock file that this process
// holds.
func copyOfLock(t *testing.T, directory string) *os.File {
	t.Helper()

	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)

	for _, each := range descriptors {
		var number int

		_, err := fmt.Sscan(each.Name(), &number)
		require.NoError(t, err)

		target, err := os.Readlink("/proc/self/fd/" + each.Name())
		if err != nil || target != filepath.Join(directory, "controller.lock") {
			continue
		}

		copied, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)

		return os.NewFile(uintptr(copied), target)
	}

	require.Fail(t, "the lock is not held")

	return nil
}

func TestALockIsNotFollowedElsewhere(t *testing.T) {
	t.Parallel()

	directory, precious := t.TempDir(), filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(precious, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(precious, filepath.Join(directory, "controller.lock")))

	require.ErrorIs(t, openAt(t, directory).LockAsController("another"), unix.ELOOP)

	content, err := os.ReadFile(precious)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

// TestAnEmptyImageInUseIsNoOrphan: its lock shows that it is attached.
func TestAnEmptyImageInUseIsNoOrphan(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	id := volume.NewID()
	require.NoError(t, p.Images.Create(id, 1<<20, false))

	entry := pool.Object{ID: id, Backing: volume.BackingImage}

	for name, how := range map[string]int{"by a writer": unix.LOCK_EX, "by a reader": unix.LOCK_SH} {
		user, err := p.Images.Open(id, os.O_RDONLY)
		require.NoError(t, err)
		await.Flock(t, user, how)

		removed, err := p.RemoveEmptyOrphan(t.Context(), entry)
		require.NoError(t, err, name)
		require.False(t, removed, name)
		require.FileExists(t, p.ObjectPath(imageOf(id)), name)
		release(t, user)
	}

	removed, err := p.RemoveEmptyOrphan(t.Context(), pool.Object{ID: id, Backing: volume.BackingImage, Snapshot: true})
	require.NoError(t, err)
	require.False(t, removed, "want: for a snapshot no volume of its id is removed")

	removed, err = p.RemoveEmptyOrphan(t.Context(), entry)
	require.NoError(t, err)
	require.True(t, removed, "want: the object was removed")
	require.NoFileExists(t, p.ObjectPath(imageOf(id)))
}

// release closes a file that is locked. Closed alone, it would be locked still in a
// child that another test is just forking.
func release(t *testing.T, file *os.File) {
	t.Helper()
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_UN))
	require.NoError(t, file.Close())
}

func TestAFullPoolCanBeTaken(t *testing.T) {
	namespace.NeedRoot(t)

	directory := t.TempDir()
	require.NoError(t, unix.Mount("none", directory, "tmpfs", 0, "size=65536"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, unix.MNT_DETACH)) })

	first, second := openAt(t, directory), openAt(t, directory)
	require.Error(t, os.WriteFile(filepath.Join(directory, "ballast"), make([]byte, 1<<20), 0o600), "a write of more than there is space for")

	require.NoError(t, first.LockAsController("the first"))
	require.ErrorIs(t, second.LockAsController("the second"), pool.ErrControllerRunning)

	// It gets its identity as soon as there is space.
	third, err := pool.Open("default", directory, pool.Options{Identity: new("")})
	require.NoError(t, err)
	require.Empty(t, third.Identity(), "want: there is no space for an identity")
	require.NoError(t, os.Remove(filepath.Join(directory, "ballast")))

	id, err := third.Identify()
	require.NoError(t, err)
	require.NotEmpty(t, id, "want: the pool gets an identity")
	require.NoError(t, third.Close())
}

// TestScratchInUseIsNoLeftover, and a file instead of a directory is not
// removed.
func TestScratchInUseIsNoLeftover(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	id := volume.NewID()

	maker, err := os.Create(filepath.Join(p.Path(), "scratch", id+".img"))
	require.NoError(t, err)
	await.Flock(t, maker, unix.LOCK_EX)

	inspected, err := pool.Inspect("default", p.Path())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, inspected.Close()) })

	for _, inMaking := range []bool{true, false} {
		var found []pool.ScratchObject

		require.NoError(t, inspected.ListScratch(t.Context(), func(each pool.ScratchObject) error {
			found = append(found, each)

			return nil
		}))
		require.Equal(t, []pool.ScratchObject{{ID: id, Path: maker.Name(), InProgress: inMaking}}, found)

		cleared, err := p.RemoveStaleScratchOf(id)
		require.NoError(t, err)
		require.Equal(t, !inMaking, cleared, "want: the scratch files are removed unless the object is being made")

		if inMaking {
			release(t, maker)
		}
	}

	file := p.ObjectPath(directoryOf(id))
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))

	removed, err := p.RemoveEmptyOrphan(t.Context(), pool.Object{ID: id, Backing: volume.BackingDirectory})
	require.NoError(t, err)
	require.False(t, removed, "want: the object was not removed")
	require.FileExists(t, file)
}

package flock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/test/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns two open files of one name, which know nothing of each other's locks.
func open(t *testing.T) (first, second *os.File) {
	t.Helper()

	path := filepath.Join(t.TempDir(), "lock")
	files := make([]*os.File, 2)

	for n := range files {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { _ = file.Close() })

		files[n] = file
	}

	return files[0], files[1]
}

func TestALockIsRefusedWhileAnotherHasIt(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		first, second := open(t)
		require.NoError(t, flock.Lock(first, unix.LOCK_EX))
		require.ErrorIs(t, flock.Lock(second, unix.LOCK_EX), unix.EWOULDBLOCK)
		require.ErrorIs(t, flock.Lock(second, unix.LOCK_SH), unix.EWOULDBLOCK)
	})
}

func TestSharedLocksCoexist(t *testing.T) {
	t.Parallel()

	first, second := open(t)
	require.NoError(t, flock.Lock(first, unix.LOCK_SH))
	require.NoError(t, flock.Lock(second, unix.LOCK_SH))
}

// TestLockOfAnEndingProcessIsAwaited: a killed process releases its lock after it was refused to a
// caller.
func TestLockOfAnEndingProcessIsAwaited(t *testing.T) {
	t.Parallel()

	first, second := open(t)
	require.NoError(t, flock.Lock(first, unix.LOCK_EX))

	locked := make(chan error, 1)
	go func() { locked <- flock.Lock(second, unix.LOCK_EX) }()

	require.ErrorIs(t, unix.Flock(int(second.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	require.NoError(t, first.Close())
	require.NoError(t, await.Receive(t, locked, "the lock that was released"))
}

// TestUnlockReleasesTheLock while the file stays open.
func TestUnlockReleasesTheLock(t *testing.T) {
	t.Parallel()

	first, second := open(t)
	require.NoError(t, flock.TryLock(first, unix.LOCK_EX))
	require.ErrorIs(t, flock.TryLock(second, unix.LOCK_SH), unix.EWOULDBLOCK)
	require.NoError(t, flock.Unlock(first))
	require.NoError(t, flock.TryLock(second, unix.LOCK_EX))
	require.NoError(t, second.Close())
	require.ErrorIs(t, flock.Unlock(second), unix.EBADF)
}

func TestTheOwnerOfALockWroteItsNameLast(t *testing.T) {
	t.Parallel()

	file, reader := open(t)
	require.Equal(t, "a process that has not named itself", flock.ReadOwner(reader), "want: an empty file names no process")

	for owner, suffix := range map[string]string{"a test\nof locks": " (a test of locks)", "": ""} {
		flock.WriteOwner(file, owner)
		require.Equal(t, fmt.Sprintf("process %d%s", os.Getpid(), suffix), flock.ReadOwner(reader), "want: nothing of a longer name is left")
	}

	require.NoError(t, os.Truncate(file.Name(), 5))
	require.Equal(t, "a process that has not named itself", flock.ReadOwner(reader), "want: half a name is none")
}

// TestUnsupported distinguishes a filesystem without locks from a lock that is refused.
func TestUnsupported(t *testing.T) {
	t.Parallel()

	for err, want := range map[error]bool{
		unix.EOPNOTSUPP: true, unix.ENOLCK: true, unix.ENOSYS: true, unix.EWOULDBLOCK: false, unix.EBADF: false, nil: false,
	} {
		require.Equal(t, want, flock.Unsupported(err), "%v means that there are no locks", err)
	}
}

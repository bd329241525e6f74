package pool_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	// From linux/fs.h.
	immutable  = 0x10
	appendOnly = 0x20

	// removalLimit is no verdict on speed: it only ends a test that would hang.
	removalLimit = 5 * time.Minute
)

// deepen makes directories inside each other, without a path as long as they are
// deep.
func deepen(tb testing.TB, directory string, levels int) {
	tb.Helper()

	at, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(tb, err)

	for range levels {
		require.NoError(tb, unix.Mkdirat(at, "d", 0o755))

		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(tb, err)
		require.NoError(tb, unix.Close(at))

		at = next
	}

	require.NoError(tb, unix.Close(at))
}

func setFlags(tb testing.TB, path string, flags int) {
	tb.Helper()

	file, err := os.Open(path)
	require.NoError(tb, err)

	defer file.Close()

	had, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	require.NoError(tb, err)
	require.NoError(tb, unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(had)|flags))
}

func newTree(tb testing.TB, p *pool.Pool) (object pool.Object, path string) {
	tb.Helper()

	object = directoryOf(newID(tb))
	require.NoError(tb, p.Directories.Create(object.ID, 1<<30, false))

	return object, placeOf(p, object)
}

// mostDescriptors calls f, and returns how many descriptors the process had at
// most meanwhile beyond those before, as sampled.
func mostDescriptors(tb testing.TB, f func()) int {
	tb.Helper()

	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(tb, err)

		return len(entries)
	}

	before, most := count(), 0
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		f()
	}()

	late := time.After(removalLimit)

	for {
		select {
		case <-ended:
			return most - before
		case <-late:
			require.FailNow(tb, "the removal has not ended", "%s ago", removalLimit)
		case <-time.After(time.Millisecond):
			most = max(most, count())
		}
	}
}

func nothingRemains(tb testing.TB, p *pool.Pool, object pool.Object) {
	tb.Helper()
	require.NoDirExists(tb, placeOf(p, object))

	left, err := os.ReadDir(filepath.Join(p.Path(), "removing"))
	require.NoError(tb, err)
	require.Empty(tb, left, "want: nothing is left of the removed object")
}

// TestTheQueueCompletesWhatIsDiscarded: the call does not, before the queue runs.
func TestTheQueueCompletesWhatIsDiscarded(t *testing.T) {
	p := newPool(t, plain, roomy)
	object, path := newTree(t, p)
	deepen(t, path, 3)

	directory := p.Path()
	queue := removal.New(slog.New(slog.DiscardHandler))

	require.NoError(t, p.Close())

	p, err := pool.Open("queued", directory, pool.Options{Removals: queue})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })

	require.NoError(t, p.Discard(t.Context(), object))
	require.NoDirExists(t, path, "want: the object is not in place any more")
	require.DirExists(t, filepath.Join(directory, "removing", object.ID), "want: its files are the queue's")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		queue.Run(ctx)
	}()

	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(directory, "removing", object.ID))

		return errors.Is(err, os.ErrNotExist)
	}, removalLimit, time.Millisecond, "want: the queue removes the files")
	cancel()
	await.Receive(t, ended, "the end of the queue")
	nothingRemains(t, p, object)
}

func TestRemovalOfDeepTreesNeedsFewDescriptors(t *testing.T) {
	for _, kind := range []string{plain, reflink, cow} {
		t.Run(kind, func(t *testing.T) {
			p := newPool(t, kind, roomy)
			object, path := newTree(t, p)
			deepen(t, path, 10000)

			for name := range 40 {
				require.NoError(t, os.Mkdir(filepath.Join(path, fmt.Sprint("wide ", name)), 0o755))
				deepen(t, filepath.Join(path, fmt.Sprint("wide ", name)), 20)
			}

			var removed error

			most := mostDescriptors(t, func() { removed = p.Remove(t.Context(), object) })
			require.NoError(t, removed)
			require.Less(t, most, 64, "descriptors")
			nothingRemains(t, p, object)
			require.NoError(t, p.Remove(t.Context(), object), "it is gone already")
		})
	}
}

func TestRemovalClearsFlags(t *testing.T) {
	for _, kind := range []string{plain, reflink, cow} {
		t.Run(kind, func(t *testing.T) {
			p := newPool(t, kind, roomy)
			object, path := newTree(t, p)

			for name, flags := range map[string]int{"immutable": immutable, "append": appendOnly} {
				directory := filepath.Join(path, name)
				require.NoError(t, os.MkdirAll(filepath.Join(directory, "sub", "below"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(directory, "file"), nil, 0))
				require.NoError(t, unix.Mkfifo(filepath.Join(directory, "fifo"), 0o600))
				require.NoError(t, os.Symlink("file", filepath.Join(directory, "link")))

				for _, each := range []string{"file", "sub/below", "sub", ""} {
					setFlags(t, filepath.Join(directory, each), flags)
				}
			}

			setFlags(t, path, immutable)
			require.NoError(t, p.Remove(t.Context(), object))
			nothingRemains(t, p, object)
		})
	}
}

func TestAnImmutableImageIsRemoved(t *testing.T) {
	p := newPool(t, plain, roomy)
	object := newImage(t, p, mebi)
	setFlags(t, placeOf(p, object), immutable)
	require.NoError(t, p.Images.CheckDetached(t.Context(), object.ID), "want: whether it is attached is known")
	require.NoError(t, p.Remove(t.Context(), object))
	require.NoFileExists(t, placeOf(p, object))
}

// TestRemovalStopsAtAMount removes all else, names the mount, and goes on when it
// is unmounted.
func TestRemovalStopsAtAMount(t *testing.T) {
	namespace.NeedRoot(t)

	p := newPool(t, plain, roomy)
	object, path := newTree(t, p)
	data := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(data, "precious"), []byte("data"), 0o600))

	mounted := filepath.Join(path, "a", "mounted")
	require.NoError(t, os.MkdirAll(mounted, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(path, "a", "file"), nil, 0o600))
	require.NoError(t, unix.Mount(data, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })

	for range 2 {
		err := p.Remove(t.Context(), object)
		require.ErrorIs(t, err, tree.ErrMounted)
		errtext.Require(t, err, "/a/mounted")
		require.FileExists(t, filepath.Join(data, "precious"))
		require.NoDirExists(t, path, "it was moved")
	}

	found, err := filepath.Glob(filepath.Join(p.Path(), "removing", "*", "a", "*"))
	require.NoError(t, err)
	require.Len(t, found, 1, "all but the mount is gone")
	require.NoError(t, unix.Unmount(found[0], 0))
	require.NoError(t, p.Remove(t.Context(), object))
	require.FileExists(t, filepath.Join(data, "precious"))
	nothingRemains(t, p, object)
}

// TestRemovalStopsAtADeepMount, below more directories than are open at once.
func TestRemovalStopsAtADeepMount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, level := range []int{15, 16, 17, 18, 40} {
		p := newPool(t, plain, roomy)
		object, path := newTree(t, p)
		data := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(data, "precious"), []byte("data"), 0o600))

		mounted := filepath.Join(path, strings.Repeat("deep/", level), "mounted")
		require.NoError(t, os.MkdirAll(mounted, 0o755))
		require.NoError(t, unix.Mount(data, mounted, "", unix.MS_BIND, ""))

		detach := func() {
			points, err := mountinfo.GetMounts(mountinfo.PrefixFilter(p.Path()))
			require.NoError(t, err)

			for _, each := range points {
				require.NoError(t, unix.Unmount(each.Mountpoint, 0))
			}
		}
		t.Cleanup(detach)

		require.ErrorIs(t, p.Remove(t.Context(), object), tree.ErrMounted, "level %d", level)
		require.FileExists(t, filepath.Join(data, "precious"))
		detach()
		require.NoError(t, p.Remove(t.Context(), object))
		nothingRemains(t, p, object)
	}
}

func TestRemovalIsInterruptedAndContinued(t *testing.T) {
	p := newPool(t, plain, roomy)
	object, path := newTree(t, p)
	deepen(t, path, 100)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Remove(ctx, object), context.Canceled)
	require.NoDirExists(t, path)

	require.NoError(t, p.ResumeRemovals(t.Context()))
	nothingRemains(t, p, object)
}

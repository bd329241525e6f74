package pool_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestAnotherPoolIsRefused: a pool with volumes is opened only with the identity that the state has.
func TestAnotherPoolIsRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ file, reason string }{
		"the pool":            {`{"version":1,"id":"` + onceIdentity + `"}`, ""},
		"another one":         {`{"version":1,"id":"` + onceID + `"}`, "pool.json has the identity " + onceID},
		"none":                {"", "there is no pool.json"},
		"no directory":        {"-", "there is no such directory"},
		"no JSON":             {`{"version":`, "read "},
		"of another version":  {`{"version":2,"id":"` + onceIdentity + `"}`, "version 2"},
		"an id that is no id": {`{"version":1,"id":"x"}`, `id "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := t.TempDir()
			switch test.file {
			case "":
			case "-":
				directory = filepath.Join(directory, "missing")
			default:
				require.NoError(t, os.WriteFile(filepath.Join(directory, "pool.json"), []byte(test.file), 0o600))
			}

			p, err := pool.Open("a", directory, pool.Options{Identity: new(onceIdentity)})
			if test.reason == "" {
				require.NoError(t, err)
				require.Equal(t, onceIdentity, p.Identity(), "want: the identity is the known one")
				require.NoError(t, os.Remove(filepath.Join(directory, "pool.json")))

				id, err := p.Identify()
				require.NoError(t, err, "want: a known identity is not read again")
				require.Equal(t, onceIdentity, id, "want: the identity is the known one")
				require.NoError(t, p.Close())

				return
			}

			require.ErrorIs(t, err, pool.ErrIdentity)
			errtext.Require(t, err, test.reason)
			require.NoDirExists(t, filepath.Join(directory, "images"), "want: what is not the pool is not changed")
		})
	}

	id, err := pool.ReadIdentity(filepath.Join(t.TempDir(), "missing"))
	require.NoError(t, err)
	require.Empty(t, id, "want: what is missing has no identity")
	errtext.Require(t, pool.MoveIdentity(filepath.Join(t.TempDir(), "missing"), t.TempDir()), "move the identity of a pool")
}

// TestUnreadableCapacityRefuses: what cannot be measured is provisioned to none.
func TestUnreadableCapacityRefuses(t *testing.T) {
	t.Parallel()

	directory := filepath.Join(t.TempDir(), "pool")
	p := openAt(t, directory)
	admission := &pool.Admission{Overcommit: 1}
	admission.Register(ledgerFunc(func() { _ = os.Rename(directory, directory+"-away") }))

	for range 2 { // it is away after the first half of a measurement, and then before it
		_, err := admission.Capacity(t.Context(), p, false)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}

	require.ErrorIs(t, admission.Admit(t.Context(), func(check pool.Check) error { return check(p, 1, false) }), fs.ErrNotExist)

	_, err := pool.CapacityOf("a", t.TempDir(), filepath.Join(directory, "pool.img"))
	require.ErrorIs(t, err, fs.ErrNotExist, "want: the file of an embedded pool is measured")
	errtext.Require(t, err, `capacity of pool "a"`)
}

// TestSpaceThatIsFreedMeanwhile is not available in a measurement: it may count as allocated, too.
func TestSpaceThatIsFreedMeanwhile(t *testing.T) {
	t.Parallel()

	p := openAt(t, tmpfs(t, "4m"))
	ballast := filepath.Join(p.Path(), "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 3*mebi), 0o600))

	admission := &pool.Admission{Overcommit: 1}
	admission.Register(ledgerFunc(func() { _ = os.Remove(ballast) }))

	left, err := admission.Capacity(t.Context(), p, false)
	require.NoError(t, err)
	require.EqualValues(t, mebi, left, "want: the smaller one of the space before and after")
}

// ledgerFunc is a ledger that does something while it is measured.
type ledgerFunc func()

func (ledgerFunc) ProvisionedBytes(string) int64 { return 0 }

func (f ledgerFunc) AddAllocated(context.Context, string, *pool.Allocation) error {
	f()

	return nil
}

func TestMutableParametersAreKeptAsLongAsTheVolume(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	known, image, directory, gone := newID(t), newID(t), newID(t), newID(t)

	for _, id := range []string{known, image, directory, gone} {
		require.NoError(t, p.SetMutable(id, onceMutable))
	}

	require.NoError(t, p.Images.Create(image, 1, false))
	require.NoError(t, p.Directories.Create(directory, 0, false))
	require.NoError(t, p.RemoveUnusedMutable(t.Context(), func(id string) bool { return id == known }))

	for id, want := range map[string]volume.Mutable{known: onceMutable, image: onceMutable, directory: onceMutable, gone: {}} {
		found, err := p.Mutable(id)
		require.NoError(t, err)
		require.Equal(t, want, found, "want: only what is neither known nor in the pool is removed")
	}

	require.NoError(t, os.WriteFile(filepath.Join(p.MutablePath(), known+".json"), []byte("{"), 0o600))

	_, err := p.Mutable(known)
	errtext.Require(t, err, known, "want: damaged parameters are an error, not none")
}

// TestMissingObjectsAreNamed, whatever asks for them.
func TestMissingObjectsAreNamed(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	inspected, err := pool.Inspect("a", t.TempDir())
	require.NoError(t, err)

	id := newID(t)
	_, sizeErr := inspected.Size(imageOf(id))

	for name, err := range map[string]error{
		"growth": p.Directories.Grow(id, pool.Growth{To: 1}), "sync": p.Directories.Sync(id), "limit": p.Directories.Limit(id, 1),
		"confine": p.Directories.Confine(id), "image": p.Images.Sync(id), "size": sizeErr,
	} {
		require.ErrorIs(t, err, pool.ErrMissing, "want: %s names the missing object", name)
	}

	require.NoError(t, p.Images.CheckDetached(t.Context(), id), "want: a missing image is not attached")
	require.NoError(t, p.Directories.Create(id, 0, false))
	require.NoError(t, p.Directories.Grow(id, pool.Growth{To: mebi}))
	require.NoError(t, inspected.LockForReading(), "want: a pool that never had a controller needs no lock")
	require.NoError(t, inspected.Close())
}

// TestUnusableSubdirectories: one of them is a file.
func TestUnusableSubdirectories(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	p := openAt(t, directory)
	require.NoError(t, os.WriteFile(filepath.Join(directory, "ephemeral"), nil, 0o600))

	_, err := p.Ephemeral()
	require.ErrorIs(t, err, pool.ErrUnavailable)
	require.ErrorIs(t, err, pool.ErrNotDirectory)
	require.ElementsMatch(t, []string{filepath.Join(directory, "images"), filepath.Join(directory, "directories")}, p.VolumeDirectories(),
		"want: volumes are in these directories")

	other := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "snapshots"), nil, 0o600))

	_, err = pool.Inspect("a", other)
	errtext.Require(t, err, "not a directory", "want: what cannot be listed is not taken for empty")
}

// TestEndedListsFail with the cause, and are not taken for whole ones.
func TestEndedListsFail(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	require.NoError(t, p.Images.Create(newID(t), 1, false))
	require.NoError(t, os.Mkdir(filepath.Join(p.Path(), "removing", newID(t)), 0o700))

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	visited := 0
	err := p.List(ended, func(pool.Object) error {
		visited++

		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, visited, "want: a list ends between two parts")
	require.ErrorIs(t, p.ResumeRemovals(ended), context.Canceled)
}

// TestListsEndWithTheirVisitor, whose error they return.
func TestListsEndWithTheirVisitor(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	onceRead(t, p)

	inspected, err := pool.Inspect("a", p.Path())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, inspected.Close()) })

	visited, refused := 0, errors.New("the visitor has failed")
	visit := func() error {
		visited++

		return refused
	}
	objects := func(snapshots bool) error {
		return inspected.List(t.Context(), func(each pool.Object) error {
			if each.Snapshot != snapshots {
				return nil
			}

			return visit()
		})
	}

	for name, list := range map[string]func() error{
		"volumes":   func() error { return objects(false) },
		"snapshots": func() error { return objects(true) },
		"scratch": func() error {
			return inspected.ListScratch(t.Context(), func(pool.ScratchObject) error { return visit() })
		},
		"foreign": func() error { return inspected.ListForeign(t.Context(), func(string) error { return visit() }) },
	} {
		visited = 0

		require.ErrorIs(t, list(), refused, "want: the list of %s returns the error", name)
		require.Equal(t, 1, visited, "want: the list of %s ends with the first error", name)
	}
}

// TestAttachedImagesAreInUse, also for what only asks.
func TestAttachedImagesAreInUse(t *testing.T) {
	t.Parallel()

	p := openAt(t, t.TempDir())
	id := newID(t)
	require.NoError(t, p.Images.Create(id, 1, false))

	held, err := p.Images.Open(id, os.O_RDWR)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	require.ErrorIs(t, p.Images.CheckDetached(t.Context(), id), pool.ErrInUse)
	require.NoError(t, held.Close())
	require.NoError(t, p.Images.CheckDetached(t.Context(), id))
}

// TestDiscardedDirectoriesAreRemovedByTheQueue, or at the next start if it does not run.
func TestDiscardedDirectoriesAreRemovedByTheQueue(t *testing.T) {
	t.Parallel()

	queue := removal.New(slog.New(slog.DiscardHandler))
	p, err := pool.Open("a", t.TempDir(), pool.Options{Removals: queue})
	require.NoError(t, err)

	discard := func() string {
		object := newDirectory(t, p, 2, 10)
		require.NoError(t, p.Discard(t.Context(), object))
		require.NoDirExists(t, placeOf(p, object), "want: a discarded directory is gone")

		return filepath.Join(p.Path(), "removing", object.ID)
	}

	require.DirExists(t, discard(), "want: without Run it is only scheduled")
	require.Equal(t, 1, queue.Len(), "want: it is scheduled")

	running, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		queue.Run(running)
	}()

	require.Eventually(t, func() bool { return queue.Len() == 0 }, 10*time.Second, time.Millisecond, "want: Run removes what was scheduled")
	require.NoDirExists(t, discard(), "want: what is removed quickly is gone when Discard returns")

	cancel()
	<-ended
	require.NoError(t, p.Close())
}

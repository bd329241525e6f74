package freeze_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// firstLoop is beyond the loop devices of the machine and of other tests.
const firstLoop = 790_000

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	os.Exit(namespace.Main(m))
}

// mounted is an ext4 filesystem on a loop device.
type mounted struct {
	// id is the volume's: no other image of the machine has its name.
	id        string
	directory string
	device    int
}

func newMounted(t *testing.T, loops *loop.Loops) mounted {
	t.Helper()
	namespace.NeedRoot(t)

	id := volume.NewID()

	image, err := os.Create(filepath.Join(t.TempDir(), id+layout.ImageSuffix))
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(16<<20))

	made, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-b", "4096", image.Name()).CombinedOutput()
	require.NoError(t, err, string(made))

	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{BlockSize: 4096, AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)

	defer device.Close()

	m := mounted{id: id, directory: t.TempDir(), device: device.Number}
	require.NoError(t, unix.Mount(device.Path, m.directory, filesystem.Ext4, 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(m.directory, unix.MNT_DETACH)) })

	return m
}

func (m mounted) open(t *testing.T) *os.File {
	t.Helper()

	root, err := os.Open(m.directory)
	require.NoError(t, err)

	return root
}

// isFrozen thaws the filesystem if it is frozen.
func (m mounted) isFrozen(t *testing.T) bool {
	t.Helper()

	root := m.open(t)
	defer root.Close()

	err := filesystem.Thaw(root)
	if errors.Is(err, filesystem.ErrNotFrozen) {
		return false
	}

	require.NoError(t, err)

	return true
}

type fixture struct {
	*freeze.Freezer
	mounted

	targets func() freeze.Targets
}

func newFixture(t *testing.T, limit time.Duration) fixture {
	t.Helper()

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	m := newMounted(t, loops)
	log := slog.New(slog.DiscardHandler)
	store := state.New(t.TempDir(), state.Options{Owner: t.Name(), Log: log})
	f := fixture{
		mounted: m,
		Freezer: freeze.New(freeze.Config{
			Limit: limit, Loops: loops, Log: log,
			OpenRoot: func(string) (*os.File, error) { return os.Open(m.directory) },
		}, store),
		targets: func() freeze.Targets {
			return freeze.Targets{Filesystems: []freeze.Filesystem{
				{VolumeID: "volume", FSType: filesystem.Ext4, Root: m.open(t)},
			}}
		},
	}

	require.NoError(t, store.Open(t.Context()))
	f.Load()
	t.Cleanup(func() {
		f.Close()
		require.NoError(t, store.Close())
	})

	return f
}

func TestFilesystemsAreFrozenDuringTheCall(t *testing.T) {
	f := newFixture(t, time.Minute)
	errWithin := errors.New("the copy failed")

	for _, result := range []error{nil, errWithin} {
		var window func() error

		err := f.WithFrozen(t.Context(), f.targets(), func(ctx context.Context) error {
			window = ctx.Err

			require.NoError(t, ctx.Err())
			require.True(t, f.IsFrozen("volume"), "want: the freezer has the volume as frozen")

			root := f.open(t)
			defer root.Close()

			require.ErrorIs(t, filesystem.Freeze(root), unix.EBUSY, "it is frozen already")

			return result
		})
		require.ErrorIs(t, err, result)
		require.Error(t, window(), "want: what still runs ends with the window")
		require.False(t, f.IsFrozen("volume"), "want: the freezer has the volume as thawed")
		require.False(t, f.isFrozen(t), "want: the filesystem is thawed")
	}
}

func TestFilesystemsAreThawedAfterAPanic(t *testing.T) {
	f := newFixture(t, time.Minute)

	require.Panics(t, func() {
		_ = f.WithFrozen(t.Context(), f.targets(), func(context.Context) error { panic("within") })
	}, "want: the panic goes on")
	require.False(t, f.isFrozen(t), "want: the filesystem is thawed")
}

func TestFilesystemsAreThawedAtTheLimit(t *testing.T) {
	f := newFixture(t, time.Second)

	err := f.WithFrozen(t.Context(), f.targets(), func(ctx context.Context) error {
		<-ctx.Done()
		require.Eventually(t, func() bool { return !f.IsFrozen("volume") }, await.Limit, time.Millisecond, "want: it is thawed whatever still runs")

		return nil
	})
	require.ErrorIs(t, err, freeze.ErrLimit)
	require.False(t, f.isFrozen(t), "want: the filesystem is thawed")
}

func TestAThawByAnotherProgramIsAnError(t *testing.T) {
	f := newFixture(t, time.Minute)

	err := f.WithFrozen(t.Context(), f.targets(), func(context.Context) error {
		require.True(t, f.isFrozen(t), "want: the filesystem is frozen")

		return nil
	})
	errtext.Require(t, err, "thawed by another program")
	require.False(t, f.IsFrozen("volume"), "want: the freezer has the volume as thawed")
}

// TestWithoutFilesystemsThereIsNoLimit, and no record: the store is not open.
func TestWithoutFilesystemsThereIsNoLimit(t *testing.T) {
	t.Parallel()

	f := freeze.New(freeze.Config{Limit: time.Nanosecond}, state.New(t.TempDir(), state.Options{}))

	require.NoError(t, f.WithFrozen(t.Context(), freeze.Targets{}, func(ctx context.Context) error {
		return ctx.Err()
	}))

	errWithin := errors.New("the copy failed")
	require.ErrorIs(t, f.WithFrozen(t.Context(), freeze.Targets{}, func(context.Context) error { return errWithin }), errWithin)
}

// TestAFailedFreezeLeavesNoRecord, whether it fails within the time limit or after it.
func TestAFailedFreezeLeavesNoRecord(t *testing.T) {
	namespace.NeedRoot(t)

	tree, err := mount.NewReadOnlyTmpfs("source", map[string][]byte{"file": nil})
	require.NoError(t, err)

	defer tree.Close()

	for _, limit := range []time.Duration{time.Minute, time.Nanosecond} {
		root, err := tree.OpenRoot()
		require.NoError(t, err)

		f := newFixture(t, limit)
		err = f.WithFrozen(t.Context(), freeze.Targets{Filesystems: []freeze.Filesystem{
			{VolumeID: "volume", FSType: filesystem.Ext4, Root: root},
		}}, func(context.Context) error { return nil })
		require.Error(t, err, "want: a tmpfs, which the root is of, is not frozen")
		require.NotErrorIs(t, err, state.ErrRecord, "want: the record is written")
		require.NotErrorIs(t, err, filesystem.ErrNotFrozen, "want: what was not frozen is not thawed")
		require.Eventually(t, func() bool { return !f.IsFrozen("volume") }, await.Limit, time.Millisecond,
			"want: the record of a failed freeze is dropped, with the limit %s", limit)
	}
}

// TestALateFreezeIsUndone: it succeeds, but after the limit.
func TestALateFreezeIsUndone(t *testing.T) {
	f := newFixture(t, time.Nanosecond)

	require.ErrorIs(t, f.WithFrozen(t.Context(), f.targets(), func(context.Context) error { return nil }), freeze.ErrLimit)
	require.Eventually(t, func() bool { return !f.IsFrozen("volume") }, await.Limit, time.Millisecond, "want: its record is dropped")
	require.False(t, f.isFrozen(t), "want: the filesystem is thawed")
}

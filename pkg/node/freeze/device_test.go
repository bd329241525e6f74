package freeze_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// newUnmountedFixture is a fixture whose filesystem a killed driver has left frozen, and without a mount.
func newUnmountedFixture(t *testing.T) (*freeze.Freezer, mounted) {
	t.Helper()

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	m := newLeft(t, loops)
	directory, log := t.TempDir(), slog.New(slog.DiscardHandler)
	recordLeft(t, directory, m.id)

	store := state.New(directory, state.Options{Log: log})
	f := freeze.New(freeze.Config{
		Loops: loops, Log: log, OpenRoot: func(string) (*os.File, error) { return nil, nil },
	}, store)

	require.NoError(t, store.Open(t.Context()))
	f.Load()
	t.Cleanup(func() {
		f.Close()
		require.NoError(t, store.Close())
	})

	return f, m
}

// newLeft returns a filesystem that is frozen and not mounted any more. A test mounts it again.
func newLeft(t *testing.T, loops *loop.Loops) mounted {
	t.Helper()

	m := newMounted(t, loops)
	// The device is detached with its last user.
	device, err := os.Open(loops.Path(m.device))
	require.NoError(t, err)

	root := m.open(t)
	require.NoError(t, filesystem.Freeze(root))
	require.NoError(t, root.Close())
	require.NoError(t, unix.Unmount(m.directory, unix.MNT_DETACH))
	t.Cleanup(func() {
		if t.Failed() {
			_ = unix.Mount(device.Name(), m.directory, filesystem.Ext4, 0, "")
			_ = m.isFrozen(t) // it thaws it
		}

		device.Close()
	})

	return m
}

// requireThawed mounts the filesystem again.
func (m mounted) requireThawed(t *testing.T, device string) {
	t.Helper()
	require.NoError(t, unix.Mount(device, m.directory, filesystem.Ext4, 0, ""))
	require.False(t, m.isFrozen(t), "want: the filesystem is thawed")
}

func TestAFrozenFilesystemWithoutAMountIsThawedAtItsDevice(t *testing.T) {
	namespace.NeedRoot(t)

	path := loop.NewLoops(loop.LoopsOptions{First: firstLoop}).Path

	t.Run("by its record", func(t *testing.T) {
		f, m := newUnmountedFixture(t)
		require.True(t, f.IsFrozen(m.id), "want: the record of the killed driver")
		f.ThawRecorded()
		require.False(t, f.IsFrozen(m.id), "want: the record goes with the freeze")
		m.requireThawed(t, path(m.device))
	})
	t.Run("by its number", func(t *testing.T) {
		f, m := newUnmountedFixture(t)
		require.NoError(t, f.ThawDevice(m.id, filesystem.Ext4, m.device, mount.Options{}))
		m.requireThawed(t, path(m.device))
		require.NoError(t, f.ThawDevice(m.id, filesystem.Ext4, m.device, mount.Options{}), "want: a filesystem that is not frozen stays as it is")
	})
}

func TestDeviceWithoutAFilesystemIsNotThawed(t *testing.T) {
	f := newFixture(t, time.Minute)
	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	image := newImage(t)
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })

	// Its image is blank, so that a mount would fail.
	require.NoError(t, f.ThawDevice("volume", filesystem.Ext4, device.Number, mount.Options{}.WithReadOnly()))
	require.Error(t, f.ThawDevice("volume", filesystem.Ext4, 1<<20-1, mount.Options{}), "want: a number without a device is an error")
}

func newImage(t *testing.T) *os.File {
	t.Helper()

	image, err := os.Create(filepath.Join(t.TempDir(), "raw.img"))
	require.NoError(t, err)
	t.Cleanup(func() { image.Close() })
	require.NoError(t, image.Truncate(1<<20))

	return image
}

// TestDevicesAreSynced before the copy: what was written through the page cache of a device is in
// its image.
func TestDevicesAreSynced(t *testing.T) {
	f := newFixture(t, time.Minute)
	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	image := newImage(t)
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })

	file, err := os.OpenFile(device.Path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	_, err = file.WriteAt([]byte("written"), 4096)
	require.NoError(t, err)

	called := 0
	within := func(context.Context) error {
		called++

		content := make([]byte, len("written"))
		_, err := image.ReadAt(content, 4096)
		require.NoError(t, err)
		require.Equal(t, "written", string(content))

		return nil
	}

	targets := f.targets()
	targets.Devices = []int{device.Number}
	require.NoError(t, f.WithFrozen(t.Context(), targets, within))
	require.Equal(t, 1, called, "want: the copy is made once")

	unknown := []int{1<<20 - 1}
	require.Error(t, f.WithFrozen(t.Context(), freeze.Targets{Devices: unknown}, within), "want: a device that cannot be synced is not copied")

	targets = f.targets()
	targets.Devices = unknown
	require.Error(t, f.WithFrozen(t.Context(), targets, within), "want: a device that cannot be synced is not copied")
	require.Equal(t, 1, called, "want: no copy is made")
	require.False(t, f.IsFrozen("volume"), "want: nothing was frozen")
	require.ErrorIs(t, targets.Close(), os.ErrClosed, "the roots are closed")
}

func TestInvalidRecordsOfFreezesAreRefused(t *testing.T) {
	t.Parallel()

	valid := &freeze.Frozen{VolumeID: onceID, FSType: filesystem.XFS}
	require.NoError(t, valid.Check())
	require.Equal(t, onceID, valid.RecordID())
	require.Error(t, (&freeze.Frozen{VolumeID: onceID, FSType: "vfat"}).Check(), "want: an unknown filesystem is refused")
	require.Error(t, (&freeze.Frozen{VolumeID: "../volume", FSType: filesystem.XFS}).Check(), "want: a path is no id")
}

func TestTargetsAreClosed(t *testing.T) {
	t.Parallel()

	var targets freeze.Targets

	for range 2 {
		root, err := os.Open(t.TempDir())
		require.NoError(t, err)

		targets.Filesystems = append(targets.Filesystems, freeze.Filesystem{Root: root})
	}

	require.NoError(t, targets.Close())

	for _, each := range targets.Filesystems {
		require.ErrorIs(t, each.Root.Close(), os.ErrClosed, "want: each root is closed")
	}

	require.ErrorIs(t, targets.Close(), os.ErrClosed)
}

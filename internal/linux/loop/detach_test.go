package loop_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
)

func TestDetachOfADetachedDeviceSucceeds(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	require.NoError(t, loops.Detach(t.Context(), first+99))
	require.NoDirExists(t, "/sys/block/loop700099", "asking must not make a device")

	device := attach(t, loops, newImage(t, mebibyte), none())
	require.NoError(t, device.Close())
	require.NoError(t, loops.Detach(t.Context(), device.Number))
	require.NoError(t, loops.Detach(t.Context(), device.Number))
	requireDetached(t, loops, device.Number)
}

func TestDetachWhileOpenEndsAtTheLastClose(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, mebibyte), none())

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	err := loops.Detach(ctx, device.Number)
	require.ErrorIs(t, err, loop.ErrInUse)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireAttached(t, loops, device.Number)

	require.NoError(t, device.Close())
	require.NoError(t, loops.Detach(t.Context(), device.Number))
	requireDetached(t, loops, device.Number)
}

func TestDetachAwaitsAnotherHolder(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, mebibyte), none())
	done := make(chan error, 1)

	go func() { done <- loops.Detach(t.Context(), device.Number) }()

	// Detaching has begun once AUTOCLEAR is set.
	require.Eventually(t, func() bool {
		return requireAttached(t, loops, device.Number).AutoClear
	}, 10*time.Second, time.Millisecond, "want: Detach sets AUTOCLEAR")
	require.NoError(t, device.Close())
	require.NoError(t, await.Receive(t, done, "Detach to return"))
	requireDetached(t, loops, device.Number)
}

// A device that was detached while in use, and is attached again, has to stay.
func TestAttachCancelsAPendingDetach(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, mebibyte)
	one := attach(t, loops, image, none())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, loops.Detach(ctx, one.Number), loop.ErrInUse)

	two := attach(t, loops, image, none())
	require.Equal(t, one.Number, two.Number, "want: the device stays the same")
	require.NoError(t, one.Close())
	require.NoError(t, two.Close())
	requireAttached(t, loops, two.Number)
}

func TestDetachSameSparesAnotherAttachment(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, mebibyte), none())
	require.NoError(t, device.Close())

	earlier := device.Status
	earlier.Sequence--
	require.NoError(t, loops.DetachSame(t.Context(), earlier))
	requireAttached(t, loops, device.Number)

	require.NoError(t, loops.DetachSame(t.Context(), device.Status))
	requireDetached(t, loops, device.Number)
}

// TestDetachSameWithoutSequences, which kernels before Linux 5.15 lack: the image decides.
func TestDetachSameWithoutSequences(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, mebibyte), none())
	require.NoError(t, device.Close())

	sys := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(sys, "block", filepath.Base(device.Path), "loop"), 0o700))

	old := loop.NewLoops(loop.LoopsOptions{Sys: sys})
	observed := device.Status
	observed.Sequence = 0

	another := observed
	another.Backing.Inode++
	require.NoError(t, old.DetachSame(t.Context(), another))
	requireAttached(t, loops, device.Number)

	// In this sysfs it stays attached.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, old.DetachSame(ended, observed), loop.ErrInUse)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, loops.AwaitDetached(ctx, device.Number, device.Sequence))
}

// TestDetachWithoutTheFilesystem of the image, whose server is gone, or hangs.
func TestDetachWithoutTheFilesystem(t *testing.T) {
	needRoot(t)

	for name, fail := range map[string]func(t *testing.T, served *faults.Directory){
		"gone": func(t *testing.T, served *faults.Directory) {
			t.Helper()
			served.Kill(t)
		},
		"hanging": func(t *testing.T, served *faults.Directory) {
			t.Helper()
			served.Inject(t, faults.Fault{Name: "lost.img", Hang: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			loops := loop.NewLoops(loop.LoopsOptions{First: first})
			served := faults.Serve(t)

			lost, err := os.Create(filepath.Join(served.Path, "lost.img"))
			require.NoError(t, err)
			require.NoError(t, lost.Truncate(mebibyte))

			device := attach(t, loops, lost, none())
			require.NoError(t, device.Close())
			require.NoError(t, lost.Close())
			fail(t, served)

			done := make(chan error, 1)

			go func() { done <- loops.DetachSame(t.Context(), device.Status) }()

			// What hangs does so for twice as long.
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(faults.Longest / 2):
				served.Release(t)
				require.NoError(t, await.Receive(t, done, "DetachSame to return"))
				require.Fail(t, "it waits for the image")
			}

			requireDetached(t, loops, device.Number)
		})
	}
}

func TestAutoClearDetachesAtTheLastClose(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	o := none()
	o.AutoClear = true
	device := attach(t, loops, newImage(t, mebibyte), o)
	requireAttached(t, loops, device.Number)

	require.NoError(t, device.Close())
	// Another program may be opening every device of the machine.
	require.Eventually(t, func() bool {
		_, attached, err := loops.Status(device.Number)

		return err == nil && !attached
	}, time.Minute, time.Millisecond, "want: the last close detaches the device")
	require.NoError(t, loops.Detach(t.Context(), device.Number))
}

func TestWithoutAutoClearTheDeviceStays(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, mebibyte), none())
	require.NoError(t, device.Close())
	requireAttached(t, loops, device.Number)
}

func TestAutoClearDetachesAtTheUnmount(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, 16*mebibyte)
	output, err := child.Command(t, "mkfs.ext4", "-q", "-F", "-b", "4096", image.Name()).CombinedOutput()
	require.NoError(t, err, "%s", output)

	o := none()
	o.AutoClear = true
	device := attach(t, loops, image, o)
	directory := t.TempDir()
	require.NoError(t, unix.Mount(device.Path, directory, "ext4", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	require.NoError(t, device.Close())
	requireAttached(t, loops, device.Number)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, loops.Detach(ctx, device.Number), loop.ErrInUse)

	require.NoError(t, unix.Unmount(directory, 0))
	require.NoError(t, loops.Detach(t.Context(), device.Number))
	requireDetached(t, loops, device.Number)
}

func TestResizeFollowsTheImage(t *testing.T) {
	needRoot(t)

	for name, readOnly := range map[string]bool{"writable": false, "read-only": true} {
		t.Run(name, func(t *testing.T) {
			loops := loop.NewLoops(loop.LoopsOptions{First: first})
			image := newImage(t, mebibyte)
			o := none()
			o.ReadOnly = readOnly
			device := attach(t, loops, image, o)

			require.NoError(t, image.Truncate(3*mebibyte))
			require.Equal(t, int64(mebibyte), requireAttached(t, loops, device.Number).SizeBytes, "want: the device keeps its size until Resize")

			for range 2 {
				size, err := loops.Resize(device.Number)
				require.NoError(t, err)
				require.Equal(t, int64(3*mebibyte), size, "want: Resize returns the size of the image")
			}

			require.Equal(t, int64(3*mebibyte), requireAttached(t, loops, device.Number).SizeBytes, "want: the device has the size of the image")
		})
	}
}

func TestOpenAndResizeNeedAnAttachment(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{})

	_, err := loops.Open(first + 98)
	require.ErrorIs(t, err, loop.ErrNotAttached)

	_, err = loops.Resize(first + 98)
	require.ErrorIs(t, err, loop.ErrNotAttached)

	_, attached, err := loops.Status(first + 98)
	require.NoError(t, err)
	require.False(t, attached, "want: the device is not attached")
}

func TestTheLockEndsWithTheAttachment(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, mebibyte)
	device := attach(t, loops, image, none())

	probe, err := os.Open(image.Name())
	require.NoError(t, err)

	defer probe.Close()

	require.ErrorIs(t, unix.Flock(int(probe.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	require.NoError(t, device.Close())
	require.ErrorIs(t, unix.Flock(int(probe.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	require.NoError(t, loops.Detach(t.Context(), device.Number))
	// The kernel lets go of the image behind the device.
	require.Eventually(t, func() bool {
		return unix.Flock(int(probe.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}, time.Minute, time.Millisecond, "want: the lock of the image ends with the device")
}

func TestRemoveLeavesNoNode(t *testing.T) {
	needRoot(t)

	for name, o := range map[string]loop.LoopsOptions{
		"devtmpfs":     {First: first},
		"private /dev": {First: firstNode, Dev: t.TempDir(), DeviceDir: filepath.Join(t.TempDir(), "nodes")},
	} {
		t.Run(name, func(t *testing.T) {
			loops := loop.NewLoops(o)
			device, err := loops.Attach(t.Context(), newImage(t, mebibyte), loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
			require.NoError(t, err)

			soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()

			require.ErrorIs(t, loops.Remove(soon, device.Number), loop.ErrInUse)
			require.FileExists(t, device.Path)

			require.NoError(t, device.Close())
			require.NoError(t, loops.Detach(t.Context(), device.Number))
			require.NoError(t, loops.Remove(t.Context(), device.Number))
			require.NoFileExists(t, device.Path)
			require.NoDirExists(t, "/sys/block/"+filepath.Base(device.Path))
			require.NoError(t, loops.Remove(t.Context(), device.Number), "nothing is there, as it shall be")
		})
	}
}

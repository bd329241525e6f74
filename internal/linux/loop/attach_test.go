package loop_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestWritesReachTheImage(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, 4*mebibyte)
	device := attach(t, loops, image, none())

	require.GreaterOrEqual(t, device.Number, first, "want: the number is in the range of the driver")
	require.Equal(t, loops.Path(device.Number), device.Path)
	require.False(t, device.ReadOnly, "want: the device is not read-only")

	block := []byte(strings.Repeat("touchstone!!....", 256))

	_, err := device.File().WriteAt(block, mebibyte)
	require.NoError(t, err)
	require.NoError(t, device.File().Sync())

	read := make([]byte, len(block))
	_, err = image.ReadAt(read, mebibyte)
	require.NoError(t, err)
	require.Equal(t, block, read)
}

func TestStatusReportsTheAttachment(t *testing.T) {
	needRoot(t)

	for name, o := range map[string]loop.AttachOptions{
		"default":   {},
		"read-only": {ReadOnly: true},
		"buffered":  {Buffered: true},
		"small":     {BlockSize: 512},
		"autoclear": {AutoClear: true},
		"thick":     {NoDiscard: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.PreferredNumber = -1
			loops := loop.NewLoops(loop.LoopsOptions{First: first})
			image := newImage(t, 4*mebibyte)
			device := attach(t, loops, image, o)
			status := requireAttached(t, loops, device.Number)

			identity, err := loop.IdentityOf(image)
			require.NoError(t, err)
			require.Equal(t, identity, status.Backing)
			require.Equal(t, device.Path, status.Path)
			require.Equal(t, int64(4*mebibyte), status.SizeBytes, "want: the device has the size of the image")
			require.Equal(t, o.ReadOnly, status.ReadOnly, "want: the device is read-only as asked")
			require.Equal(t, o.AutoClear, status.AutoClear, "want: the device has AUTOCLEAR as asked")
			require.Equal(t, device.DirectIO, status.DirectIO, "want: status and attachment agree on direct I/O")
			require.Equal(t, o.NoDiscard, discards(t, device) == "0", "want: the device takes discards unless asked not to")

			if o.BlockSize == 0 {
				o.BlockSize = loop.DefaultBlockSize
			}

			require.Equal(t, o.BlockSize, status.BlockSize, "want: the device has the block size as asked")

			if o.Buffered {
				require.False(t, status.DirectIO, "want: the device has buffered I/O")
			}

			found, err := loops.Find(image)
			require.NoError(t, err)
			require.Equal(t, []loop.Status{status}, found)

			all, err := loops.Attachments()
			require.NoError(t, err)
			require.Contains(t, all, loop.Attachment{
				Number: status.Number, Path: status.Path, BackingPath: image.Name(),
				ReadOnly: status.ReadOnly, AutoClear: status.AutoClear, Sequence: status.Sequence,
			})
		})
	}
}

// discards returns how many bytes a discard of the device may have.
func discards(t *testing.T, device *loop.Device) string {
	t.Helper()

	limit, err := os.ReadFile("/sys/block/" + filepath.Base(device.Path) + "/queue/discard_max_bytes")
	require.NoError(t, err)

	return strings.TrimSpace(string(limit))
}

// tmpfs can do direct I/O only since 6.6; ext4 of every age can.
func TestDirectIOIsReported(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, 4*mebibyte), none())

	dio, err := os.ReadFile("/sys/block/" + filepath.Base(device.Path) + "/loop/dio")
	require.NoError(t, err)
	require.Equal(t, string(dio) == "1\n", device.DirectIO, "want: the attachment says what the kernel says of direct I/O")
}

func TestImageLockedByTheCallerIsAttached(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, 4*mebibyte)
	await.Flock(t, image, unix.LOCK_EX)

	_, err := loops.Attach(t.Context(), image, none())
	require.ErrorIs(t, err, loop.ErrImageLocked)

	o := none()
	o.AlreadyLocked = true
	attach(t, loops, image, o)
}

func TestAReadOnlyDeviceRefusesWrites(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	o := none()
	o.ReadOnly = true
	image := newImage(t, 4*mebibyte)
	device := attach(t, loops, image, o)
	require.True(t, device.ReadOnly, "want: the device is read-only")

	opened, err := loops.Open(device.Number)
	require.NoError(t, err)

	defer opened.Close()

	// The kernel may let it be opened for writing.
	_, err = opened.WriteAt([]byte(strings.Repeat("x", 4096)), 0)
	require.Error(t, err, "a write to a read-only device")

	content, err := os.ReadFile(image.Name())
	require.NoError(t, err)
	require.Equal(t, make([]byte, 4*mebibyte), content)
}

func TestTheSameImageTwiceIsOneDevice(t *testing.T) {
	needRoot(t)

	for name, second := range map[string]*loop.Loops{
		"same instance":         nil,
		"after a restart":       loop.NewLoops(loop.LoopsOptions{First: first}),
		"with another range":    loop.NewLoops(loop.LoopsOptions{First: firstMany}),
		"with another autodrop": nil,
	} {
		t.Run(name, func(t *testing.T) {
			loops := loop.NewLoops(loop.LoopsOptions{First: first})
			if second == nil {
				second = loops
			}

			image := newImage(t, 4*mebibyte)
			one := attach(t, loops, image, none())

			reopened, err := os.Open(image.Name())
			require.NoError(t, err)

			defer reopened.Close()

			o := none()
			o.AutoClear = name == "with another autodrop"
			two := attach(t, second, reopened, o)

			require.Equal(t, one.Number, two.Number, "want: the image stays on the same device")
			require.Equal(t, one.Path, two.Path)
			require.Equal(t, one.DirectIO, two.DirectIO, "want: both attachments agree on direct I/O")
			require.Equal(t, o.AutoClear, requireAttached(t, loops, one.Number).AutoClear, "want: the device has AUTOCLEAR as last asked")
		})
	}
}

func TestConcurrentAttachesOfOneImageMakeOneDevice(t *testing.T) {
	needRoot(t)

	image := newImage(t, 4*mebibyte)
	devices := make([]*loop.Device, 16)
	loops := loop.NewLoops(loop.LoopsOptions{First: first})

	t.Cleanup(func() { drop(t, loops, devices...) })

	var group errgroup.Group
	for i := range devices {
		group.Go(func() error {
			var err error
			// Each with its own memory, as if in 16 processes.
			devices[i], err = loop.NewLoops(loop.LoopsOptions{First: first}).Attach(t.Context(), image, none())

			return err
		})
	}

	var err error

	await.Return(t, func() { err = group.Wait() }, "all calls of Attach to return")
	require.NoError(t, err)

	for _, device := range devices {
		require.Equal(t, devices[0].Number, device.Number, "want: all attachments are of the same device")
	}

	found, err := loops.Find(image)
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the image has one device")
}

func TestReadOnlyAndWritableAttachmentsStandSideBySide(t *testing.T) {
	needRoot(t)

	for name, readOnlyFirst := range map[string]bool{"writer first": false, "reader first": true} {
		t.Run(name, func(t *testing.T) {
			loops := loop.NewLoops(loop.LoopsOptions{First: first})
			image := newImage(t, 4*mebibyte)

			for _, readOnly := range []bool{readOnlyFirst, !readOnlyFirst} {
				o := none()
				o.ReadOnly = readOnly
				device := attach(t, loops, image, o)
				require.Equal(t, readOnly, device.ReadOnly, "want: the device is read-only as asked")

				again := attach(t, loops, image, o)
				require.Equal(t, device.Number, again.Number, "want: the same mode finds the same device")
			}

			found, err := loops.Find(image)
			require.NoError(t, err)
			require.Len(t, found, 2, "want: each mode has a device of its own")
		})
	}
}

func TestImageLockedByAnotherProcessIsRefused(t *testing.T) {
	needRoot(t)

	image := newImage(t, 4*mebibyte)
	holder, err := os.Open(image.Name())
	require.NoError(t, err)

	defer holder.Close()

	await.Flock(t, holder, unix.LOCK_EX)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	_, err = loops.Attach(t.Context(), image, none())
	require.ErrorIs(t, err, loop.ErrImageLocked)
	errtext.Require(t, err, "another mount namespace still has the volume mounted")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = loops.Attach(ctx, image, none())
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_UN))
	attach(t, loops, image, none())
}

// TestAnImageThatAChildBeingForkedHasIsAwaited has a copy of a locked file, as of all,
// in such a child until that is through.
func TestAnImageThatAChildBeingForkedHasIsAwaited(t *testing.T) {
	needRoot(t)

	image := newImage(t, 4*mebibyte)
	holder, err := os.Open(image.Name())
	require.NoError(t, err)
	await.Flock(t, holder, unix.LOCK_EX)
	child.CloseWhileForked(t, holder, 600*time.Millisecond)

	attach(t, loop.NewLoops(loop.LoopsOptions{First: first}), image, none())
}

func TestAWritableAttachmentWithAnotherBlockSizeIsRefused(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, 4*mebibyte)
	attach(t, loops, image, none())

	o := none()
	o.BlockSize = 512
	_, err := loops.Attach(t.Context(), image, o)
	require.ErrorIs(t, err, loop.ErrImageLocked)
}

func TestThePreferredNumberIsTakenEvenOutsideTheRange(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, newImage(t, mebibyte), loop.AttachOptions{PreferredNumber: firstNode + 7})
	require.Equal(t, firstNode+7, device.Number, "want: the preferred number is taken")

	other := attach(t, loops, newImage(t, mebibyte), loop.AttachOptions{PreferredNumber: firstNode + 7})
	require.Equal(t, first, other.Number, "want: a taken number is not preferred again")
}

func TestANumberOfAnotherProgramIsTriedLastAndReleasedLater(t *testing.T) {
	needRoot(t)

	foreign := newImage(t, mebibyte)
	foreignAttach(t, foreign, firstBusy)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstBusy, Last: firstBusy + 3})
	wanted := none()
	wanted.PreferredNumber = firstBusy

	one := attach(t, loops, newImage(t, mebibyte), wanted)
	require.Equal(t, firstBusy+1, one.Number, "want: the busy number is passed over")

	two := attach(t, loops, newImage(t, mebibyte), wanted)
	require.Equal(t, firstBusy+2, two.Number, "want: the next free number is taken")

	// The other program lets go of it.
	require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).Detach(t.Context(), firstBusy))

	three := attach(t, loops, newImage(t, mebibyte), wanted)
	require.Equal(t, firstBusy, three.Number, "want: the released number is taken")
}

func TestForeignDevicesAreUntouched(t *testing.T) {
	needRoot(t)

	foreign := newImage(t, mebibyte)
	foreignAttach(t, foreign, firstBusy)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstBusy, Last: firstBusy})
	before := requireAttached(t, loops, firstBusy)

	_, err := loops.Attach(t.Context(), newImage(t, mebibyte), none())
	require.ErrorIs(t, err, loop.ErrNoNumber)
	require.Equal(t, before, requireAttached(t, loops, firstBusy))
}

func TestAnImageAttachedByAnotherProgramIsFoundByItsNumber(t *testing.T) {
	needRoot(t)

	image := newImage(t, mebibyte)
	foreignAttach(t, image, firstBusy)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstBusy})
	device := attach(t, loops, image, none())
	require.Equal(t, firstBusy, device.Number, "want: the device of the other program is adopted")
}

func TestReleasedNumbersAreUsedAgain(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLimits, Last: firstLimits + 1})
	one := attach(t, loops, newImage(t, mebibyte), none())
	two := attach(t, loops, newImage(t, mebibyte), none())
	require.Equal(t, []int{firstLimits, firstLimits + 1}, []int{one.Number, two.Number})

	_, err := loops.Attach(t.Context(), newImage(t, mebibyte), none())
	require.ErrorIs(t, err, loop.ErrNoNumber)

	require.NoError(t, one.Close())
	require.NoError(t, loops.Detach(t.Context(), one.Number))

	three := attach(t, loops, newImage(t, mebibyte), none())
	require.Equal(t, firstLimits, three.Number, "the lowest free number")
}

func TestSixtyFourAttachesAtOnce(t *testing.T) {
	needRoot(t)

	const count = 64

	loops := loop.NewLoops(loop.LoopsOptions{First: firstMany, Last: firstMany + count - 1})
	images := make([]*os.File, count)
	devices := make([]*loop.Device, count)

	for i := range images {
		images[i] = newImage(t, mebibyte)
	}

	t.Cleanup(func() { drop(t, loops, devices...) })

	group, ctx := errgroup.WithContext(t.Context())
	for i := range images {
		group.Go(func() error {
			var err error
			devices[i], err = loops.Attach(ctx, images[i], none())

			return err
		})
	}

	var err error

	await.Return(t, func() { err = group.Wait() }, "all calls of Attach to return")
	require.NoError(t, err)

	numbers := make([]int, count)

	for i, device := range devices {
		numbers[i] = device.Number
		identity, err := loop.IdentityOf(images[i])
		require.NoError(t, err)

		status := requireAttached(t, loops, device.Number)
		require.Equal(t, identity, status.Backing)
	}

	slices.Sort(numbers)
	require.Len(t, slices.Compact(numbers), count, "want: each image has a device of its own")
	require.Equal(t, firstMany, numbers[0], "want: the numbers begin with the first of the range")
	require.Equal(t, firstMany+count-1, numbers[count-1], "no number was wasted")
}

func TestOnlyRegularFilesAreImages(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})

	directory, err := os.Open(t.TempDir())
	require.NoError(t, err)

	defer directory.Close()

	_, err = loops.Attach(t.Context(), directory, none())
	require.ErrorIs(t, err, loop.ErrNotImage)
}

func TestDeletedImageIsReported(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	image := newImage(t, mebibyte)
	device := attach(t, loops, image, none())
	require.NoError(t, os.Remove(image.Name()))

	attachment := attachmentOf(t, loops, device.Number)
	require.True(t, attachment.BackingDeleted, "want: the image of the device is deleted")
	require.Equal(t, image.Name(), attachment.BackingPath)
}

func TestLongPathIsReportedWhole(t *testing.T) {
	needRoot(t)

	path := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	image, err := os.Create(path)
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(mebibyte))

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	device := attach(t, loops, image, none())
	require.Equal(t, path, attachmentOf(t, loops, device.Number).BackingPath)
}

// A container's own /dev has neither loop-control nor nodes.
func TestNodesAreMadeInTheDeviceDir(t *testing.T) {
	needRoot(t)

	dev, nodes := t.TempDir(), filepath.Join(t.TempDir(), "nodes")
	// A stale plain file in the node's place must not be taken for the device.
	require.NoError(t, os.WriteFile(filepath.Join(dev, "loop740000"), nil, 0o600))

	loops := loop.NewLoops(loop.LoopsOptions{First: firstNode, Dev: dev, DeviceDir: nodes})
	device := attach(t, loops, newImage(t, mebibyte), none())

	require.Equal(t, filepath.Join(nodes, "loop740000"), device.Path)
	require.Equal(t, device.Path, requireAttached(t, loops, device.Number).Path)

	_, err := device.File().WriteAt(make([]byte, 4096), 0)
	require.NoError(t, err)
}

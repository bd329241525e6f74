package events_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/child"
)

const (
	// firstLoop and lastLoop bound the numbers of these tests, beyond every
	// driver's and other test's on the same machine.
	firstLoop = 880_000
	lastLoop  = 889_999

	blockSize = 4096
	mebibyte  = 1 << 20

	// soon is how long a test waits before it fails; what it waits for takes
	// milliseconds.
	soon = 20 * time.Second
)

// running is a source that runs, with the events it has reported.
type running struct {
	events chan health.Event
	ended  chan error
	cancel context.CancelFunc
	// passed are the events that next has seen.
	passed []health.Event
}

// start runs a source that this machine has to support, until the end of the
// test.
func start(tb testing.TB, source health.Source) *running {
	tb.Helper()

	return startWith(tb, source, func(health.Event) {})
}

// startWith has each event handed to first, which may block, too.
func startWith(tb testing.TB, source health.Source, first func(health.Event)) *running {
	tb.Helper()
	require.NoError(tb, source.Supported())

	ctx, cancel := context.WithCancel(context.Background())
	r := &running{events: make(chan health.Event, 1<<16), ended: make(chan error, 1), cancel: cancel}
	connected := make(chan struct{})

	go func() {
		r.ended <- source.Run(ctx, func() { close(connected) }, func(event health.Event) {
			first(event)

			r.events <- event
		})

		close(r.ended)
	}()

	tb.Cleanup(func() { require.NoError(tb, r.stop()) })

	select {
	case <-connected:
	case err := <-r.ended:
		require.FailNow(tb, "the source did not connect", "%v", err)
	case <-time.After(soon):
		require.FailNow(tb, "the source did not connect in time")
	}

	return r
}

// stop ends Run and returns its error; nil the second time.
func (r *running) stop() error {
	r.cancel()

	select {
	case err := <-r.ended:
		return err
	case <-time.After(soon):
		return context.DeadlineExceeded
	}
}

// awaitEnd returns what Run has returned by itself. When it does not return, the test
// fails and says after what it should have.
func (r *running) awaitEnd(tb testing.TB, after string) error {
	tb.Helper()

	select {
	case err := <-r.ended:
		return err
	case <-time.After(soon):
		require.FailNow(tb, "Run has not returned", "%s ago: %s", soon, after)

		return nil
	}
}

// next waits for the next event that is wanted.
func (r *running) next(tb testing.TB, wanted func(health.Event) bool) health.Event {
	tb.Helper()

	timeout := time.After(soon)

	for {
		select {
		case event := <-r.events:
			r.passed = append(r.passed, event)

			if wanted(event) {
				require.WithinDuration(tb, time.Now(), event.At, soon)

				return event
			}
		case err := <-r.ended:
			require.FailNow(tb, "the source has ended", "%v", err)
		case <-timeout:
			require.FailNow(tb, "no such event came")
		}
	}
}

// drain returns what has come so far.
func (r *running) drain() []health.Event {
	var events []health.Event

	for {
		select {
		case event := <-r.events:
			events = append(events, event)
		default:
			return events
		}
	}
}

func ofKind(kind health.Kind) func(health.Event) bool {
	return func(event health.Event) bool { return event.Kind == kind }
}

// mountedAt mounts where only this process sees it, and unmounts at the end.
func mountedAt(tb testing.TB, dir, fsType, options string) {
	tb.Helper()
	require.NoError(tb, unix.Mount("test", dir, fsType, 0, options))
	tb.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func newImage(tb testing.TB, dir string, sizeBytes int64) *os.File {
	tb.Helper()

	image, err := os.Create(filepath.Join(dir, "volume.img"))
	require.NoError(tb, err)
	tb.Cleanup(func() { image.Close() })
	require.NoError(tb, image.Truncate(sizeBytes))

	return image
}

func attach(tb testing.TB, image *os.File, options loop.AttachOptions) *loop.Device {
	tb.Helper()

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop, Last: lastLoop})
	options.PreferredNumber = -1
	device, err := loops.Attach(tb.Context(), image, options)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		device.Close()

		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()

		require.NoError(tb, loops.Detach(ctx, device.Number))
	})

	return device
}

func deviceNumber(device *loop.Device) uint64 { return unix.Mkdev(7, uint32(device.Number)) }

// openDirect opens a device so that what is written and read goes to it at once,
// a call a request.
func openDirect(tb testing.TB, path string) *os.File {
	tb.Helper()

	file, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(tb, err)
	tb.Cleanup(func() { file.Close() })

	return file
}

// aligned returns a block as O_DIRECT wants it.
func aligned() []byte {
	room := make([]byte, 2*blockSize)
	behind := int(uintptr(unsafe.Pointer(&room[0])) % blockSize)

	return room[blockSize-behind:][:blockSize:blockSize]
}

// failing is a device whose blocks cannot be written, but the first: the pool of
// its image is full.
func failing(tb testing.TB) (*loop.Device, *os.File) {
	tb.Helper()

	dir := tb.TempDir()
	mountedAt(tb, dir, "tmpfs", fmt.Sprintf("size=%d", blockSize))

	device := attach(tb, newImage(tb, dir, mebibyte), loop.AttachOptions{})
	file := openDirect(tb, device.Path)

	_, err := file.WriteAt(aligned(), 0)
	require.NoError(tb, err)

	return device, file
}

// discard is one of the ioctls that take an offset and a length in bytes.
func discard(tb testing.TB, device *os.File, how uintptr, offset, length uint64) {
	tb.Helper()

	given := [2]uint64{offset, length}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), how, uintptr(unsafe.Pointer(&given)))
	require.Zero(tb, errno, "want: the ioctl succeeds")
}

func requireWriteFails(tb testing.TB, file *os.File, block int64) {
	tb.Helper()

	_, err := file.WriteAt(aligned(), block*blockSize)
	require.Error(tb, err, "a write to block %d of %s", block, file.Name())
}

// hasErrno says whether an event has what the kernel says of a full pool: in Linux
// 6.1 EIO, as of anything else.
func hasErrno(event health.Event) bool {
	return event.Errno == int(unix.ENOSPC) || event.Errno == int(unix.EIO)
}

// staged attaches an image with a filesystem and mounts it.
func staged(tb testing.TB, mkfs ...string) (*loop.Device, string) {
	tb.Helper()

	dir, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)

	image := newImage(tb, dir, 128*mebibyte)
	run(tb, mkfs[0], append(mkfs[1:], image.Name())...)
	device := attach(tb, image, loop.AttachOptions{})

	places, err := mount.NewAllowedDirs(dir)
	require.NoError(tb, err)

	place, err := places.Target(filepath.Join(dir, "staged"))
	require.NoError(tb, err)
	tb.Cleanup(place.Close)

	_, err = place.MakeDir(0o750)
	require.NoError(tb, err)

	options := mount.Options{}
	if mkfs[0] == "mkfs.ext4" {
		// A filesystem that an error has made read-only reports no further ones.
		options, err = mount.ParseFlags([]string{"errors=continue"})
		require.NoError(tb, err)
	}

	tree, err := mount.Mount(device.Path, strings.TrimPrefix(mkfs[0], "mkfs."), options)
	require.NoError(tb, err)

	defer tree.Close()

	require.NoError(tb, tree.Attach(place))
	tb.Cleanup(func() { _ = unix.Unmount(place.Path(), unix.MNT_DETACH) })

	return device, place.Path()
}

func run(tb testing.TB, name string, args ...string) {
	tb.Helper()

	output, err := child.Command(tb, name, args...).CombinedOutput()
	require.NoErrorf(tb, err, "%s %v: %s", name, args, output)
}

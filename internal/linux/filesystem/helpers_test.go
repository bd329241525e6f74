package filesystem_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// first is where these tests' loop devices begin.
const (
	first  = 770_000
	beyond = 780_000
)

const mebibyte = 1 << 20

func needRoot(tb testing.TB) {
	tb.Helper()

	if os.Getuid() != 0 {
		tb.Skip("attaching and mounting an image needs root")
	}
}

func left() ([]loop.Attachment, error) {
	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()

	return slices.DeleteFunc(all, func(s loop.Attachment) bool {
		return s.Number < first || s.Number >= beyond
	}), err
}

func byName(tb testing.TB, name string) filesystem.Filesystem {
	tb.Helper()

	fs, err := filesystem.ByName(name, nil)
	require.NoError(tb, err)

	return fs
}

// imageSize is one that each filesystem can have.
const imageSize int64 = 320 * mebibyte

func filesystems(tb testing.TB) map[string]filesystem.Filesystem {
	tb.Helper()

	all := make(map[string]filesystem.Filesystem)
	for _, name := range filesystem.Names() {
		all[name] = byName(tb, name)
	}

	return all
}

func newImage(tb testing.TB, size int64) *os.File {
	tb.Helper()

	file, err := os.Create(filepath.Join(tb.TempDir(), "volume.img"))
	require.NoError(tb, err)
	require.NoError(tb, file.Truncate(size))
	tb.Cleanup(func() { file.Close() })

	return file
}

func newFilesystem(tb testing.TB, fs filesystem.Filesystem, size int64) *os.File {
	tb.Helper()

	image := newImage(tb, size)
	require.NoError(tb, fs.Make(tb.Context(), image.Name(), filesystem.MakeOptions{}))

	return image
}

func attach(tb testing.TB, image *os.File, o loop.AttachOptions) *loop.Device {
	tb.Helper()

	o.PreferredNumber = -1
	loops := loop.NewLoops(loop.LoopsOptions{First: first})

	device, err := loops.Attach(tb.Context(), image, o)
	require.NoError(tb, err)
	tb.Cleanup(func() { detach(tb, device) })

	return device
}

func detach(tb testing.TB, device *loop.Device) {
	tb.Helper()

	_ = device.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	require.NoError(tb, loop.NewLoops(loop.LoopsOptions{}).Detach(ctx, device.Number))
}

// mounted is an image's filesystem in use.
type mounted struct {
	device    *loop.Device
	directory string
}

func mount(tb testing.TB, fs filesystem.Filesystem, image *os.File, o loop.AttachOptions) *mounted {
	tb.Helper()

	m := &mounted{device: attach(tb, image, o), directory: tb.TempDir()}
	require.NoError(tb, unix.Mount(m.device.Path, m.directory, fs.Name(), 0, ""))
	// Lazily: a tool that another test starts may for an instant have it open.
	tb.Cleanup(func() { _ = unix.Unmount(m.directory, unix.MNT_DETACH) })

	return m
}

// unmount also detaches, so that the image's bytes are those on the disk.
func (m *mounted) unmount(tb testing.TB) {
	tb.Helper()

	var err error

	// A tool that another test starts may for an instant have a file open that was
	// just closed.
	require.Eventually(tb, func() bool {
		err = unix.Unmount(m.directory, 0)

		return !errors.Is(err, unix.EBUSY)
	}, time.Minute, time.Millisecond, "want: the filesystem is unmounted")
	require.NoError(tb, err)
	detach(tb, m.device)
}

// open returns the mount point as internal/linux/mount hands it out: with O_PATH.
func (m *mounted) open(tb testing.TB) *os.File {
	tb.Helper()

	descriptor, err := unix.Open(m.directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(tb, err)

	return os.NewFile(uintptr(descriptor), m.directory)
}

func (m *mounted) openToRead(tb testing.TB) *os.File {
	tb.Helper()

	root, err := os.Open(m.directory)
	require.NoError(tb, err)
	tb.Cleanup(func() { root.Close() })

	return root
}

func (m *mounted) write(tb testing.TB) [sha256.Size]byte {
	tb.Helper()

	content := make([]byte, 5*mebibyte)
	random := rand.NewChaCha8([32]byte(bytes.Repeat([]byte{7}, 32)))
	_, _ = random.Read(content)

	file, err := os.Create(filepath.Join(m.directory, "data"))
	require.NoError(tb, err)

	_, err = io.Copy(file, bytes.NewReader(content))
	require.NoError(tb, err)
	require.NoError(tb, file.Sync())
	require.NoError(tb, file.Close())

	return sha256.Sum256(content)
}

func (m *mounted) requireData(tb testing.TB, sum [sha256.Size]byte) {
	tb.Helper()

	content, err := os.ReadFile(filepath.Join(m.directory, "data"))
	require.NoError(tb, err)
	require.Equal(tb, sum, sha256.Sum256(content))
}

// crash stops the filesystem without writing its log out: what a power cut
// leaves. The ioctl is XFS's; ext4 took it over: _IOR of X, 125, a __u32.
func (m *mounted) crash(tb testing.TB) {
	tb.Helper()

	const (
		iocGoingDown   = 0x8004587d
		flushLog       = 1
		distinctlyMore = 200
	)

	for i := range distinctlyMore {
		require.NoError(tb, os.Mkdir(filepath.Join(m.directory, "d"+string(rune('0'+i))), 0o700))
	}

	directory, err := os.Open(m.directory)
	require.NoError(tb, err)

	defer directory.Close()

	// The log flushed, but what it says not yet carried out: so it is dirty.
	require.NoError(tb, unix.IoctlSetPointerInt(int(directory.Fd()), iocGoingDown, flushLog))
}

func requireState(tb testing.TB, want filesystem.State, fs filesystem.Filesystem, path string) filesystem.Verdict {
	tb.Helper()

	verdict, err := fs.Check(tb.Context(), path)
	require.NoError(tb, err)
	require.Equal(tb, want, verdict.State, "%s", verdict.Detail)
	require.Equal(tb, want == filesystem.Clean, verdict.Detail == "", "want: each verdict but clean has a detail")

	return verdict
}

// recorder is a Runner that starts nothing.
type recorder struct {
	commands []filesystem.Command
	result   filesystem.Result
	err      error
}

func (r *recorder) Run(_ context.Context, command filesystem.Command) (filesystem.Result, error) {
	r.commands = append(r.commands, command)

	return r.result, r.err
}

var errRecorded = errors.New("recorded")

// attachClaimed attaches an image, and returns the path of its device.
func attachClaimed(t *testing.T, image *os.File) string {
	t.Helper()

	device, err := loop.NewLoops(loop.LoopsOptions{First: first}).Attach(t.Context(), image, loop.AttachOptions{
		AutoClear: true, Exclusive: true, PreferredNumber: -1,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })

	return device.Path
}

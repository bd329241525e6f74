package events_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// efsCorrupted is EFSCORRUPTED, which the kernel spells EUCLEAN outside.
const efsCorrupted = int(unix.EUCLEAN)

// triggerError has ext4 report an error without any harm done.
func triggerError(tb testing.TB, device *loop.Device) {
	tb.Helper()

	path := fmt.Sprintf("/sys/fs/ext4/loop%d/trigger_fs_error", device.Number)
	require.NoError(tb, os.WriteFile(path, []byte("touchstone's test"), 0o600))
}

func markAt(tb testing.TB, source *events.FilesystemErrors, dir string) {
	tb.Helper()

	root, err := os.Open(dir)
	require.NoError(tb, err)

	defer root.Close()

	require.NoError(tb, source.Mark(root))
}

func fsid(tb testing.TB, dir string) [2]int32 {
	tb.Helper()

	var stat unix.Statfs_t

	require.NoError(tb, unix.Statfs(dir, &stat))

	return stat.Fsid.Val
}

func TestErrorsOfAFilesystemAreReported(t *testing.T) {
	namespace.NeedRoot(t)

	var (
		first, firstDir   = staged(t, "mkfs.ext4", "-q", "-b", "4096")
		second, secondDir = staged(t, "mkfs.ext4", "-q", "-b", "4096")
		source            = events.NewFilesystemErrors()
	)

	require.Equal(t, "filesystem-errors", source.Name())
	require.NotEqual(t, fsid(t, firstDir), fsid(t, secondDir), "want: the filesystems have different ids")

	root, err := os.Open(firstDir)
	require.NoError(t, err)

	defer root.Close()

	require.ErrorIs(t, source.Mark(root), events.ErrNotConnected)

	// What ended can be started again; the marks have to be set again.
	for range 2 {
		running := start(t, source)

		markAt(t, source, secondDir)
		triggerError(t, first)
		triggerError(t, second)

		event := running.next(t, ofKind(health.FilesystemError))
		require.Equal(t, health.Event{
			Kind: health.FilesystemError, At: event.At, Filesystem: fsid(t, secondDir), Errno: efsCorrupted,
		}, event, "of what is marked alone")

		markAt(t, source, secondDir)
		markAt(t, source, firstDir)
		triggerError(t, first)
		require.Equal(t, fsid(t, firstDir), running.next(t, ofKind(health.FilesystemError)).Filesystem)

		require.NoError(t, running.stop())
		require.Empty(t, running.drain(), "want: there is no further event")
		require.ErrorIs(t, source.Mark(root), events.ErrNotConnected)
	}
}

// A mark keeps neither a filesystem mounted nor its device open.
func TestFilesystemErrorsHoldNothing(t *testing.T) {
	namespace.NeedRoot(t)

	for _, mkfs := range [][]string{{"mkfs.ext4", "-q", "-b", "4096"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			var (
				source      = events.NewFilesystemErrors()
				running     = start(t, source)
				device, dir = staged(t, mkfs...)
				loops       = loop.NewLoops(loop.LoopsOptions{})
			)

			markAt(t, source, dir)
			require.NoError(t, unix.Unmount(dir, 0))
			require.NoError(t, device.Close())
			require.NoError(t, loops.Detach(t.Context(), device.Number))

			_, attached, err := loops.Status(device.Number)
			require.NoError(t, err)
			require.False(t, attached, "want: the device is not attached")
			require.Empty(t, running.drain(), "want: there is no event after the unmount")
		})
	}
}

// TestFilesystemErrorsOfOthers requires every volume of a node to be marked, healthy or
// not, whatever its filesystem.
func TestFilesystemErrorsOfOthers(t *testing.T) {
	namespace.NeedRoot(t)

	source := events.NewFilesystemErrors()
	start(t, source)

	dir := t.TempDir()
	mountedAt(t, dir, "tmpfs", "")
	markAt(t, source, dir)

	proc, err := os.Open("/proc")
	require.NoError(t, err)

	defer proc.Close()

	err = source.Mark(proc)
	require.ErrorIs(t, err, events.ErrKernel)
	errtext.Require(t, err, "/proc")
}

func TestFanotifyEventsAreParsed(t *testing.T) {
	const fid, failure = unix.FAN_EVENT_INFO_TYPE_FID, unix.FAN_EVENT_INFO_TYPE_ERROR

	var (
		at     = time.Now()
		native = binary.NativeEndian
		record = func(kind byte, first, second uint32, more ...byte) []byte {
			data := native.AppendUint16([]byte{kind, 0}, uint16(12+len(more)))

			return append(native.AppendUint32(native.AppendUint32(data, first), second), more...)
		}
		event = func(version byte, mask uint64, records ...[]byte) []byte {
			data := native.AppendUint32(nil, 0)
			data = native.AppendUint16(append(data, version, 0), unix.FAN_EVENT_METADATA_LEN)
			data = append(native.AppendUint64(data, mask), 255, 255, 255, 255, 1, 0, 0, 0)

			for _, each := range records {
				data = append(data, each...)
			}

			native.PutUint32(data, uint32(len(data)))

			return data
		}
		handle     = make([]byte, 16)
		overflow   = event(3, unix.FAN_Q_OVERFLOW)
		fsError    = event(3, unix.FAN_FS_ERROR, record(failure, 5, 2), record(fid, 7, 1<<32-2, handle...))
		told       = health.Event{Kind: health.FilesystemError, At: at, Filesystem: [2]int32{7, -2}, Errno: 5}
		unreadable = event(4, unix.FAN_FS_ERROR)
	)

	for name, test := range map[string]struct {
		data []byte
		want []health.Event
		fail bool
	}{
		"one":                 {fsError, []health.Event{told}, false},
		"several":             {append(append([]byte{}, fsError...), fsError...), []health.Event{told, told}, false},
		"overflow":            {overflow, []health.Event{{Kind: health.Lost, At: at}}, false},
		"after an overflow":   {append(append([]byte{}, overflow...), fsError...), []health.Event{{Kind: health.Lost, At: at}, told}, false},
		"of another version":  {unreadable, nil, true},
		"cut off":             {fsError[:len(fsError)-1], nil, true},
		"unknown record":      {event(3, unix.FAN_FS_ERROR, record(99, 1, 2), record(fid, 7, 1<<32-2), record(failure, 5, 1)), []health.Event{told}, false},
		"record of no length": {event(3, unix.FAN_FS_ERROR, make([]byte, 12)), []health.Event{{Kind: health.FilesystemError, At: at}}, false},
		"of no concern":       {event(3, unix.FAN_ATTRIB), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var got []health.Event

			err := events.TakeFilesystemErrors(at, test.data, func(event health.Event) { got = append(got, event) })
			require.Equal(t, test.fail, err != nil, err)
			require.Equal(t, test.want, got)
		})
	}
}

// Most of it is ext4's own: it writes its superblock first.
func BenchmarkFilesystemErrors(b *testing.B) {
	namespace.NeedRoot(b)

	device, dir := staged(b, "mkfs.ext4", "-q", "-b", "4096")
	source := events.NewFilesystemErrors()
	running := start(b, source)
	latencies := newLatencies(b)

	markAt(b, source, dir)

	for b.Loop() {
		latencies.measure(running, health.FilesystemError, func() { triggerError(b, device) })
	}

	latencies.report()
}

func BenchmarkMark(b *testing.B) {
	namespace.NeedRoot(b)

	source := events.NewFilesystemErrors()
	start(b, source)

	root, err := os.Open(filepath.Dir(b.TempDir()))
	require.NoError(b, err)

	defer root.Close()

	for b.Loop() {
		require.NoError(b, source.Mark(root))
	}
}

package events_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// barrier creates a file and waits for its event. It returns the events reported
// before that one, which are all that there were.
func (r *running) barrier(tb testing.TB, dir string) []health.Event {
	tb.Helper()

	path := filepath.Join(dir, fmt.Sprintf("barrier-%d", len(r.passed)))
	require.NoError(tb, os.WriteFile(path, nil, 0o600))

	r.passed = nil
	r.next(tb, func(event health.Event) bool { return event.Path == path })

	return r.passed[:len(r.passed)-1]
}

func TestChangesOfFilesAreReported(t *testing.T) {
	write := func(path string, how func(*os.File) error) error {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer file.Close()

		return how(file)
	}

	for name, test := range map[string]struct {
		cause func(dir, path string) error
		want  health.Kind
	}{
		"removed":   {func(_, path string) error { return os.Remove(path) }, health.FileChanged},
		"moved out": {func(dir, path string) error { return os.Rename(path, dir+"-other") }, health.FileChanged},
		"moved over": {func(dir, path string) error {
			if err := os.WriteFile(dir+"-other", nil, 0o600); err != nil {
				return err
			}

			return os.Rename(dir+"-other", path)
		}, health.FileChanged},
		"attributes": {func(_, path string) error { return os.Chmod(path, 0o640) }, health.FileChanged},
		"written": {func(_, path string) error {
			return write(path, func(file *os.File) error {
				_, err := file.WriteAt([]byte("x"), 5)

				return err
			})
		}, health.FileWritten},
		"truncated": {func(_, path string) error { return os.Truncate(path, 1) }, health.FileWritten},
		"grown":     {func(_, path string) error { return os.Truncate(path, mebibyte) }, health.FileWritten},
		"punched": {func(_, path string) error {
			return write(path, func(file *os.File) error {
				return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1)
			})
		}, health.FileWritten},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "image")
			require.NoError(t, os.WriteFile(path, []byte("0123456789"), 0o600))

			source := events.NewFiles(t.TempDir(), dir+"//")
			require.Equal(t, "files", source.Name())

			running := start(t, source)
			require.NoError(t, test.cause(dir, path))

			events := running.barrier(t, dir)
			require.NotEmpty(t, events, "want: the change has an event")

			for _, event := range events {
				require.Equal(t, health.Event{Kind: test.want, At: event.At, Path: path}, event)
			}
		})
	}
}

func TestReadsAndSubdirectoriesCauseNoEvent(t *testing.T) {
	dir := t.TempDir()
	path, beneath := filepath.Join(dir, "image"), filepath.Join(dir, "volume")

	require.NoError(t, os.WriteFile(path, []byte("0123456789"), 0o600))
	require.NoError(t, os.Mkdir(beneath, 0o750))

	running := start(t, events.NewFiles(dir))

	_, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(beneath, "file"), []byte("x"), 0o600))
	require.NoError(t, os.Chmod(dir, 0o700))
	require.Empty(t, running.barrier(t, dir), "want: a change below the directory has no event")
}

func TestAccessByALoopDeviceCausesNoEvent(t *testing.T) {
	namespace.NeedRoot(t)

	for name, buffered := range map[string]bool{"direct I/O": false, "buffered": true} {
		t.Run(name, func(t *testing.T) {
			var (
				dir     = t.TempDir()
				image   = newImage(t, dir, 16*mebibyte)
				running = start(t, events.NewFiles(dir))
				device  = attach(t, image, loop.AttachOptions{Buffered: buffered})
				direct  = openDirect(t, device.Path)
			)

			if !device.DirectIO && events.LoopWritesReported() {
				t.Skip("before Linux 6.15 a loop device without direct I/O writes as any program does")
			}

			for block := range int64(100) {
				_, err := direct.WriteAt(aligned(), block*blockSize)
				require.NoError(t, err)
				_, err = device.File().WriteAt(aligned(), (1000+block)*blockSize)
				require.NoError(t, err)
			}

			require.NoError(t, device.File().Sync())
			discard(t, direct, unix.BLKDISCARD, 0, 50*blockSize)
			discard(t, direct, unix.BLKZEROOUT, 50*blockSize, 50*blockSize)
			_, err := direct.ReadAt(aligned(), 0)
			require.NoError(t, err)
			require.Empty(t, running.barrier(t, dir), "want: I/O of the loop device has no event")

			// While it is attached, another program writes, and then truncates.
			_, err = image.WriteAt([]byte("foreign"), 4711)
			require.NoError(t, err)
			require.Equal(t, image.Name(), running.next(t, ofKind(health.FileWritten)).Path)
			require.NoError(t, image.Truncate(mebibyte))
			require.Equal(t, image.Name(), running.next(t, ofKind(health.FileWritten)).Path)
		})
	}
}

func TestLostEventsOfFilesAreReported(t *testing.T) {
	dir := t.TempDir()
	gate := make(chan struct{})
	running := startWith(t, events.NewFiles(dir), func(health.Event) { <-gate })

	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	require.NoError(t, err)

	var most int

	_, err = fmt.Sscan(string(limit), &most)
	require.NoError(t, err)

	var pair [2]*os.File

	for i := range pair {
		pair[i], err = os.Create(filepath.Join(dir, fmt.Sprint("file-", i)))
		require.NoError(t, err)
		t.Cleanup(func() { pair[i].Close() })
	}

	// Events of one file alone would be made one, and some are read at once.
	for i := range 2 * most {
		_, err := pair[i%2].WriteAt([]byte("x"), 0)
		require.NoError(t, err)
	}

	close(gate)
	running.next(t, ofKind(health.Lost))
}

func TestAStormOfWritesCausesFewEvents(t *testing.T) {
	const storm = 20_000

	dir := t.TempDir()
	running := start(t, events.NewFiles(dir))

	file, err := os.Create(filepath.Join(dir, "image"))
	require.NoError(t, err)

	defer file.Close()

	for range storm {
		_, err := file.WriteString("x")
		require.NoError(t, err)
	}

	require.Less(t, len(running.barrier(t, dir)), storm/2, "want: a storm of changes has few events")
}

// Run ends with a directory, and can be called again when it is back.
func TestTheWatchEndsWithItsDirectory(t *testing.T) {
	for name, test := range map[string]struct {
		root     bool
		away, in func(testing.TB, string)
	}{
		"removed": {false, func(tb testing.TB, dir string) {
			tb.Helper()
			require.NoError(tb, os.Remove(dir))
		}, func(tb testing.TB, dir string) {
			tb.Helper()
			require.NoError(tb, os.Mkdir(dir, 0o750))
		}},
		"moved": {false, func(tb testing.TB, dir string) {
			tb.Helper()
			require.NoError(tb, os.Rename(dir, dir+"-other"))
		}, func(tb testing.TB, dir string) {
			tb.Helper()
			require.NoError(tb, os.Rename(dir+"-other", dir))
		}},
		"unmounted": {true, func(tb testing.TB, dir string) {
			tb.Helper()
			require.NoError(tb, unix.Unmount(dir, 0))
		}, func(tb testing.TB, dir string) {
			tb.Helper()
			mountedAt(tb, dir, "tmpfs", "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pool")
			require.NoError(t, os.Mkdir(dir, 0o750))

			if test.root {
				namespace.NeedRoot(t)
				test.in(t, dir)
			}

			source := events.NewFiles(t.TempDir(), dir)
			running := start(t, source)

			test.away(t, dir)

			err := running.awaitEnd(t, "a watched directory was "+name)
			require.ErrorIs(t, err, events.ErrGone)
			errtext.Require(t, err, dir)
			require.Equal(t, health.Lost, await.Receive(t, running.events, "the event of a lost source").Kind, "want: the end of the directory loses the source")

			if !test.root {
				require.ErrorIs(t, source.Run(t.Context(), func() {}, func(health.Event) {}), os.ErrNotExist)
			}

			test.in(t, dir)
			require.Empty(t, start(t, source).barrier(t, dir), "want: the source starts again without an event")
		})
	}
}

func BenchmarkFiles(b *testing.B) {
	dir := b.TempDir()
	file, err := os.Create(filepath.Join(dir, "image"))
	require.NoError(b, err)

	defer file.Close()

	running := start(b, events.NewFiles(dir))
	latencies := newLatencies(b)

	for b.Loop() {
		latencies.measure(running, health.FileWritten, func() {
			_, err := file.WriteAt([]byte("x"), 0)
			require.NoError(b, err)
		})
	}

	latencies.report()
}

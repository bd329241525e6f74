package kata_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// watch returns what happens in directories until it is called.
func watch(t *testing.T, directories ...string) func() []string {
	t.Helper()

	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })

	watched := map[int32]string{}

	for _, directory := range directories {
		number, err := unix.InotifyAddWatch(fd, directory,
			unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_DELETE|unix.IN_MODIFY|unix.IN_ATTRIB)
		require.NoError(t, err)

		watched[int32(number)] = filepath.Base(directory)
	}

	return func() []string {
		var events []string

		buffer := make([]byte, 64<<10)

		for {
			n, err := unix.Read(fd, buffer)
			if err == unix.EAGAIN {
				return events
			}

			require.NoError(t, err)

			for rest := buffer[:n]; len(rest) > 0; {
				event, name := inotifyEvent(rest)
				events = append(events, fmt.Sprintf("%#x %s/%s", event.Mask, watched[event.Wd], name))
				rest = rest[unix.SizeofInotifyEvent+event.Len:]
			}
		}
	}
}

// Kata takes the first file in the directory for a sandbox's id, at any time.
func TestNoTemporaryFileIsBesideAnAssignment(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")

	watched := watch(t, filepath.Join(path, entryOfTarget))

	require.NoError(t, root.Put(full()))
	require.Equal(t, []string{
		fmt.Sprintf("%#x %s/sandbox", unix.IN_DELETE, entryOfTarget),
		fmt.Sprintf("%#x %s/mountInfo.json", unix.IN_MOVED_TO, entryOfTarget),
	}, watched())
}

// The next write and the removal of an entry remove what a killed writer left. A link under its
// name is removed as well, and a directory is refused.
func TestLeftoversOfAKilledWriterAreRemoved(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))

	left := filepath.Join(path, kata.TemporaryName(entryOfTarget))
	victim := filepath.Join(t.TempDir(), "victim")
	put(t, victim, "untouched")
	put(t, left, `{"volume-ty`)
	require.NoError(t, root.Put(full()))
	require.NoFileExists(t, left)

	require.NoError(t, os.Symlink(victim, left))
	require.NoError(t, root.Put(plain()))
	require.NoFileExists(t, left)

	require.NoError(t, os.Mkdir(left, 0o700))
	require.ErrorIs(t, root.Put(full()), kata.ErrNestedDirectory)
	require.ErrorIs(t, root.Remove(target), kata.ErrNestedDirectory)
	require.NoError(t, os.Remove(left))

	put(t, left, "")
	require.NoError(t, root.Remove(target))
	require.Equal(t, map[string]string{".": "drwx------"}, tree(t, path))

	content, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "untouched", string(content))
}

func TestConcurrentTargetsAreIndependent(t *testing.T) {
	t.Parallel()

	_, path := newRoot(t)

	const (
		writers = 8
		rounds  = 100
	)

	var writing, reading sync.WaitGroup

	done := make(chan struct{})
	failures := make(chan error, 2*writers+2)

	for writer := range writers {
		writing.Go(func() {
			// Each is another driver.
			root := kata.NewRoot(path)
			assignment := plain()
			assignment.TargetPath = fmt.Sprintf("/target/%d", writer)

			for round := range rounds {
				assignment.Device = fmt.Sprintf("/dev/loop%d", round)
				if err := root.Put(assignment); err != nil {
					failures <- err

					return
				}

				entry, found, err := root.Get(assignment.TargetPath)
				if err == nil && (!found || entry.Device != assignment.Device) {
					err = fmt.Errorf("round %d: %v, %v", round, entry, found)
				}

				if err != nil {
					failures <- err

					return
				}

				if round%2 == writer%2 {
					if err := root.Remove(assignment.TargetPath); err != nil {
						failures <- err

						return
					}
				}
			}
		})
	}

	reading.Go(func() {
		root := kata.NewRoot(path)

		for {
			select {
			case <-done:
				return
			default:
			}

			entries, err := root.List()
			for _, entry := range entries {
				if entry.FSType != "ext4" {
					failures <- fmt.Errorf("half an entry: %v", entry)

					return
				}
			}

			if err != nil {
				failures <- err

				return
			}
		}
	})

	await.Return(t, writing.Wait, "all writers to end")
	close(done)
	await.Return(t, reading.Wait, "the reader to end")
	close(failures)

	for err := range failures {
		require.NoError(t, err)
	}

	// The last round is odd: writers with an odd number have removed their entry.
	entries, err := kata.NewRoot(path).List()
	require.NoError(t, err)
	require.Len(t, entries, writers/2, "want: the entries of half of the writers stay")
	require.Len(t, tree(t, path), 1+2*writers/2, "want: the root has the stayed entries and nothing else")
}

func TestFullFilesystemLeavesNoPartialAssignment(t *testing.T) {
	namespace.NeedRoot(t)

	path := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k,mode=0700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })

	root := kata.NewRoot(path)
	require.NoError(t, root.Put(plain()))
	require.ErrorIs(t, os.WriteFile(filepath.Join(path, "filler"), make([]byte, 64<<10), 0o600), unix.ENOSPC)

	require.ErrorIs(t, root.Put(full()), unix.ENOSPC)
	require.NoError(t, os.Remove(filepath.Join(path, "filler")))
	require.Equal(t, map[string]string{
		".":                               "drwx------",
		entryOfTarget:                     "drwx------",
		entryOfTarget + "/mountInfo.json": "-rw------- " + golden(t, "plain.mountInfo.json"),
	}, tree(t, path))
}

// inotifyEvent reads the first event of a buffer.
func inotifyEvent(buffer []byte) (event unix.InotifyEvent, name string) {
	event = *(*unix.InotifyEvent)(unsafe.Pointer(&buffer[0]))
	named := buffer[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+event.Len]

	return event, strings.TrimRight(string(named), "\x00")
}

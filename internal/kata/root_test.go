package kata_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// newRoot returns a root that isn't there yet, and its path.
func newRoot(t *testing.T) (*kata.Root, string) {
	t.Helper()

	path := filepath.Join(t.TempDir(), "run", "direct-volumes")

	return kata.NewRoot(path), path
}

// madeRoot is newRoot, but it is there, and empty.
func madeRoot(t *testing.T) (*kata.Root, string) {
	t.Helper()

	root, path := newRoot(t)
	require.NoError(t, os.MkdirAll(path, 0o700))

	return root, path
}

// tree lists all beneath a directory with types, modes and contents.
func tree(t *testing.T, top string) map[string]string {
	t.Helper()

	found := map[string]string{}

	require.NoError(t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)

		info, err := entry.Info()
		require.NoError(t, err)

		name, err := filepath.Rel(top, path)
		require.NoError(t, err)

		found[name] = info.Mode().String()

		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			require.NoError(t, err)

			found[name] += " " + string(content)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			require.NoError(t, err)

			found[name] += " " + to
		}

		return nil
	}))

	return found
}

func put(t *testing.T, path, content string) {
	t.Helper()

	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func entryOf(t *testing.T, targetPath string) string {
	t.Helper()

	name, err := kata.EntryName(targetPath)
	require.NoError(t, err)

	return name
}

func TestAnAssignmentIsWhereKataLooksForIt(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(full()))
	require.Equal(t, map[string]string{
		".":                               "drwx------",
		entryOfTarget:                     "drwx------",
		entryOfTarget + "/mountInfo.json": "-rw------- " + golden(t, "full.mountInfo.json"),
	}, tree(t, path))

	want := full()
	want.TargetPath = target
	want.Options = []string{"noatime", "logbsize=256k", "nosuid", "ro"}

	entry, found, err := root.Get(target + "/")
	require.NoError(t, err)
	require.True(t, found, "want: the assignment is found")
	require.Equal(t, kata.Entry{Assignment: want}, entry)

	entries, err := root.List()
	require.NoError(t, err)
	require.Equal(t, []kata.Entry{{Assignment: want}}, entries)
}

func TestTheSameAssignmentAgainTouchesNothing(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")

	watched := watch(t, path, filepath.Join(path, entryOfTarget))

	require.NoError(t, root.Put(plain()))
	require.Empty(t, watched())

	entry, found, err := root.Get(target)
	require.NoError(t, err)
	require.True(t, found, "want: the assignment is found")
	require.Equal(t, "sandbox", entry.Sandbox)
}

func TestAnotherAssignmentLeavesNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")
	put(t, filepath.Join(path, entryOfTarget, "mountInfo.json.1234"), "")
	require.NoError(t, os.Symlink("/etc", filepath.Join(path, entryOfTarget, "link")))

	require.NoError(t, root.Put(full()))
	require.Equal(t, map[string]string{
		".":                               "drwx------",
		entryOfTarget:                     "drwx------",
		entryOfTarget + "/mountInfo.json": "-rw------- " + golden(t, "full.mountInfo.json"),
	}, tree(t, path))
}

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

// A sandbox's id is looked for at any time, and Kata takes the first file there.
func TestNoTemporaryFileEverLiesBesideAnAssignment(t *testing.T) {
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

func TestRemoveLeavesNothingOfOneAndAllOfOthers(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Remove(target), "before there is a root")

	_, err := os.Stat(path)
	require.ErrorIs(t, err, fs.ErrNotExist)

	other := plain()
	other.TargetPath = target + "2"
	require.NoError(t, root.Put(other))

	before := tree(t, path)

	require.NoError(t, root.Remove(target), "before there is an entry")
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")
	put(t, filepath.Join(path, entryOfTarget, "more"), "content")
	require.NoError(t, root.Remove(target))
	require.Equal(t, before, tree(t, path))
	require.NoError(t, root.Remove(target), "twice")

	_, found, err := root.Get(target)
	require.NoError(t, err)
	require.False(t, found, "want: no assignment is found")
}

// What a crash leaves half-removed must be found again.
func TestTheAssignmentItselfGoesLast(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")

	watched := watch(t, path, filepath.Join(path, entryOfTarget))

	require.NoError(t, root.Remove(target))

	events := watched()
	require.Len(t, events, 4)
	require.Equal(t, fmt.Sprintf("%#x %s/sandbox", unix.IN_DELETE, entryOfTarget), events[0])
	require.Equal(t, fmt.Sprintf("%#x %s/mountInfo.json", unix.IN_DELETE, entryOfTarget), events[1])
}

func TestNoSymlinkIsFollowed(t *testing.T) {
	t.Parallel()

	for name, plant := range map[string]func(entry, victim string) error{
		"in place of the entry": func(entry, victim string) error { return os.Symlink(victim, entry) },
		"in place of the assignment": func(entry, victim string) error {
			return errors.Join(os.Mkdir(entry, 0o700),
				os.Symlink(filepath.Join(victim, "mountInfo.json"), filepath.Join(entry, "mountInfo.json")))
		},
		"in place of the assignment, to nothing": func(entry, victim string) error {
			return errors.Join(os.Mkdir(entry, 0o700),
				os.Symlink(filepath.Join(victim, "nothing"), filepath.Join(entry, "mountInfo.json")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root, path := madeRoot(t)
			victim := t.TempDir()
			put(t, filepath.Join(victim, "mountInfo.json"), golden(t, "full.mountInfo.json"))
			put(t, filepath.Join(victim, "sandbox"), "")

			before := tree(t, victim)
			entry := filepath.Join(path, entryOfTarget)
			require.NoError(t, plant(entry, victim))

			_, found, err := root.Get(target)
			require.NoError(t, err)
			require.False(t, found, "Get follows a symlink")

			entries, err := root.List()
			require.NoError(t, err)
			require.Empty(t, entries, "List follows a symlink")

			require.NoError(t, root.Put(full()))
			require.Equal(t, before, tree(t, victim), "Put follows a symlink")
			require.Equal(t, map[string]string{
				".":              "drwx------",
				"mountInfo.json": "-rw------- " + golden(t, "full.mountInfo.json"),
			}, tree(t, entry))

			require.NoError(t, os.RemoveAll(entry))
			require.NoError(t, plant(entry, victim))
			require.NoError(t, root.Remove(target))
			require.Equal(t, before, tree(t, victim))
			require.Equal(t, map[string]string{".": "drwx------"}, tree(t, path))
		})
	}
}

func TestASymlinkIsNoSandbox(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))

	victim := filepath.Join(t.TempDir(), "victim")
	put(t, victim, "untouched")

	entry := filepath.Join(path, entryOfTarget)
	require.NoError(t, os.Symlink(victim, filepath.Join(entry, "link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(entry, "fifo"), 0o600))

	found, _, err := root.Get(target)
	require.NoError(t, err)
	require.Empty(t, found.Sandbox)

	put(t, filepath.Join(entry, "sandbox"), "")

	found, _, err = root.Get(target)
	require.NoError(t, err)
	require.Equal(t, "sandbox", found.Sandbox)

	require.NoError(t, root.Remove(target))
	require.Equal(t, map[string]string{".": "drwx------"}, tree(t, path))

	content, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "untouched", string(content))
}

func TestWhatIsNoDirectoryIsReplaced(t *testing.T) {
	t.Parallel()

	for name, plant := range map[string]func(path string) error{
		"a file":   func(path string) error { return os.WriteFile(path, []byte("content"), 0o600) },
		"a fifo":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a socket": func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root, path := madeRoot(t)
			require.NoError(t, plant(filepath.Join(path, entryOfTarget)))

			_, found, err := root.Get(target)
			require.NoError(t, err)
			require.False(t, found, "want: no assignment is found")

			require.NoError(t, root.Put(plain()))

			_, found, err = root.Get(target)
			require.NoError(t, err)
			require.True(t, found, "want: the assignment is found")

			require.NoError(t, root.Remove(target))
			require.NoError(t, plant(filepath.Join(path, entryOfTarget)))
			require.NoError(t, root.Remove(target))
			require.Equal(t, map[string]string{".": "drwx------"}, tree(t, path))

			// And in place of the assignment.
			require.NoError(t, os.Mkdir(filepath.Join(path, entryOfTarget), 0o700))
			require.NoError(t, plant(filepath.Join(path, entryOfTarget, "mountInfo.json")))

			_, found, err = root.Get(target)
			require.NoError(t, err)
			require.False(t, found, "want: no assignment is found")

			require.NoError(t, root.Put(plain()))
			require.Equal(t, map[string]string{
				".":              "drwx------",
				"mountInfo.json": "-rw------- " + golden(t, "plain.mountInfo.json"),
			}, tree(t, filepath.Join(path, entryOfTarget)))
		})
	}
}

// refused has every call refuse the root.
func refused(t *testing.T, root *kata.Root, what string) {
	t.Helper()

	_, _, getting := root.Get(target)
	_, listing := root.List()

	for _, err := range []error{root.Put(plain()), root.Remove(target), getting, listing, root.ClearTemporary()} {
		require.ErrorIs(t, err, kata.ErrUnsafeRoot)
		require.ErrorContains(t, err, what)
	}
}

func TestARootThatOthersCouldChangeIsRefused(t *testing.T) {
	t.Parallel()

	for _, mode := range []fs.FileMode{0o720, 0o702, 0o777, 0o777 | fs.ModeSticky} {
		root, path := madeRoot(t)
		put(t, filepath.Join(path, entryOfTarget, "mountInfo.json"), golden(t, "full.mountInfo.json"))
		require.NoError(t, os.Chmod(path, mode))

		before := tree(t, path)

		refused(t, root, "chmod go-w")
		require.Equal(t, before, tree(t, path))

		require.NoError(t, os.Chmod(path, 0o755))
		require.NoError(t, root.Put(plain()))
	}
}

func TestARootOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	namespace.NeedRoot(t)

	root, path := madeRoot(t)
	require.NoError(t, os.Chown(path, 65534, -1))
	refused(t, root, "it belongs to uid 65534; give it to uid 0 (chown)")
	require.Equal(t, map[string]string{".": "drwx------"}, tree(t, path))
}

func TestARootThatIsNoDirectoryIsRefused(t *testing.T) {
	t.Parallel()

	victim := t.TempDir()
	path := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Symlink(victim, path))
	refused(t, kata.NewRoot(path), "symlink")
	refused(t, kata.NewRoot(path+"/"), "symlink")
	require.Len(t, tree(t, victim), 1)

	dangling := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Symlink(filepath.Join(victim, "nothing"), dangling))
	refused(t, kata.NewRoot(dangling), "symlink")
	require.Len(t, tree(t, victim), 1)

	file := filepath.Join(t.TempDir(), "root")
	put(t, file, "content")
	refused(t, kata.NewRoot(file), "file in its place")
}

func TestADirectoryInAnEntryIsLeftAloneAndNamed(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "nested", "file"), "content")
	put(t, filepath.Join(path, entryOfTarget, "zandbox"), "")

	for _, err := range []error{root.Put(full()), root.Remove(target)} {
		require.ErrorIs(t, err, kata.ErrNestedDirectory)
		require.ErrorContains(t, err, `"nested"`)
		require.ErrorContains(t, err, target)
		require.Equal(t, "-rw------- content", tree(t, path)[entryOfTarget+"/nested/file"])
		require.NotContains(t, tree(t, path), entryOfTarget+"/zandbox", "what is flat goes")
	}

	require.NoError(t, os.RemoveAll(filepath.Join(path, entryOfTarget)))
	put(t, filepath.Join(path, entryOfTarget, "mountInfo.json", "file"), "content")

	for _, err := range []error{root.Put(full()), root.Remove(target)} {
		require.ErrorIs(t, err, kata.ErrNestedDirectory)
		require.ErrorContains(t, err, `"mountInfo.json"`)
	}

	require.Len(t, tree(t, path), 4, "the root, the entry, the directory, its file: no temporary")
}

func TestAnEntryIsClosedToOthers(t *testing.T) {
	t.Parallel()

	root, path := madeRoot(t)
	put(t, filepath.Join(path, entryOfTarget, "mountInfo.json"), golden(t, "plain.mountInfo.json"))
	require.NoError(t, os.Chmod(filepath.Join(path, entryOfTarget), 0o777))
	require.NoError(t, root.Put(plain()))
	require.Equal(t, "drwx------", tree(t, path)[entryOfTarget])
}

func TestOtherDriversEntriesAreListedAsFarAsTheyCanBeRead(t *testing.T) {
	t.Parallel()

	root, path := madeRoot(t)

	for name, content := range map[string]string{
		entryOf(t, "/b/spdk"):    `{"volume-type":"spdkvol","device":"/run/vhost/7","fstype":"xfs","metadata":{"fsGroup":"7","x":"y"},"options":["ro"]}`,
		entryOf(t, "/a/kata"):    " {\"Device\":\"/dev/sdf\",\"fstype\":\"ext4\",\"metadata\":null}\n",
		entryOf(t, "/c/odd"):     `{"device":"/dev/sdg","fstype":7,"options":"ro,noatime","metadata":{"fsGroup":7},"more":[1]}`,
		"cmVsYXRpdmUvcGF0aA==":   `{"device":"/dev/sdh"}`,
		entryOf(t, "/x/garbage"): `not JSON`,
		entryOf(t, "/x/array"):   `[{"device":"/dev/sda"}]`,
		entryOf(t, "/x/null"):    `null`,
		entryOf(t, "/x/empty"):   ``,
		entryOf(t, "/x/cut"):     `{"device":"/dev/sda`,
		entryOf(t, "/x/large"):   `{"device":"/dev/sda","x":"` + strings.Repeat("x", 64<<10) + `"}`,
		entryOf(t, "/x/padded"):  `{"device":"/dev/sda"}` + strings.Repeat(" ", 64<<10),
		"L3gvdW5wYWRkZWQ":        `{"device":"/dev/sda"}`,
		"not base64":             `{"device":"/dev/sda"}`,
		"L3gv\nYWFh":             `{"device":"/dev/sda"}`,
		".touchstone-x":          `{"device":"/dev/sda"}`,
	} {
		put(t, filepath.Join(path, name, "mountInfo.json"), content)
	}

	require.NoError(t, os.Mkdir(filepath.Join(path, entryOf(t, "/x/nothing")), 0o700))
	put(t, filepath.Join(path, entryOf(t, "/b/spdk"), "sandbox"), "")

	entries, err := root.List()
	require.NoError(t, err)
	require.Equal(t, []kata.Entry{
		{Assignment: kata.Assignment{TargetPath: "/a/kata", Device: "/dev/sdf", FSType: "ext4"}},
		{
			Assignment: kata.Assignment{
				TargetPath: "/b/spdk", Device: "/run/vhost/7", FSType: "xfs", Options: []string{"ro"}, Group: "7",
			},
			Sandbox: "sandbox",
		},
		{Assignment: kata.Assignment{TargetPath: "/c/odd", Device: "/dev/sdg"}},
		{Assignment: kata.Assignment{TargetPath: "relative/path", Device: "/dev/sdh"}},
	}, entries)

	for _, path := range []string{"/x/garbage", "/x/large", "/x/nothing"} {
		_, found, err := root.Get(path)
		require.NoError(t, err)
		require.False(t, found, path)
	}
}

func TestNothingIsListedBeforeThereIsARoot(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)

	entries, err := root.List()
	require.NoError(t, err)
	require.Empty(t, entries)
	require.NoError(t, root.ClearTemporary())

	_, found, err := root.Get(target)
	require.NoError(t, err)
	require.False(t, found, "want: no assignment is found")

	_, err = os.Stat(path)
	require.ErrorIs(t, err, fs.ErrNotExist, "reading makes nothing")
}

// Kata never removes an id: the pod of a guest that died gets another guest.
func TestTheNewestSandboxHasTheVolume(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))

	for i, name := range []string{"b", "c", "a"} {
		file := filepath.Join(path, entryOfTarget, name)
		put(t, file, "")

		at := time.Unix(1e9, int64(i))
		require.NoError(t, os.Chtimes(file, at, at))

		entry, _, err := root.Get(target)
		require.NoError(t, err)
		require.Equal(t, name, entry.Sandbox)
	}
}

func TestWhatAKilledWriterLeftIsCleared(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))

	before := tree(t, path)

	put(t, filepath.Join(path, kata.TemporaryPrefix+"KILLED"), `{"volume-ty`)
	put(t, filepath.Join(path, kata.TemporaryPrefix+"EMPTY"), "")
	require.NoError(t, root.ClearTemporary())
	require.Equal(t, before, tree(t, path))
}

func TestWhatIsBeingWrittenIsNotCleared(t *testing.T) {
	t.Parallel()

	root, path := madeRoot(t)
	name := filepath.Join(path, kata.TemporaryPrefix+"LIVING")
	victim := filepath.Join(t.TempDir(), "victim")
	put(t, name, "")
	put(t, victim, "untouched")
	require.NoError(t, os.Symlink(victim, filepath.Join(path, kata.TemporaryPrefix+"LINK")))
	require.NoError(t, os.Mkdir(filepath.Join(path, kata.TemporaryPrefix+"DIRECTORY"), 0o700))

	before := tree(t, path)

	writer, err := os.Open(name)
	require.NoError(t, err)
	await.Flock(t, writer, unix.LOCK_EX)
	require.NoError(t, root.ClearTemporary())
	require.Equal(t, before, tree(t, path), "and what no writer makes is left alone")

	require.NoError(t, writer.Close())
	require.NoError(t, root.ClearTemporary())
	require.NotContains(t, tree(t, path), filepath.Base(name))
}

func TestDifferentTargetsDoNotDisturbEachOther(t *testing.T) {
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

			if err == nil {
				err = root.ClearTemporary()
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

	// The last round is odd: whoever is odd has removed its entry.
	entries, err := kata.NewRoot(path).List()
	require.NoError(t, err)
	require.Len(t, entries, writers/2)
	require.Len(t, tree(t, path), 1+2*writers/2)
}

func TestAFullFilesystemLeavesNoHalfAssignment(t *testing.T) {
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

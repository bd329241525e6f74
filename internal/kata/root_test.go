package kata_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/errtext"
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

func TestAssignmentHasKatasPath(t *testing.T) {
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

func TestRepeatedAssignmentChangesNothing(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")

	watched := watch(t, path, filepath.Join(path, entryOfTarget))

	require.NoError(t, root.Put(plain()))
	require.Empty(t, watched(), "want: the same assignment again writes nothing")

	entry, found, err := root.Get(target)
	require.NoError(t, err)
	require.True(t, found, "want: the assignment is found")
	require.Equal(t, "sandbox", entry.Sandbox)
}

func TestPutReplacesTheAssignment(t *testing.T) {
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

func TestRemoveKeepsOtherEntries(t *testing.T) {
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

// A removal that a crash interrupted must be found again.
func TestAssignmentIsRemovedLast(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "sandbox"), "")

	watched := watch(t, path, filepath.Join(path, entryOfTarget))

	require.NoError(t, root.Remove(target))

	events := watched()
	require.Len(t, events, 4, "want: the removal has four events")
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
	require.Empty(t, found.Sandbox, "want: a symlink is no sandbox")

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

func TestFilesInPlaceOfADirectoryAreReplaced(t *testing.T) {
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

func TestDirectoryInAnEntryIsKeptAndNamed(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)
	require.NoError(t, root.Put(plain()))
	put(t, filepath.Join(path, entryOfTarget, "nested", "file"), "content")
	put(t, filepath.Join(path, entryOfTarget, "zandbox"), "")

	for _, err := range []error{root.Put(full()), root.Remove(target)} {
		require.ErrorIs(t, err, kata.ErrNestedDirectory)
		errtext.Require(t, err, `"nested"`)
		errtext.Require(t, err, target)
		require.Equal(t, "-rw------- content", tree(t, path)[entryOfTarget+"/nested/file"])
		require.NotContains(t, tree(t, path), entryOfTarget+"/zandbox", "what is flat goes")
	}

	require.NoError(t, os.RemoveAll(filepath.Join(path, entryOfTarget)))
	put(t, filepath.Join(path, entryOfTarget, "mountInfo.json", "file"), "content")

	for _, err := range []error{root.Put(full()), root.Remove(target)} {
		require.ErrorIs(t, err, kata.ErrNestedDirectory)
		errtext.Require(t, err, `"mountInfo.json"`)
	}

	require.Len(t, tree(t, path), 4, "the root, the entry, the directory, its file: no temporary")
}

func TestEntryIsPrivate(t *testing.T) {
	t.Parallel()

	root, path := madeRoot(t)
	put(t, filepath.Join(path, entryOfTarget, "mountInfo.json"), golden(t, "plain.mountInfo.json"))
	require.NoError(t, os.Chmod(filepath.Join(path, entryOfTarget), 0o777))
	require.NoError(t, root.Put(plain()))
	require.Equal(t, "drwx------", tree(t, path)[entryOfTarget])
}

func TestOtherDriversReadableEntriesAreListed(t *testing.T) {
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

// Another program's assignment is read up to 64 KiB.
func TestAnAssignmentIsReadUpToItsLimit(t *testing.T) {
	t.Parallel()

	const most = 64 << 10

	root, path := madeRoot(t)

	for excess, want := range map[int]bool{-1: true, 0: true, 1: false} {
		content := `{"device":"/dev/sda"}`
		put(t, filepath.Join(path, entryOfTarget, "mountInfo.json"), content+strings.Repeat(" ", most+excess-len(content)))

		var assigned kata.Entry
		if want {
			assigned = kata.Entry{Assignment: kata.Assignment{TargetPath: target, Device: "/dev/sda"}}
		}

		entry, found, err := root.Get(target)
		require.NoError(t, err)
		require.Equal(t, want, found, "want: an assignment of %d bytes is found", most+excess)
		require.Equal(t, assigned, entry)
	}
}

func TestMissingRootListsNothing(t *testing.T) {
	t.Parallel()

	root, path := newRoot(t)

	entries, err := root.List()
	require.NoError(t, err)
	require.Empty(t, entries, "want: a missing root has no entries")

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

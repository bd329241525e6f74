package ownership_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/node/ownership"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const group = 4711

// seen is what a test compares of a file.
type seen struct {
	gid  uint32
	mode uint32
}

func look(t *testing.T, path string) seen {
	t.Helper()

	var stat unix.Stat_t

	require.NoError(t, unix.Lstat(path, &stat))

	return seen{stat.Gid, stat.Mode & 0o7777}
}

func give(t *testing.T, path string) error {
	t.Helper()

	root, err := os.Open(path)
	require.NoError(t, err)

	defer root.Close()

	return ownership.ChangeGroup(t.Context(), root, group, func() error { return nil })
}

// made makes entries with a mode, whatever the umask.
func made(t *testing.T, path string, mode uint32, dir bool) string {
	t.Helper()

	if dir {
		require.NoError(t, os.Mkdir(path, 0o700))
	} else {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	}

	require.NoError(t, unix.Chmod(path, mode))

	return path
}

func TestFilesGetTheGroupAndItsPermissions(t *testing.T) {
	namespace.NeedRoot(t)

	outside := made(t, filepath.Join(t.TempDir(), "outside"), 0o600, false)
	root := made(t, filepath.Join(t.TempDir(), "root"), 0o755, true)
	deep := made(t, filepath.Join(root, "deep"), 0o700, true)
	want := map[string]seen{root: {group, 0o2775}, deep: {group, 0o2770}, outside: {0, 0o600}}

	for name, modes := range map[string][2]uint32{
		"plain": {0o600, 0o660}, "program": {0o700, 0o770}, "readable": {0o644, 0o664}, "no permissions": {0, 0o060},
		"setuid": {0o4755, 0o4775}, "setuid for all": {0o4775, 0o4775}, "setgid": {0o2755, 0o775},
	} {
		path := made(t, filepath.Join(deep, name), modes[0], false)
		want[path] = seen{group, modes[1]}
	}

	for name, to := range map[string]string{"absolute": outside, "up": "../../..", "loop": "loop", "dangling": "nowhere"} {
		path := filepath.Join(deep, name)
		require.NoError(t, os.Symlink(to, path))
		want[path] = seen{group, 0o777}
	}

	pipe := filepath.Join(deep, "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0))
	want[pipe] = seen{group, 0o060}

	device := filepath.Join(deep, "device")
	require.NoError(t, unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	want[device] = seen{0, look(t, device).mode}

	// A file that is already as it has to be: a backup would copy it again.
	done := made(t, filepath.Join(deep, "done"), 0o660, false)
	require.NoError(t, os.Chown(done, -1, group))
	require.NoError(t, unix.Chmod(done, 0o4660))
	want[done] = seen{group, 0o4660}

	var before, after unix.Stat_t

	require.NoError(t, unix.Lstat(done, &before))
	require.NoError(t, give(t, root))
	require.NoError(t, unix.Lstat(done, &after))
	require.Equal(t, before.Ctim, after.Ctim, "want: it is not changed")

	for path, expected := range want {
		require.Equal(t, expected, look(t, path), path)
	}
}

// TestChangeGroupOnlyOnRootMismatch changes no file when the root has the group.
func TestChangeGroupOnlyOnRootMismatch(t *testing.T) {
	namespace.NeedRoot(t)

	root := made(t, filepath.Join(t.TempDir(), "root"), 0o755, true)
	require.NoError(t, give(t, root))

	later := made(t, filepath.Join(root, "later"), 0o600, false)
	require.NoError(t, os.Chown(later, 0, 0))

	opened, err := os.Open(root)
	require.NoError(t, err)

	defer opened.Close()

	frozen := errors.New("it is frozen")
	refuse := func() error { return frozen }
	require.NoError(t, ownership.ChangeGroup(t.Context(), opened, group, refuse), "want: nothing is asked about what is not changed")
	require.Equal(t, seen{0, 0o600}, look(t, later))

	for name, differ := range map[string]func() error{
		"group":     func() error { return os.Chown(root, -1, 0) },
		"mode":      func() error { return os.Chmod(root, fs.ModeSetgid|0o755) },
		"no setgid": func() error { return os.Chmod(root, 0o775) },
	} {
		require.NoError(t, os.Chown(later, 0, 0))
		require.NoError(t, differ())
		require.ErrorIs(t, ownership.ChangeGroup(t.Context(), opened, group, refuse), frozen, name)
		require.Zero(t, look(t, later).gid, "want: nothing is changed before it may be: %s", name)
		require.NoError(t, give(t, root))
		require.Equal(t, uint32(group), look(t, later).gid, name)
		require.Equal(t, seen{group, 0o2775}, look(t, root), name)
	}
}

// TestGiveGroupStaysInItsMount leaves alone what is mounted inside.
func TestGiveGroupStaysInItsMount(t *testing.T) {
	namespace.NeedRoot(t)

	root := made(t, filepath.Join(t.TempDir(), "root"), 0o755, true)
	inside := made(t, filepath.Join(root, "inside"), 0o755, true)
	bound := made(t, filepath.Join(root, "bound"), 0o755, true)
	elsewhere := made(t, filepath.Join(t.TempDir(), "elsewhere"), 0o755, true)

	require.NoError(t, unix.Mount("none", inside, "tmpfs", 0, "mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(inside, 0)) })
	// Of the same filesystem: st_dev would not differ.
	require.NoError(t, unix.Mount(elsewhere, bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bound, 0)) })

	file := made(t, filepath.Join(inside, "file"), 0o600, false)
	other := made(t, filepath.Join(elsewhere, "file"), 0o600, false)

	require.NoError(t, give(t, root))
	require.Equal(t, seen{0, 0o700}, look(t, inside))
	require.Equal(t, seen{0, 0o600}, look(t, file))
	require.Equal(t, seen{0, 0o755}, look(t, elsewhere))
	require.Equal(t, seen{0, 0o600}, look(t, other))
	require.Equal(t, seen{group, 0o2775}, look(t, root))
}

func TestCancelledGiveGroupLeavesTheRoot(t *testing.T) {
	namespace.NeedRoot(t)

	root := made(t, filepath.Join(t.TempDir(), "root"), 0o755, true)
	file := made(t, filepath.Join(root, "file"), 0o600, false)

	opened, err := os.Open(root)
	require.NoError(t, err)

	defer opened.Close()

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	require.ErrorIs(t, ownership.ChangeGroup(cancelled, opened, group, func() error { return nil }), context.Canceled)
	require.Equal(t, seen{0, 0o755}, look(t, root), "the root is last, so that the next walk is not saved")

	require.NoError(t, give(t, root))
	require.Equal(t, seen{group, 0o660}, look(t, file))
}

func TestGiveGroupOfManyFilesAndDeepTrees(t *testing.T) {
	namespace.NeedRoot(t)

	root := made(t, filepath.Join(t.TempDir(), "root"), 0o755, true)

	for i := range 3000 {
		require.NoError(t, os.WriteFile(filepath.Join(root, strconv.Itoa(i)), nil, 0o600))
	}

	level, err := os.OpenRoot(root)
	require.NoError(t, err)

	// Deeper than a path can be, as a hostile workload would.
	for range 300 {
		require.NoError(t, level.Mkdir("d", 0o700))
		next, err := level.OpenRoot("d")
		require.NoError(t, err)
		require.NoError(t, level.Close())
		level = next
	}

	require.NoError(t, give(t, root))
	require.Equal(t, seen{group, 0o660}, look(t, filepath.Join(root, "2999")))
	require.Equal(t, seen{group, 0o2770}, look(t, filepath.Join(root, strings.Repeat("d/", 300))))

	require.NoError(t, os.Chown(root, -1, 0))

	for range 699 {
		require.NoError(t, level.Mkdir("d", 0o700))
		next, err := level.OpenRoot("d")
		require.NoError(t, err)
		require.NoError(t, level.Close())
		level = next
	}

	require.NoError(t, give(t, root), "want: as many levels as may be walked")

	require.NoError(t, level.Mkdir("d", 0o700))
	require.NoError(t, level.Close())
	require.NoError(t, os.Chown(root, -1, 0))
	require.ErrorIs(t, give(t, root), ownership.ErrTooDeep)
}

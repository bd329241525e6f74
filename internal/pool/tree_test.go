package pool_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const otherUser = 65534

func TestACopyOfADirectoryHasItsContent(t *testing.T) {
	tests := map[string]struct {
		from, to string // to is another pool, unless empty
		shares   bool
		old      bool // the source is a plain directory of an earlier release
	}{
		"pool that shares blocks":            {from: reflink, shares: true},
		"pool that shares blocks and hashes": {from: cow, shares: true},
		"plain directory beside subvolumes":  {from: cow, shares: true, old: true},
		"pool that does not share":           {from: plain},
		"into another pool":                  {from: reflink, to: plain},
		"from another pool":                  {from: plain, to: reflink},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			from := newPool(t, test.from, roomy)
			to := from

			if test.to != "" {
				to = newPool(t, test.to, roomy)
			}

			source := directoryOf(newID(t))
			if test.old {
				require.NoError(t, os.Mkdir(placeOf(from, source), 0o755))
			}

			require.NoError(t, from.Directories.Create(source.ID, 1<<30, false))
			furnish(t, placeOf(from, source))

			// An ACL that the pool's owner has set on its directories is not the volume's.
			setXattr(t, filepath.Join(to.Path(), "scratch"), "system.posix_acl_default", acl(otherUser))

			before := describe(t, placeOf(from, source))
			snapshot := snapshotOf(t, source)

			var done, total int64

			allocated := copied(t, to, from, source, snapshot, pool.CopyOptions{Progress: func(nowDone, nowTotal int64) {
				require.GreaterOrEqual(t, nowDone, done, "want: the progress does not decrease")

				done, total = nowDone, nowTotal
			}})

			require.Equal(t, before, describe(t, placeOf(to, snapshot)))
			require.Equal(t, before, describe(t, placeOf(from, source)), "a copy leaves its source as it is, times too")
			require.Empty(t, scratchOf(t, to), "want: no scratch file is left")
			require.Equal(t, total, done, "want: the progress ends at the total")
			require.Positive(t, allocated, "want: the copy has allocated bytes")
			require.Less(t, allocated, int64(8*mebi), "holes stay holes")
			require.Equal(t, test.shares, sharesBlocks(t, filepath.Join(placeOf(to, snapshot), "data")), "want: the copy shares blocks where the filesystem reflinks")

			var sparse unix.Stat_t

			require.NoError(t, unix.Stat(filepath.Join(placeOf(to, snapshot), "sparse"), &sparse))
			require.EqualValues(t, 256*mebi, sparse.Size, "want: the sparse file keeps its size")
			require.Less(t, sparse.Blocks*512, int64(2*mebi), "want: the sparse file keeps its holes")

			// And back again.
			restored := directoryOf(newID(t))
			copied(t, to, to, snapshot, restored, pool.CopyOptions{})
			require.Equal(t, before, describe(t, placeOf(to, restored)))
		})
	}
}

// furnish puts one of everything into a directory.
func furnish(t *testing.T, root string) {
	t.Helper()

	in := func(name string) string { return filepath.Join(root, name) }

	// Content.
	require.NoError(t, os.WriteFile(in("empty"), nil, 0o600))
	require.NoError(t, os.WriteFile(in("data"), randomBytes(mebi+123), 0o640))
	require.NoError(t, os.WriteFile(in("name with \n newline"), []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(in("sparse"), []byte("begin"), 0o600))
	sparse, err := os.OpenFile(in("sparse"), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = sparse.WriteAt(randomBytes(100*kibi), 100*mebi+777)
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(256*mebi))
	require.NoError(t, sparse.Close())

	// A deep path, and hard links.
	deep := in(strings.Repeat("deep/", 40))
	require.NoError(t, os.MkdirAll(deep, 0o755))
	require.NoError(t, os.Link(in("data"), filepath.Join(deep, "data too")))
	require.NoError(t, os.Link(in("data"), in("data once more")))

	// Kinds.
	require.NoError(t, os.Symlink("/etc/shadow", in("symlink out")))
	require.NoError(t, os.Symlink("data", in("symlink in")))
	require.NoError(t, os.Symlink("nothing", in("symlink nowhere")))
	require.NoError(t, os.Link(in("symlink in"), in("symlink twice")))
	require.NoError(t, unix.Mknod(in("fifo"), unix.S_IFIFO|0o620, 0))
	require.NoError(t, unix.Mknod(in("socket"), unix.S_IFSOCK|0o777, 0))
	require.NoError(t, unix.Mknod(in("character"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	require.NoError(t, unix.Mknod(in("block"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 200000))))
	require.NoError(t, os.Link(in("fifo"), in("fifo too")))

	// Owners before modes: a new owner takes setuid away.
	for _, name := range []string{"data", "symlink in", "fifo", "character", "deep/deep"} {
		require.NoError(t, os.Lchown(in(name), otherUser, otherUser-1))
	}

	for name, mode := range map[string]uint32{
		"data": 0o6755, "empty": 0, "fifo": 0o610, "deep": 0o3777, "deep/deep": 0o2070, "deep/deep/deep": 0,
	} {
		require.NoError(t, unix.Chmod(in(name), mode))
	}

	// Attributes.
	for _, name := range []string{"data", "deep", "symlink out", "character"} {
		setXattr(t, in(name), "trusted.note", []byte("of "+name))
	}

	setXattr(t, in("data"), "user.empty", nil)
	setXattr(t, in("data"), "user.large", randomBytes(2*kibi))
	setXattr(t, in("deep"), "user.directory", []byte("its own"))
	setXattr(t, in("data"), "system.posix_acl_access", acl(1234))
	setXattr(t, in("deep"), "system.posix_acl_access", acl(1234))
	setXattr(t, in("deep"), "system.posix_acl_default", acl(4321))
	// cap_net_bind_service, effective and permitted.
	setXattr(t, in("empty"), "security.capability", []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	setXattr(t, root, "user.root", []byte("of the volume itself"))
	require.NoError(t, os.Chown(root, otherUser, otherUser))
	require.NoError(t, unix.Chmod(root, 0o1777))

	// Times, from the leaves up.
	for i, name := range []string{
		"symlink in", "symlink out", "symlink nowhere", "fifo", "block", "data", strings.Repeat("deep/", 40), "deep", ".",
	} {
		access, change := time.Unix(1e9+int64(i), 123456789), time.Unix(-1e6+int64(i), 987654321)
		if strings.HasPrefix(name, "symlink") {
			// Nothing reads a symlink without a trace, but if it was read later.
			access = time.Now().Add(time.Hour)
		}

		times := []unix.Timespec{unix.NsecToTimespec(access.UnixNano()), unix.NsecToTimespec(change.UnixNano())}
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(name), times, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func setXattr(t *testing.T, path, name string, value []byte) {
	t.Helper()
	require.NoError(t, unix.Lsetxattr(path, name, value, 0), "%s of %s", name, path)
}

// acl is what gives a user, by number, the right to read, as the kernel keeps it.
func acl(user uint32) []byte {
	const (
		version, none                            = 2, 0xffffffff
		owner, aUser, group, mask, other, r, rwx = 0x01, 0x02, 0x04, 0x10, 0x20, 4, 7
	)

	var text bytes.Buffer

	for _, each := range []any{
		uint32(version),
		[]uint16{owner, rwx},
		uint32(none),
		[]uint16{aUser, r},
		user,
		[]uint16{group, r},
		uint32(none),
		[]uint16{mask, r},
		uint32(none),
		[]uint16{other, 0},
		uint32(none),
	} {
		_ = binary.Write(&text, binary.LittleEndian, each)
	}

	return text.Bytes()
}

// TestCopyOfAChangingTree: names come, go and turn into symlinks that lead out, faster than the
// copy reads.
func TestCopyOfAChangingTree(t *testing.T) {
	namespace.NeedRoot(t)

	secret := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(secret, "secret"), []byte("secret"), 0o600))

	place := newPool(t, plain, roomy)
	source := newDirectory(t, place, 100, kibi)
	root := placeOf(place, source)

	stop, running := make(chan struct{}), sync.WaitGroup{}

	for i := range 4 {
		running.Go(func() {
			for at := i; ; at++ {
				select {
				case <-stop:
					return
				default:
				}

				directory := filepath.Join(root, fmt.Sprintf("%04d", at%10))
				file := filepath.Join(directory, fmt.Sprintf("file-%04d", at%100))
				_ = os.Remove(file)
				_ = os.Symlink(filepath.Join(secret, "secret"), file)
				_ = os.Rename(directory, directory+"-old")
				_ = os.Symlink(secret, directory)
				_ = os.Remove(directory)
				_ = os.Remove(file)
				_ = unix.Mkfifo(file, 0o600)
				_ = os.Rename(directory+"-old", directory)
				_ = os.Remove(file)

				// O_EXCL: opening an existing fifo would wait for its reader.
				if fresh, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
					_, _ = fresh.WriteString("fresh")
					_ = fresh.Close()
				}
			}
		})
	}

	for range 30 {
		snapshot := snapshotOf(t, source)
		copied(t, place, place, source, snapshot, pool.CopyOptions{})

		require.NoError(t, filepath.WalkDir(placeOf(place, snapshot), func(path string, entry fs.DirEntry, err error) error {
			require.NoError(t, err)
			require.NotEqual(t, "secret", entry.Name(), "a symlink was followed")

			if entry.Type().IsRegular() {
				content, err := os.ReadFile(path)
				require.NoError(t, err)
				require.NotContains(t, string(content), "secret", "a symlink was followed")
			}

			return nil
		}))
		require.NoError(t, place.Remove(t.Context(), snapshot))
	}

	close(stop)
	await.Return(t, running.Wait, "all writers to end")
}

func TestCopyStopsAtMounts(t *testing.T) {
	namespace.NeedRoot(t)

	place := openPool(t, t.TempDir())
	source := newDirectory(t, place, 1, kibi)
	foreign := filepath.Join(placeOf(place, source), "foreign")
	require.NoError(t, os.Mkdir(foreign, 0o755))
	require.NoError(t, unix.Mount("none", foreign, "tmpfs", 0, ""))

	defer func() { require.NoError(t, unix.Unmount(foreign, unix.MNT_DETACH)) }()

	require.NoError(t, os.WriteFile(filepath.Join(foreign, "file"), randomBytes(mebi), 0o600))

	usage, err := place.Directories.Usage(t.Context(), source.ID)
	require.NoError(t, err)
	require.Less(t, usage.Bytes, int64(mebi), "what is mounted there is not the volume's")

	target := snapshotOf(t, source)
	making, err := place.NewCopy(place, source, target, pool.CopyOptions{})
	require.NoError(t, err)

	err = making.CopyData(t.Context())
	errtext.Require(t, err, "foreign: something is mounted there")
	nothingHalfMade(t, place, target)
}

func TestTooDeepTreeIsRefused(t *testing.T) {
	t.Parallel()

	place := openPool(t, testpool.InMemory(t))
	source := newDirectory(t, place, 1, kibi)

	// Deeper than any path: step by step.
	at, err := os.OpenRoot(placeOf(place, source))
	require.NoError(t, err)

	for range 2100 {
		require.NoError(t, at.Mkdir("d", 0o755))
		next, err := at.OpenRoot("d")
		require.NoError(t, err)
		require.NoError(t, at.Close())

		at = next
	}

	require.NoError(t, at.Close())

	target := snapshotOf(t, source)
	making, err := place.NewCopy(place, source, target, pool.CopyOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, making.CopyData(t.Context()), errors.ErrUnsupported)
	nothingHalfMade(t, place, target)
}

// TestWithoutPrivilege has a controller that is not root: what it owns it
// copies, and what it can't make it names.
func TestWithoutPrivilege(t *testing.T) {
	namespace.NeedRoot(t)

	// Every directory above has to let the other user through.
	directory, err := os.MkdirTemp("/", "touchstone-pool-test-") //nolint:usetesting // t.TempDir is 0700
	require.NoError(t, err)

	defer func() { require.NoError(t, os.RemoveAll(directory)) }()

	place := openPool(t, directory)
	source := newDirectory(t, place, 3, kibi)
	own := func() {
		require.NoError(t, filepath.WalkDir(directory, func(path string, _ fs.DirEntry, err error) error {
			require.NoError(t, err)

			return os.Lchown(path, otherUser, otherUser)
		}))
	}

	own()

	target := snapshotOf(t, source)
	copier, output := startCopier(t, place, source, target, otherUser)
	line, err := output.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, cut+"\n", line)
	copier.proceed(t)
	require.NoError(t, copier.Wait())
	sameContent(t, place, source, place, target)

	for name, add := range map[string]func(path string) error{
		"device":  func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
		"foreign": func(path string) error { return os.WriteFile(path, []byte("root's"), 0o644) },
	} {
		path := filepath.Join(placeOf(place, source), "0002", name)
		require.NoError(t, add(path))

		target := snapshotOf(t, source)
		copier, output := startCopier(t, place, source, target, otherUser)
		line, err := output.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "0002/"+name)
		require.Contains(t, line, "operation not permitted")
		require.Error(t, copier.Wait(), "the exit of a copier that may not make a %s", name)
		nothingHalfMade(t, place, target)
		require.NoError(t, os.Remove(path))
	}
}

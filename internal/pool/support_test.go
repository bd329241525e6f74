package pool_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const (
	kibi = 1 << 10
	mebi = 1 << 20
)

// The filesystems below a pool: one that can't share blocks, one that can, and
// one that can but knows no call to end it.
const (
	plain   = "ext4"
	reflink = "xfs"
	cow     = "btrfs"
)

// newPool opens a pool on a filesystem of its own.
func newPool(tb testing.TB, kind string, size int64) *pool.Pool {
	tb.Helper()
	namespace.NeedRoot(tb)

	var directory string

	switch kind {
	case plain:
		directory = testpool.On(tb, size, kind, "-q", "-b", "4096", "-m", "0")
	case cow:
		directory = testpool.On(tb, size, kind, "-q")
	default:
		directory = testpool.Reflink(tb, size)
	}

	return openPool(tb, directory)
}

func openPool(tb testing.TB, directory string) *pool.Pool {
	tb.Helper()

	opened, err := pool.Open(filepath.Base(tb.Name()), directory, pool.Options{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, opened.Close()) })

	return opened
}

func newID(tb testing.TB) string {
	tb.Helper()

	id := volume.NewID()

	return id
}

func imageOf(id string) pool.Object {
	return pool.Object{ID: id, Backing: volume.BackingImage}
}

func directoryOf(id string) pool.Object {
	return pool.Object{ID: id, Backing: volume.BackingDirectory}
}

// snapshotOf returns the object to be a snapshot of one.
func snapshotOf(tb testing.TB, source pool.Object) pool.Object {
	tb.Helper()

	return pool.Object{ID: newID(tb), Backing: source.Backing, Snapshot: true}
}

func placeOf(p *pool.Pool, object pool.Object) string {
	return p.ObjectPath(object)
}

// newImage makes a volume of extents with random data, one with zeros, and holes
// between them and at the end.
func newImage(tb testing.TB, p *pool.Pool, size int64) pool.Object {
	tb.Helper()

	object := imageOf(newID(tb))
	require.NoError(tb, p.Images.Create(object.ID, size, false))

	image, err := p.Images.Open(object.ID, os.O_RDWR)
	require.NoError(tb, err)

	defer image.Close()

	for _, at := range []int64{0, size / 5, size/5 + 64*kibi, size / 3 * 2} {
		_, err = image.WriteAt(randomBytes(37*kibi+11), at)
		require.NoError(tb, err)
	}

	_, err = image.WriteAt(make([]byte, 512*kibi), size/2)
	require.NoError(tb, err)

	return object
}

// newDirectory makes a volume with that many files of random data.
func newDirectory(tb testing.TB, p *pool.Pool, files, length int) pool.Object {
	tb.Helper()

	object := directoryOf(newID(tb))
	require.NoError(tb, p.Directories.Create(object.ID, 1<<30, false))

	for i := range files {
		name := filepath.Join(placeOf(p, object), fmt.Sprintf("%04d", i%10), fmt.Sprintf("file-%04d", i))
		require.NoError(tb, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(tb, os.WriteFile(name, randomBytes(length), 0o644))
	}

	return object
}

func randomBytes(length int) []byte {
	content := make([]byte, length)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}

	return content
}

func checksum(tb testing.TB, path string) string {
	tb.Helper()

	file, err := os.Open(path)
	require.NoError(tb, err)

	defer file.Close()

	digest := sha256.New()
	_, err = io.Copy(digest, file)
	require.NoError(tb, err)

	return hex.EncodeToString(digest.Sum(nil))
}

// sameContent requires two objects to hold the same, in all that a workload can
// see.
func sameContent(tb testing.TB, from *pool.Pool, source pool.Object, to *pool.Pool, target pool.Object) {
	tb.Helper()

	if source.Backing == volume.BackingImage {
		require.Equal(tb, checksum(tb, placeOf(from, source)), checksum(tb, placeOf(to, target)))

		return
	}

	require.Equal(tb, describe(tb, placeOf(from, source)), describe(tb, placeOf(to, target)))
}

// describe returns everything of a tree that a copy must keep, a line for each name.
func describe(tb testing.TB, root string) []string {
	tb.Helper()

	var (
		lines []string
		paths []string
		all   []unix.Stat_t
	)

	// All times first: whatever is read changes them.
	require.NoError(tb, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(tb, err)

		var found unix.Stat_t

		require.NoError(tb, unix.Lstat(path, &found))

		paths, all = append(paths, path), append(all, found)

		return nil
	}))

	first := map[uint64]string{}

	for i, path := range paths {
		name, err := filepath.Rel(root, path)
		require.NoError(tb, err)

		found := all[i]
		line := fmt.Sprintf("%s mode=%o owner=%d:%d atime=%d.%09d mtime=%d.%09d", name, found.Mode, found.Uid, found.Gid,
			found.Atim.Sec, found.Atim.Nsec, found.Mtim.Sec, found.Mtim.Nsec)

		switch found.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFREG:
			line += fmt.Sprintf(" size=%d sha256=%s", found.Size, checksum(tb, path))
		case unix.S_IFLNK:
			text, err := os.Readlink(path)
			require.NoError(tb, err)

			line += " to=" + text
		default:
			line += fmt.Sprintf(" device=%d", found.Rdev)
		}

		if found.Mode&unix.S_IFMT != unix.S_IFDIR {
			if _, known := first[found.Ino]; !known {
				first[found.Ino] = name
			}

			line += fmt.Sprintf(" names=%d first=%s", found.Nlink, first[found.Ino])
		}

		lines = append(lines, line+xattrsOf(tb, path))
	}

	// To be described is no access. A read-only subvolume keeps its times.
	for i, path := range paths {
		times := []unix.Timespec{all[i].Atim, all[i].Mtim}

		err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
		if !errors.Is(err, unix.EROFS) {
			require.NoError(tb, err)
		}
	}

	return lines
}

func xattrsOf(tb testing.TB, path string) string {
	tb.Helper()

	buffer := make([]byte, 64*kibi)
	length, err := unix.Llistxattr(path, buffer)
	require.NoError(tb, err)

	names := strings.FieldsFunc(string(buffer[:length]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "trusted.SGI_ACL_") }) // xfs' own

	var text bytes.Buffer

	for _, name := range names {
		length, err := unix.Lgetxattr(path, name, buffer)
		require.NoError(tb, err)
		fmt.Fprintf(&text, " %s=%x", name, buffer[:length])
	}

	return text.String()
}

// copied makes a copy that must succeed, and says how much of the pool it holds.
func copied(tb testing.TB, to, from *pool.Pool, source, target pool.Object, options pool.CopyOptions) int64 {
	tb.Helper()

	making, err := to.NewCopy(from, source, target, options)
	require.NoError(tb, err)
	require.NoError(tb, making.CopyData(tb.Context()))

	allocated, err := making.Commit(tb.Context())
	require.NoError(tb, err)
	require.NoError(tb, making.Abort())

	return allocated
}

// nothingHalfMade requires a failed copy to have left neither target nor scratch.
func nothingHalfMade(tb testing.TB, p *pool.Pool, target pool.Object) {
	tb.Helper()

	require.NoFileExists(tb, placeOf(p, target))
	require.NoDirExists(tb, placeOf(p, target))
	require.Empty(tb, scratchOf(tb, p), "want: no scratch file is left")
}

func scratchOf(tb testing.TB, p *pool.Pool) []string {
	tb.Helper()

	entries, err := os.ReadDir(filepath.Join(p.Path(), "scratch"))
	require.NoError(tb, err)

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return names
}

// available is what the pool's filesystem has left once it has written all.
func available(tb testing.TB, p *pool.Pool) int64 {
	tb.Helper()

	directory, err := os.Open(p.Path())
	require.NoError(tb, err)

	defer directory.Close()

	require.NoError(tb, unix.Syncfs(int(directory.Fd())))

	capacity, err := p.Capacity()
	require.NoError(tb, err)

	return capacity.Available
}

// sharesBlocks asks FIEMAP whether a file has blocks that others have too.
func sharesBlocks(tb testing.TB, path string) bool {
	tb.Helper()

	output, err := child.Command(tb, "filefrag", "-v", path).CombinedOutput()
	require.NoError(tb, err, "%s", output)

	return strings.Contains(string(output), "shared")
}

package embedded_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestForeignFilesAreRefusedAndKept, with an error that has a remedy.
func TestForeignFilesAreRefusedAndKept(t *testing.T) {
	onEach(t, testForeignFilesAreRefusedAndKept)
}

func testForeignFilesAreRefusedAndKept(t *testing.T, kind string) {
	for name, test := range map[string]struct {
		put   func(t *testing.T, directory string)
		bytes int64
		cause error
		words []string
		// unprivileged means that it is refused before anything is attached.
		unprivileged bool
	}{
		"data in place of the image": {
			put:   func(t *testing.T, d string) { t.Helper(); write(t, filepath.Join(d, "pool.img"), "my thesis") },
			bytes: small, cause: embedded.ErrForeign, words: []string{"pool.img", "holds data but no XFS"},
		},
		"another filesystem": {
			put: func(t *testing.T, d string) {
				t.Helper()
				empty(t, filepath.Join(d, "pool.img"), 16*mib)
				tool(t, "mkfs.ext4", "-q", "-F", filepath.Join(d, "pool.img"))
			},
			bytes: small, cause: embedded.ErrForeign, words: []string{"ext4", "move it away"},
		},
		"an empty image without a size": {
			put:   func(t *testing.T, d string) { t.Helper(); empty(t, filepath.Join(d, "pool.img"), small) },
			cause: embedded.ErrForeign, words: []string{"holds nothing", "--pool-image-size"},
		},
		"a symlink in place of the image": {
			put: func(t *testing.T, d string) {
				t.Helper()
				write(t, filepath.Join(d, "elsewhere"), "my thesis")
				require.NoError(t, os.Symlink("elsewhere", filepath.Join(d, "pool.img")))
			},
			bytes: small, cause: embedded.ErrForeign, words: []string{"no regular file"}, unprivileged: true,
		},
		"a directory in place of the image": {
			put: func(t *testing.T, d string) {
				t.Helper()
				require.NoError(t, os.Mkdir(filepath.Join(d, "pool.img"), 0o700))
			},
			bytes: small, cause: embedded.ErrForeign, words: []string{"no regular file"}, unprivileged: true,
		},
		"a symlink in place of the mount point": {
			put: func(t *testing.T, d string) {
				t.Helper()
				require.NoError(t, os.Mkdir(filepath.Join(d, "elsewhere"), 0o700))
				require.NoError(t, os.Symlink("elsewhere", filepath.Join(d, "mounted")))
			},
			bytes: small, cause: mount.ErrSymlink, words: []string{"mounted"},
		},
		"a file in the mount point": {
			put: func(t *testing.T, d string) {
				t.Helper()
				require.NoError(t, os.Mkdir(filepath.Join(d, "mounted"), 0o700))
				write(t, filepath.Join(d, "mounted", "thesis"), "mine")
			},
			bytes: small, cause: embedded.ErrForeign, words: []string{"thesis", "hide"},
		},
		"an ordinary pool with an image":     {put: volumeIn("images/x.img"), bytes: small, cause: embedded.ErrForeign, words: []string{"images/x.img", "ordinary pool"}, unprivileged: true},
		"an ordinary pool with a directory":  {put: volumeIn("directories/x/data"), bytes: small, cause: embedded.ErrForeign, words: []string{"directories/x"}, unprivileged: true},
		"an ordinary pool with a snapshot":   {put: volumeIn("snapshots/x.img"), bytes: small, cause: embedded.ErrForeign, words: []string{"snapshots/x.img"}, unprivileged: true},
		"an ordinary pool with an ephemeral": {put: volumeIn("ephemeral/images/x.img"), bytes: small, cause: embedded.ErrForeign, words: []string{"ephemeral/images/x.img"}, unprivileged: true},
		"an ordinary pool beside the embedded": {
			put: func(t *testing.T, d string) {
				t.Helper()
				end(t, ensure(t, kind, d, small))
				volumeIn("images/x.img")(t, d)
			},
			cause: embedded.ErrForeign, words: []string{"images/x.img"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !test.unprivileged {
				namespace.NeedRoot(t)
			}

			directory := emptyDirectory(t)
			require.NoError(t, os.Mkdir(directory, 0o700))
			test.put(t, directory)

			before := listing(t, directory)
			refused(t, kind, directory, test.bytes, test.cause, test.words...)
			after := listing(t, directory)
			// The image is made before its mount point is examined.
			delete(after, "pool.img")
			delete(before, "pool.img")
			require.Equal(t, before, after)
		})
	}
}

// volumeIn puts a file where an ordinary pool has its volumes.
func volumeIn(path string) func(*testing.T, string) {
	return func(t *testing.T, directory string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(directory, path)), 0o700))
		write(t, filepath.Join(directory, path), "a volume")
	}
}

func empty(t *testing.T, path string, bytes int64) {
	t.Helper()
	write(t, path, "")
	require.NoError(t, os.Truncate(path, bytes))
}

// listing is what a directory holds, by path.
func listing(t *testing.T, directory string) map[string]string {
	t.Helper()

	found := map[string]string{}

	require.NoError(t, filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		require.NoError(t, err)

		name, err := filepath.Rel(directory, path)
		require.NoError(t, err)

		found[name] = entry.Type().String()
		if entry.Type().IsRegular() && name != "pool.img" {
			text, err := os.ReadFile(path)
			require.NoError(t, err)

			found[name] += " " + string(text)
		}

		return nil
	}))

	return found
}

func TestEmptyPoolMayBecomeEmbedded(t *testing.T) {
	onEach(t, testEmptyPoolMayBecomeEmbedded)
}

func testEmptyPoolMayBecomeEmbedded(t *testing.T, kind string) {
	directory := newDirectory(t)
	for _, room := range []string{"images", "directories", "scratch", "attributes", "ephemeral/images"} {
		require.NoError(t, os.MkdirAll(filepath.Join(directory, room), 0o700))
	}

	require.NotEmpty(t, ensure(t, kind, directory, small).Image(), "want: the empty directory becomes an embedded pool")
}

// TestBlankImageIsFormatted also where it is larger than asked: its owner made it so.
func TestBlankImageIsFormatted(t *testing.T) {
	onEach(t, testBlankImageIsFormatted)
}

func testBlankImageIsFormatted(t *testing.T, kind string) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	empty(t, filepath.Join(directory, "pool.img"), larger)

	pool := ensure(t, kind, directory, small)
	require.EqualValues(t, larger, size(t, pool.Image()), "want: the image keeps its size")
	require.Greater(t, total(t, pool.Directory()), int64(larger*8/10), "want: the filesystem has grown to the size of its image")
}

func TestForeignMountIsRefused(t *testing.T) { onEach(t, testForeignMountIsRefused) }

func testForeignMountIsRefused(t *testing.T, kind string) {
	foreign := func(t *testing.T, directory string) {
		t.Helper()

		at := filepath.Join(directory, "mounted")
		require.NoError(t, os.MkdirAll(at, 0o700))
		require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(at, 0)) })
	}

	t.Run("without an image", func(t *testing.T) {
		directory := newDirectory(t)
		foreign(t, directory)
		refused(t, kind, directory, small, embedded.ErrForeign, "unmount it")
		refused(t, kind, directory, 0, embedded.ErrForeign, "unmount it")
		require.NoFileExists(t, filepath.Join(directory, "pool.img"))
	})

	t.Run("over the image's", func(t *testing.T) {
		directory := newDirectory(t)
		died(t, kind, directory, small)
		t.Cleanup(func() { end(t, ensure(t, kind, directory, 0)) })
		pool := ensure(t, kind, directory, small)
		foreign(t, directory)
		refused(t, kind, directory, small, embedded.ErrForeign, "tmpfs", "unmount it")
		require.ErrorIs(t, pool.Close(t.Context()), embedded.ErrForeign)
	})

	t.Run("of another image", func(t *testing.T) {
		directory := newDirectory(t)
		pool := ensure(t, kind, directory, small)

		// The image was replaced while it was mounted: only its inode differs.
		require.NoError(t, os.Rename(pool.Image(), pool.Image()+".old"))
		tool(t, "cp", "--sparse=always", pool.Image()+".old", pool.Image())
		refused(t, kind, directory, small, embedded.ErrForeign, "pool.img.old")

		require.NoError(t, os.Remove(pool.Image()))
		refused(t, kind, directory, 0, embedded.ErrForeign, "put the image back")
		require.NoError(t, os.Rename(pool.Image()+".old", pool.Image()))
		end(t, pool)
	})

	t.Run("read-only", func(t *testing.T) {
		directory := newDirectory(t)
		pool := ensure(t, kind, directory, small)
		require.NoError(t, unix.Mount("", pool.Directory(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		refused(t, kind, directory, small, embedded.ErrForeign, "read-only")
	})
}

// damages are what is overwritten in an image, and how each filesystem is repaired.
func damages() map[string][]damage {
	const (
		group       = small / 4 // The second of the four that mkfs.xfs makes.
		btrfsSuper  = 64 << 10
		superLength = 4096
	)

	return map[string][]damage{
		filesystem.XFS: {
			{name: "a copy of the superblock", at: []int64{group}, length: 512, cause: embedded.ErrDamaged, repair: []string{"xfs_repair", "-f"}},
			{name: "the free space's index", at: []int64{group + 4096}, length: 8192, cause: embedded.ErrDamaged, repair: []string{"xfs_repair", "-f"}},
			{name: "the superblock", length: superLength, at: []int64{0}, cause: embedded.ErrForeign, repair: []string{"xfs_repair", "-f"}},
		},
		filesystem.Btrfs: {
			{
				name: "the superblock", length: superLength, at: []int64{btrfsSuper}, cause: embedded.ErrForeign,
				repair: []string{"btrfs", "rescue", "super-recover", "-y"}, repaired: 2,
			},
		},
	}
}

type damage struct {
	name   string
	at     []int64
	length int64
	cause  error
	repair []string
	// repaired is the exit status of a repair that succeeded.
	repaired int
}

func (d damage) strike(t *testing.T, image string) {
	t.Helper()

	garbage := make([]byte, d.length)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(garbage)

	file, err := os.OpenFile(image, os.O_RDWR, 0)
	require.NoError(t, err)

	for _, at := range d.at {
		_, err = file.WriteAt(garbage, at)
		require.NoError(t, err)
	}

	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

func TestDamageErrorHasARemedy(t *testing.T) { onEach(t, testDamageErrorHasARemedy) }

func testDamageErrorHasARemedy(t *testing.T, kind string) {
	for _, damage := range damages()[kind] {
		t.Run(damage.name, func(t *testing.T) {
			directory := newDirectory(t)
			end(t, ensure(t, kind, directory, small))

			image := filepath.Join(directory, "pool.img")
			damage.strike(t, image)

			for range 2 {
				refused(t, kind, directory, larger, damage.cause, strings.TrimSuffix(strings.Join(damage.repair, " "), " -y"))
				require.False(t, mounted(t, filepath.Join(directory, "mounted")), "want: the pool is not mounted")
				require.EqualValues(t, small, size(t, image), "what is damaged does not grow")
			}

			// What the error says helps.
			repair := child.Command(t, damage.repair[0], append(damage.repair[1:], image)...)
			output, _ := repair.CombinedOutput()
			require.Equal(t, damage.repaired, repair.ProcessState.ExitCode(), "%s", output)
			end(t, ensure(t, kind, directory, larger))
		})
	}
}

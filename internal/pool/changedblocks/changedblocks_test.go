package changedblocks_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/changedblocks"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// A property that fails prints what reproduces it, and leaves no file.
var _ = flag.Set("rapid.nofailfile", "true")

const (
	kib = 1 << 10
	mib = 1 << 20
)

// ground is where the files of a test are.
type ground struct {
	name string
	// make returns the directories of the base and of the target.
	make func(tb testing.TB) (base, target string)
	// clones says that snapshots are reflinks.
	clones bool
}

func grounds() []ground {
	one := func(fsType, options string, mkfs ...string) func(testing.TB) (string, string) {
		return func(tb testing.TB) (string, string) {
			tb.Helper()
			directory := mounted(tb, fsType, options, mkfs...)

			return directory, directory
		}
	}

	xfs := []string{"mkfs.xfs", "-q", "-m", "reflink=1"}

	return []ground{
		{name: "xfs", make: one("xfs", "", xfs...), clones: true},
		{name: "btrfs", make: one("btrfs", "", "mkfs.btrfs", "-q"), clones: true},
		{name: "btrfs, compressed", make: one("btrfs", "compress-force", "mkfs.btrfs", "-q"), clones: true},
		{name: "ext4", make: one("ext4", "", "mkfs.ext4", "-q")},
		{name: "ext4 with blocks of 1 KiB", make: one("ext4", "", "mkfs.ext4", "-q", "-b", "1024", "-O", "inline_data")},
		{name: "xfs without reflink", make: one("xfs", "", "mkfs.xfs", "-q", "-m", "reflink=0")},
		{name: "tmpfs", make: one("tmpfs", "size=64m")},
		{name: "two filesystems", make: func(tb testing.TB) (string, string) {
			tb.Helper()

			return mounted(tb, "xfs", "", xfs...), mounted(tb, "xfs", "", xfs...)
		}},
	}
}

// mounted returns a directory on a filesystem of its own.
func mounted(tb testing.TB, fsType, options string, mkfs ...string) string {
	tb.Helper()

	root, source := tb.TempDir(), fsType

	if len(mkfs) > 0 {
		image, err := os.Create(filepath.Join(root, "image"))
		require.NoError(tb, err)

		defer image.Close()

		require.NoError(tb, image.Truncate(320*mib))

		output, err := child.Command(tb, mkfs[0], append(mkfs[1:], image.Name())...).CombinedOutput()
		require.NoError(tb, err, "%s", output)

		device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(tb.Context(), image, loop.AttachOptions{
			AutoClear: true, Exclusive: true, PreferredNumber: -1, BlockSize: 512,
		})
		require.NoError(tb, err)

		defer device.Close()

		source = device.Path
	}

	directory := filepath.Join(root, "mounted")
	require.NoError(tb, os.Mkdir(directory, 0o700))
	require.NoError(tb, unix.Mount(source, directory, fsType, 0, options))
	// A program that another test is just starting may have our files open until
	// it is executed.
	tb.Cleanup(func() { require.NoError(tb, unix.Unmount(directory, unix.MNT_DETACH)) })

	return directory
}

func visited(t require.TestingT, walk func(visit func(extent.Range) error) error) []extent.Range {
	var ranges []extent.Range

	require.NoError(t, walk(func(r extent.Range) error {
		ranges = append(ranges, r)

		return nil
	}))

	return ranges
}

// TestChangesAreExact is for what the property above lets pass: too much.
func TestChangesAreExact(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, on := range grounds() {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()

			inBase, inTarget := on.make(t)

			image := create(t, inBase)
			defer forget(image)

			const size = 16 * mib

			write := func(offset, length int64) {
				data := make([]byte, length)
				rand.New(rand.NewSource(offset)).Read(data)
				data[0]++ // of every block it differs from what was there

				for at := int64(0); at < length; at += 4096 {
					data[at]++
				}

				_, err := image.WriteAt(data, offset)
				require.NoError(t, err)
			}

			require.NoError(t, image.Truncate(size))
			write(1*mib, 8*mib)
			require.NoError(t, unix.Fallocate(int(image.Fd()), 0, 12*mib, 2*mib))
			require.NoError(t, image.Sync())

			copyOf := func(directory string) *os.File {
				copied := create(t, directory)
				t.Cleanup(func() { forget(copied) })

				if on.clones {
					require.NoError(t, unix.IoctlFileClone(int(copied.Fd()), int(image.Fd())))

					return copied
				}

				plainCopy(t, copied, image)

				return copied
			}

			base := copyOf(inBase)
			require.Equal(t, []extent.Range{{Offset: 1 * mib, Length: 8 * mib}}, allocated(t, base, 0))
			require.Equal(t, []extent.Range{{Offset: 3 * mib, Length: 6 * mib}}, allocated(t, base, 3*mib))
			require.Empty(t, allocated(t, base, 9*mib), "want: nothing is allocated behind the offset")

			write(2*mib, 4096)
			write(3*mib+8192, 128*kib)
			// Over a border of what is allocated, and into what was only reserved.
			write(9*mib-128*kib, 256*kib)
			write(13*mib, 128*kib)
			require.NoError(t, unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 5*mib, 128*kib))
			require.NoError(t, image.Truncate(size+4*mib))
			write(size+2*mib, 128*kib)
			require.NoError(t, image.Sync())

			target := copyOf(inTarget)
			want := []extent.Range{
				{Offset: 2 * mib, Length: 4096},
				{Offset: 3*mib + 8192, Length: 128 * kib},
				{Offset: 5 * mib, Length: 128 * kib},
				{Offset: 9*mib - 128*kib, Length: 256 * kib},
				{Offset: 13 * mib, Length: 128 * kib},
				{Offset: size + 2*mib, Length: 128 * kib},
			}
			require.Equal(t, want, changed(t, base, target, 0))
			require.Equal(t, want[2:], changed(t, base, target, 4*mib))
			// The first may begin in the middle of what has changed.
			require.Equal(t, append([]extent.Range{{Offset: 9 * mib, Length: 128 * kib}}, want[4:]...), changed(t, base, target, 9*mib))
			require.Equal(t, want[5:], changed(t, base, target, size))
			require.Empty(t, changed(t, base, target, size+4*mib), "want: nothing has changed behind the end")
			require.Equal(t, want[:5], changed(t, target, base, 0), "backwards, without what the volume did not have")
			require.Empty(t, changed(t, target, copyOf(inTarget), 0), "want: a copy has no changes")
		})
	}
}

// plainCopy copies data only.
func plainCopy(t *testing.T, to, from *os.File) {
	t.Helper()

	all := content(t, from)
	require.NoError(t, to.Truncate(int64(len(all))))

	for offset := 0; offset < len(all); offset += 4096 {
		if block := all[offset : offset+4096]; !zero(block) {
			_, err := to.WriteAt(block, int64(offset))
			require.NoError(t, err)
		}
	}
}

func allocated(t *testing.T, file *os.File, from int64) []extent.Range {
	t.Helper()

	return visited(t, func(visit func(extent.Range) error) error {
		return changedblocks.Allocated(t.Context(), file, from, visit)
	})
}

func changed(t *testing.T, base, target *os.File, from int64) []extent.Range {
	t.Helper()

	return visited(t, func(visit func(extent.Range) error) error {
		return changedblocks.Changed(t.Context(), base, target, from, visit)
	})
}

// TestManyExtentsAreListed, on more than one page of the map.
func TestManyExtentsAreListed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, on := range grounds() {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()

			const pieces = 2000

			inBase, inTarget := on.make(t)

			base, target := create(t, inBase), create(t, inTarget)
			defer forget(base)
			defer forget(target)

			var all, odd []extent.Range

			for i := range int64(pieces) {
				at := i * 8192
				all = append(all, extent.Range{Offset: at, Length: 4096})
				_, err := base.WriteAt(bytes.Repeat([]byte{1}, 4096), at)
				require.NoError(t, err)
			}

			require.NoError(t, base.Truncate(pieces*8192))

			if on.clones {
				require.NoError(t, unix.IoctlFileClone(int(target.Fd()), int(base.Fd())))
			} else {
				plainCopy(t, target, base)
			}

			for i := int64(1); i < pieces; i += 2 {
				odd = append(odd, all[i])
				_, err := target.WriteAt(bytes.Repeat([]byte{2}, 4096), i*8192)
				require.NoError(t, err)
			}

			require.Equal(t, all, allocated(t, base, 0))
			require.Equal(t, all[1000:], allocated(t, base, 1000*8192))
			require.Equal(t, odd, changed(t, base, target, 0))
			require.Equal(t, odd[700:], changed(t, base, target, 1401*8192))
		})
	}
}

// TestVisitorEndsTheList, as for a client that leaves.
func TestVisitorEndsTheList(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, on := range grounds() {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()

			inBase, inTarget := on.make(t)

			base, target, empty := create(t, inBase), create(t, inTarget), create(t, inBase)
			defer forget(base)
			defer forget(target)
			defer forget(empty)

			require.NoError(t, base.Truncate(8*mib))
			require.NoError(t, target.Truncate(8*mib))

			for at := int64(0); at < 8*mib; at += 2 * mib {
				_, err := target.WriteAt([]byte("changed"), at)
				require.NoError(t, err)
			}

			for name, walk := range map[string]func(context.Context, func(extent.Range) error) error{
				"allocated": func(ctx context.Context, visit func(extent.Range) error) error {
					return changedblocks.Allocated(ctx, target, 0, visit)
				},
				"changed": func(ctx context.Context, visit func(extent.Range) error) error {
					return changedblocks.Changed(ctx, base, target, 0, visit)
				},
				"behind the base": func(ctx context.Context, visit func(extent.Range) error) error {
					return changedblocks.Changed(ctx, empty, target, 0, visit)
				},
			} {
				left := errors.New("left")
				visits := 0

				require.ErrorIs(t, walk(t.Context(), func(extent.Range) error {
					visits++

					return left
				}), left, name)
				require.Equal(t, 1, visits, name)

				ctx, cancel := context.WithCancel(t.Context())
				visits = 0

				require.ErrorIs(t, walk(ctx, func(extent.Range) error {
					visits++

					cancel()

					return nil
				}), context.Canceled, name)
				require.Equal(t, 1, visits, name)
				require.ErrorIs(t, walk(ctx, func(extent.Range) error { return nil }), context.Canceled, name)
			}
		})
	}
}

// TestSharedBlocksAreNotRead: of copies that share blocks, one that was written again counts as
// changed, whatever it contains. All others are compared.
func TestSharedBlocksAreNotRead(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, on := range grounds() {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()

			inBase, inTarget := on.make(t)

			base, target := create(t, inBase), create(t, inTarget)
			defer forget(base)
			defer forget(target)

			same := bytes.Repeat([]byte{1}, 256*kib)
			_, err := base.WriteAt(same, 0)
			require.NoError(t, err)
			require.NoError(t, base.Sync())

			var want []extent.Range

			if on.clones {
				require.NoError(t, unix.IoctlFileClone(int(target.Fd()), int(base.Fd())))
			} else {
				plainCopy(t, target, base)
			}

			// A compressed extent has no location for each of its blocks.
			if on.clones && on.name != "btrfs, compressed" {
				want = []extent.Range{{Offset: 128 * kib, Length: 128 * kib}}
			}

			_, err = target.WriteAt(same[:128*kib], 128*kib)
			require.NoError(t, err)
			require.NoError(t, target.Sync())
			require.Equal(t, want, changed(t, base, target, 0))
		})
	}
}

// TestUnobservableFilesFailTheList, which would be empty otherwise.
func TestUnobservableFilesFailTheList(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	open, closed := create(t, directory), create(t, directory)
	require.NoError(t, closed.Close())

	defer forget(open)

	visit := func(extent.Range) error { return nil }

	for name, err := range map[string]error{
		"allocated": changedblocks.Allocated(t.Context(), closed, 0, visit),
		"base":      changedblocks.Changed(t.Context(), closed, open, 0, visit),
		"target":    changedblocks.Changed(t.Context(), open, closed, 0, visit),
	} {
		require.ErrorIs(t, err, os.ErrClosed, name)
	}
}

// TestShrunkFileFailsTheList rather than have no changes.
func TestShrunkFileFailsTheList(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()

	base, target := create(t, directory), create(t, directory)
	defer forget(base)
	defer forget(target)

	for _, file := range []*os.File{base, target} {
		_, err := file.Write(bytes.Repeat([]byte(file.Name()), 8*mib/len(file.Name())))
		require.NoError(t, err)
	}

	_, err := target.WriteAt(make([]byte, 4*mib), 0)
	require.NoError(t, err)
	_, err = base.WriteAt(make([]byte, 4*mib), 0)
	require.NoError(t, err)
	_, err = target.WriteAt([]byte("a range"), 0)
	require.NoError(t, err)

	err = changedblocks.Changed(t.Context(), base, target, 0, func(extent.Range) error { return base.Truncate(5 * mib) })
	require.ErrorIs(t, err, changedblocks.ErrNotImmutable)

	sparse := create(t, directory)
	defer forget(sparse)

	for _, at := range []int64{0, 4 * mib} {
		_, err := sparse.WriteAt([]byte("a range"), at)
		require.NoError(t, err)
	}

	err = changedblocks.Allocated(t.Context(), sparse, 0, func(extent.Range) error { return sparse.Truncate(mib) })
	require.ErrorIs(t, err, changedblocks.ErrNotImmutable)
}

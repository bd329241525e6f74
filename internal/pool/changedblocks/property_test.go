package changedblocks_test

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/pool/changedblocks"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestNoChangeIsMissed compares with the bytes, whatever was done to the image
// before, between and however the snapshots were made.
func TestNoChangeIsMissed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, on := range grounds() {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()

			inBase, inTarget := on.make(t)
			visitor := t.Context()

			rapid.Check(t, func(t *rapid.T) {
				image := create(t, inBase)
				defer forget(image)

				require.NoError(t, image.Truncate(sizes().Draw(t, "size")))

				random := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
				change(t, random, image, "before")

				base := snapshot(t, image, inBase, on.clones)
				defer forget(base)

				change(t, random, image, "between")

				target := snapshot(t, image, inTarget, on.clones)
				defer forget(target)

				if rapid.Bool().Draw(t, "change the source afterwards") {
					change(t, random, image, "after")
				}

				before, now := content(t, base), content(t, target)
				from := rapid.Int64Range(0, int64(len(now))).Draw(t, "from")

				for _, from := range []int64{0, from} {
					check(t, visited(t, func(visit func(extent.Range) error) error {
						return changedblocks.Allocated(visitor, target, from, visit)
					}), nil, now, from)

					check(t, visited(t, func(visit func(extent.Range) error) error {
						return changedblocks.Changed(visitor, base, target, from, visit)
					}), before, now, from)
				}

				// Backwards: the volume became smaller.
				check(t, visited(t, func(visit func(extent.Range) error) error {
					return changedblocks.Changed(visitor, target, base, 0, visit)
				}), now, before, 0)
			})
		})
	}
}

// sizes are those of volumes, and some which no volume has.
func sizes() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) int64 { return rapid.Int64Range(1, 2).Draw(t, "MiB") * mib }),
		rapid.Int64Range(1, 200),
		rapid.Int64Range(1, 2*mib),
	)
}

// change does a few of the things that happen to an image.
func change(t *rapid.T, random *rand.Rand, image *os.File, when string) {
	for range rapid.IntRange(0, 12).Draw(t, when) {
		info, err := image.Stat()
		require.NoError(t, err)

		size := info.Size()
		if size == 0 {
			return
		}

		offset := rapid.Int64Range(0, size-1).Draw(t, "offset")
		length := rapid.Int64Range(1, min(size-offset, 300*kib)).Draw(t, "length")

		if rapid.Bool().Draw(t, "aligned") {
			offset = offset / 4096 * 4096
			length = min((length+4095)/4096*4096, size-offset)
		}

		do := rapid.SampledFrom([]string{
			"write", "write", "fill", "same", "punch", "zero", "zeros", "allocate", "clone", "collapse", "insert", "grow", "shrink", "sync",
		}).Draw(t, "do")
		one(t, random, image, do, offset, length, size)
	}
}

func one(t *rapid.T, random *rand.Rand, image *os.File, do string, offset, length, size int64) {
	data := make([]byte, length)

	var err error

	switch do {
	case "write":
		random.Read(data)
		_, err = image.WriteAt(data, offset)
	case "fill":
		_, err = image.WriteAt(bytes.Repeat([]byte{byte(1 + random.Intn(255))}, int(length)), offset)
	case "same":
		_, err = image.ReadAt(data, offset)
		require.NoError(t, err)
		_, err = image.WriteAt(data, offset)
	case "zeros":
		_, err = image.WriteAt(data, offset)
	case "punch":
		err = unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	case "zero":
		err = unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_ZERO_RANGE, offset, length)
	case "allocate":
		err = unix.Fallocate(int(image.Fd()), 0, offset, length)
	case "clone":
		// Moves bytes within the image without a write: the same blocks, elsewhere.
		err = unix.IoctlFileCloneRange(int(image.Fd()), &unix.FileCloneRange{
			Src_fd: int64(image.Fd()), Src_offset: 0, Src_length: uint64(length), Dest_offset: uint64(offset),
		})
	case "collapse":
		err = unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, offset, length)
	case "insert":
		err = unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_INSERT_RANGE, offset, length)
	case "grow":
		err = image.Truncate(size + length)
	case "shrink":
		err = image.Truncate(max(size-length, 1))
	case "sync":
		err = image.Sync()
	}

	// Not every filesystem has them, and not for every offset.
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		require.NoError(t, err, do)
	}
}

// snapshot copies the image; a copy that is not a reflink is made in one of
// several ways, and not synced.
func snapshot(t *rapid.T, image *os.File, directory string, clones bool) *os.File {
	copied := create(t, directory)

	if clones && !rapid.Bool().Draw(t, "plain") {
		require.NoError(t, unix.IoctlFileClone(int(copied.Fd()), int(image.Fd())))

		return copied
	}

	all := content(t, image)
	require.NoError(t, copied.Truncate(int64(len(all))))

	if rapid.Bool().Draw(t, "thick") && len(all) > 0 {
		require.NoError(t, unix.Fallocate(int(copied.Fd()), 0, 0, int64(len(all))))
	}

	sparse := rapid.Bool().Draw(t, "sparse")

	for offset := 0; offset < len(all); offset += 4096 {
		block := all[offset:min(offset+4096, len(all))]
		if sparse && zero(block) {
			continue
		}

		_, err := copied.WriteAt(block, int64(offset))
		require.NoError(t, err)
	}

	return copied
}

func create(t require.TestingT, directory string) *os.File {
	file, err := os.CreateTemp(directory, "")
	require.NoError(t, err)

	return file
}

func forget(file *os.File) {
	_ = os.Remove(file.Name())
	_ = file.Close()
}

func content(t require.TestingT, file *os.File) []byte {
	all, err := os.ReadFile(file.Name())
	require.NoError(t, err)

	return all
}

// check requires that both contents are equal outside the ranges, and that the ranges
// have the documented form. Beyond its end, before counts as zeros.
func check(t require.TestingT, ranges []extent.Range, before, now []byte, from int64) {
	if short := len(now) - len(before); short > 0 {
		before = append(slices.Clip(before), make([]byte, short)...)
	}

	end := int64(-1)
	size := int64(len(now))
	told := from

	for _, r := range ranges {
		require.Positive(t, r.Length, "want: each range has a length")
		require.Greater(t, r.Offset, end, "ranges that touch are one")
		require.GreaterOrEqual(t, r.Offset, from, "want: no range begins before the offset")
		require.LessOrEqual(t, r.End(), size, "want: no range ends behind the volume")
		require.True(t, r.Offset == from || r.Offset%changedblocks.BlockBytes == 0, "%+v", r)
		require.True(t, r.End() == size || r.End()%changedblocks.BlockBytes == 0, "%+v", r)
		require.True(t, bytes.Equal(before[told:r.Offset], now[told:r.Offset]), "a change was missed between %d and %d", told, r.Offset)
		told, end = r.End(), r.End()
	}

	require.True(t, bytes.Equal(before[told:size], now[told:]), "a change was missed between %d and %d", told, size)
}

func zero(block []byte) bool { return bytes.Count(block, []byte{0}) == len(block) }

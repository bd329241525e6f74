package pool_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/child"
)

// BenchmarkFallbackCopy is the copy where blocks can't be shared, beside a plain read and write.
// Both take the bytes from memory and end with fsync; a child process is part of the script.
//
// The images: one that is full, one with a small extent in every 64 KiB, and one
// of the same size that is nearly empty.
func BenchmarkFallbackCopy(b *testing.B) {
	const size = 256 * mebi

	place := newPool(b, plain, 2048*mebi)

	for name, stride := range map[string]int64{"full": 0, "scattered": 64 * kibi, "empty": 64 * mebi} {
		source := benchmarkImage(b, place, size, stride)

		b.Run(name+"/touchstone", func(b *testing.B) {
			b.SetBytes(size)

			for b.Loop() {
				target := snapshotOf(b, source)
				copied(b, place, place, source, target, pool.CopyOptions{})

				b.StopTimer()
				sameLength(b, placeOf(place, target), size)
				require.NoError(b, place.Remove(b.Context(), target))
				available(b, place)
				b.StartTimer()
			}
		})

		b.Run(name+"/cp", func(b *testing.B) {
			target := filepath.Join(place.Path(), "copied by cp")

			b.SetBytes(size)

			for b.Loop() {
				output, err := child.Command(b, "cp", "--sparse=always", "--reflink=never", placeOf(place, source), target).
					CombinedOutput()
				require.NoError(b, err, "%s", output)
				flush(b, target)

				b.StopTimer()
				sameLength(b, target, size)
				require.NoError(b, os.Remove(target))
				available(b, place)
				b.StartTimer()
			}
		})

		require.NoError(b, place.Remove(b.Context(), source))
	}
}

// benchmarkImage makes an image with 4 KiB in every stride, or full without one.
func benchmarkImage(b *testing.B, place *pool.Pool, size, stride int64) pool.Object {
	b.Helper()

	source := imageOf(newID(b))
	require.NoError(b, place.Images.Create(source.ID, size, false))

	image, err := place.Images.Open(source.ID, os.O_RDWR)
	require.NoError(b, err)

	defer image.Close()

	content := randomBytes(mebi)
	if stride > 0 {
		content = content[:4*kibi]
	}

	for at := int64(0); at < size; at += max(stride, int64(len(content))) {
		_, err = image.WriteAt(content, at)
		require.NoError(b, err)
	}

	require.NoError(b, image.Sync())

	return source
}

func flush(b *testing.B, path string) {
	b.Helper()

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(b, err)
	require.NoError(b, file.Sync())
	require.NoError(b, file.Close())
}

func sameLength(b *testing.B, path string, size int64) {
	b.Helper()

	info, err := os.Stat(path)
	require.NoError(b, err)
	require.Equal(b, size, info.Size(), "want: the copy has the size of the image")
}

// BenchmarkMeasure adds up what 1,000 images have allocated, with 16 extents each.
func BenchmarkMeasure(b *testing.B) {
	for _, kind := range []string{plain, reflink} {
		b.Run(kind, func(b *testing.B) {
			place := newPool(b, kind, 1024*mebi)
			objects := make([]pool.Object, 1000)

			for i := range objects {
				objects[i] = imageOf(newID(b))
				require.NoError(b, place.Images.Create(objects[i].ID, 16*mebi, false))

				image, err := place.Images.Open(objects[i].ID, os.O_WRONLY)
				require.NoError(b, err)

				for at := range int64(16) {
					_, err := image.WriteAt([]byte("data"), at*mebi)
					require.NoError(b, err)
				}

				require.NoError(b, image.Close())
			}

			for b.Loop() {
				var sum pool.Allocation
				for _, object := range objects {
					require.NoError(b, sum.Add(b.Context(), place, object))
				}

				require.Positive(b, sum.Bytes(), "want: the image has allocated bytes")
			}
		})
	}
}

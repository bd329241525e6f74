package changedblocks_test

import (
	"math/rand"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/pool/changedblocks"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// benchmarkPair are two snapshots of 10 GiB that are written everywhere; in
// between a hundredth was, in pieces of 4 KiB to 1 MiB.
func benchmarkPair(b *testing.B) (base, target *os.File) {
	b.Helper()
	namespace.NeedRoot(b)

	const (
		size    = 10 << 30
		pattern = 64 * mib
	)

	directory := testpool.Reflink(b, 4<<30)
	random := rand.New(rand.NewSource(1))
	data := make([]byte, pattern)
	random.Read(data)

	image := create(b, directory)
	_, err := image.Write(data)
	require.NoError(b, err)

	// All of it is allocated, though the disk has only the pattern.
	for at := uint64(pattern); at < size; at += pattern {
		require.NoError(b, unix.IoctlFileCloneRange(int(image.Fd()), &unix.FileCloneRange{
			Src_fd: int64(image.Fd()), Src_length: pattern, Dest_offset: at,
		}))
	}

	snapshot := func() *os.File {
		made := create(b, directory)
		require.NoError(b, unix.IoctlFileClone(int(made.Fd()), int(image.Fd())))
		b.Cleanup(func() { forget(made) })

		return made
	}

	base = snapshot()

	for left := int64(size / 100); left > 0; {
		length := min((1+random.Int63n(256))*4096, left)
		_, err := image.WriteAt(data[:length], random.Int63n((size-mib)/4096)*4096)
		require.NoError(b, err)

		left -= length
	}

	target = snapshot()
	forget(image)

	return base, target
}

func BenchmarkAllocated(b *testing.B) {
	_, target := benchmarkPair(b)
	ranges := 0

	for b.Loop() {
		ranges = 0

		require.NoError(b, changedblocks.Allocated(b.Context(), target, 0, func(extent.Range) error {
			ranges++

			return nil
		}))
	}

	b.ReportMetric(float64(ranges), "ranges")
}

func BenchmarkChanged(b *testing.B) {
	base, target := benchmarkPair(b)

	var (
		ranges  int
		changed int64
	)

	for b.Loop() {
		ranges, changed = 0, 0

		require.NoError(b, changedblocks.Changed(b.Context(), base, target, 0, func(r extent.Range) error {
			ranges++
			changed += r.Length

			return nil
		}))
	}

	b.ReportMetric(float64(ranges), "ranges")
	b.ReportMetric(float64(changed)/mib, "MiB")
}

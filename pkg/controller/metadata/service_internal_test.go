package metadata

import (
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

func TestTuplesAreCutIntoMessages(t *testing.T) {
	t.Parallel()

	const mib = 1 << 20

	for name, c := range map[string]struct {
		most  int32
		size  int64
		fixed bool
		found [][2]int64
		// want are offset and size of each tuple of each message.
		want [][][2]int64
	}{
		"nothing is one message": {size: mib, want: [][][2]int64{nil}},
		"together":               {size: 9 * mib, found: [][2]int64{{0, mib}, {2 * mib, mib}}, want: [][][2]int64{{{0, mib}, {2 * mib, mib}}}},
		"one by one": {
			most: 1, size: 9 * mib, found: [][2]int64{{0, mib}, {2 * mib, mib}}, want: [][][2]int64{{{0, mib}}, {{2 * mib, mib}}},
		},
		"longer than a tuple's limit": {
			size: 500 * mib, found: [][2]int64{{mib, 130 * mib}},
			want: [][][2]int64{{{mib, 64 * mib}, {65 * mib, 64 * mib}, {129 * mib, 2 * mib}}},
		},
		"the same, one by one": {
			most: 1, size: 500 * mib, found: [][2]int64{{mib, 128 * mib}}, want: [][][2]int64{{{mib, 64 * mib}}, {{65 * mib, 64 * mib}}},
		},
		"an image that is larger than its volume": {
			size: 3 * mib, found: [][2]int64{{2 * mib, 2 * mib}, {6 * mib, mib}}, want: [][][2]int64{{{2 * mib, mib}}},
		},
		"blocks of one size": {
			most: 2, size: mib, fixed: true, found: [][2]int64{{4096, 3 * 4096}, {mib - 4096, 8192}},
			want: [][][2]int64{{{4096, 4096}, {8192, 4096}}, {{12288, 4096}, {mib - 4096, 4096}}},
		},
		"from within a block": {
			size: mib, fixed: true, found: [][2]int64{{5000, 3192}, {16384, 4096}}, want: [][][2]int64{{{4096, 4096}, {16384, 4096}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got [][][2]int64

			made := newTuples(page{most: c.most}, &record.Snapshot{SizeBytes: c.size}, func(blocks []*csi.BlockMetadata) error {
				var message [][2]int64
				for _, block := range blocks {
					message = append(message, [2]int64{block.GetByteOffset(), block.GetSizeBytes()})
				}

				got = append(got, message)

				return nil
			})
			made.fixed = c.fixed

			for _, each := range c.found {
				require.NoError(t, made.add(extent.Range{Offset: each[0], Length: each[1]}))
			}

			require.NoError(t, made.end())
			require.Equal(t, c.want, got)
		})
	}
}

// TestTuplesOfALargeRequestFit into the messages that gRPC accepts.
func TestTuplesOfALargeRequestFit(t *testing.T) {
	t.Parallel()

	const (
		ranges  = 300_000
		maximum = 4 << 20
		end     = int64(1) << 62
	)

	for _, most := range []int32{0, 1 << 30} {
		told := 0
		made := newTuples(page{most: most}, &record.Snapshot{SizeBytes: end}, func(blocks []*csi.BlockMetadata) error {
			told += len(blocks)

			require.Less(t, proto.Size(&csi.GetMetadataDeltaResponse{VolumeCapacityBytes: end, BlockMetadata: blocks}), maximum/2, "want: each message is much smaller than the limit of gRPC")

			return nil
		})

		for i := range int64(ranges) {
			require.NoError(t, made.add(extent.Range{Offset: end/2 + i*8192, Length: 4096}))
		}

		require.NoError(t, made.end())
		require.Equal(t, ranges, told, "want: each changed range is sent")
	}
}

// TestTuplesEndWithTheStream stops at the first message that can't be sent.
func TestTuplesEndWithTheStream(t *testing.T) {
	t.Parallel()

	gone := errors.New("gone")
	sends := 0
	made := newTuples(page{most: 1}, &record.Snapshot{SizeBytes: 1 << 40}, func([]*csi.BlockMetadata) error {
		sends++

		return gone
	})

	require.ErrorIs(t, made.add(extent.Range{Length: 1 << 40}), gone)
	require.Equal(t, 1, sends, "want: nothing is sent after the failure")
}

package extent

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const block = 4096

// TestTranslate is what the driver takes an extent of FIEMAP for.
func TestTranslate(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		raw        fiemapExtent
		from, end  int64
		unwritten  bool
		want       Extent
		none       bool
		nextOffset int64
	}{
		"data": {
			raw: fiemapExtent{logical: block, physical: 10 * block, length: 2 * block}, end: 8 * block,
			want: Extent{Start: block, End: 3 * block, Located: true, Physical: 10 * block}, nextOffset: 3 * block,
		},
		"it begins before the range": {
			raw: fiemapExtent{logical: 0, physical: 10 * block, length: 4 * block}, from: block, end: 8 * block,
			want: Extent{Start: block, End: 4 * block, Located: true, Physical: 11 * block}, nextOffset: 4 * block,
		},
		"it ends behind the range": {
			raw: fiemapExtent{logical: 0, physical: 10 * block, length: 4 * block}, end: block + 1,
			want: Extent{End: block + 1, Located: true, Physical: 10 * block}, nextOffset: block + 1,
		},
		"it was returned before": {
			raw: fiemapExtent{logical: 0, length: block}, from: block, end: 8 * block, none: true, nextOffset: block,
		},
		"preallocated": {
			raw: fiemapExtent{length: block, flags: fiemapExtentUnwritten}, end: 8 * block, none: true, nextOffset: block,
		},
		"preallocated, and asked for": {
			raw: fiemapExtent{length: block, flags: fiemapExtentUnwritten}, end: 8 * block, unwritten: true,
			want: Extent{End: block, Located: true}, nextOffset: block,
		},
		"preallocated, and a write to it is delayed": {
			raw: fiemapExtent{length: block, flags: fiemapExtentUnwritten | fiemapExtentDelalloc}, end: 8 * block,
			want: Extent{End: block}, nextOffset: block,
		},
		"a delayed write": {
			raw: fiemapExtent{length: block, flags: fiemapExtentUnknown | fiemapExtentDelalloc}, end: 8 * block,
			want: Extent{End: block}, nextOffset: block,
		},
		"inline": {
			raw: fiemapExtent{length: block, flags: fiemapExtentNoPlace}, end: 8 * block, want: Extent{End: block}, nextOffset: block,
		},
		"shared": {
			raw: fiemapExtent{physical: block, length: block, flags: fiemapExtentShared}, end: 8 * block,
			want: Extent{End: block, Located: true, Physical: block, Shared: true}, nextOffset: block,
		},
		"compressed": {
			raw: fiemapExtent{physical: block, length: block, flags: fiemapExtentEncoded}, end: 8 * block,
			want: Extent{End: block, Physical: block, Encoded: true}, nextOffset: block,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			reader := &fiemapReader{offset: test.from, end: test.end, unwritten: test.unwritten}
			found, ok := reader.translate(&test.raw)
			require.Equal(t, !test.none, ok, "want: an extent without data in the range is dropped")
			require.Equal(t, test.want, found)
			require.Equal(t, test.nextOffset, reader.offset, "the offset of the next page")
		})
	}
}

// TestFromCutsTheBegin of an extent off.
func TestFromCutsTheBegin(t *testing.T) {
	t.Parallel()

	whole := Extent{Start: 5, End: 9, Located: true, Physical: 105, Shared: true}

	for offset, want := range map[int64]Extent{
		4: whole,
		5: whole,
		6: {Start: 6, End: 9, Located: true, Physical: 106, Shared: true},
		9: {Start: 9, End: 9, Located: true, Physical: 109, Shared: true},
	} {
		require.Equal(t, want, whole.From(offset), "from %d on", offset)
	}
}

func TestAnImpossiblePageOfExtentsIsRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		extents []fiemapExtent
		done    bool
		err     error
	}{
		"none":                  {done: true},
		"the last of the file":  {extents: []fiemapExtent{{length: block}, {logical: 2 * block, length: block, flags: fiemapExtentLast}}, done: true},
		"up to the end":         {extents: []fiemapExtent{{logical: 7 * block, length: block}}, done: true},
		"behind the end":        {extents: []fiemapExtent{{logical: 7 * block, length: 2 * block}}, done: true},
		"one byte less":         {extents: []fiemapExtent{{logical: 7 * block, length: block - 1}}},
		"one byte":              {extents: []fiemapExtent{{logical: 0, length: block + 1}}},
		"more follow":           {extents: []fiemapExtent{{logical: 2 * block, length: block}}},
		"they end at the start": {extents: []fiemapExtent{{logical: 0, length: block}}, err: errStuck},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			reader := &fiemapReader{file: os.Stdin, offset: block, end: 8 * block, request: fiemapRequest{mapped: uint32(len(test.extents))}}
			copy(reader.request.extents[:], test.extents)
			require.ErrorIs(t, reader.checkPage(), test.err)
			require.Equal(t, test.done, reader.done, "want: the last extent ends the reader")
		})
	}
}

// sparse makes a file of 16 blocks with data in blocks 0, 4, 5 and 15.
func sparse(t *testing.T) *os.File {
	t.Helper()

	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })

	for _, number := range []int64{0, 4, 5, 15} {
		_, err := file.WriteAt([]byte{1}, number*block+block-1)
		require.NoError(t, err)
	}

	return file
}

var written = []Range{{0, block}, {4 * block, 2 * block}, {15 * block, block}}

// TestDataIsFoundWithoutFIEMAP, as on tmpfs.
func TestDataIsFoundWithoutFIEMAP(t *testing.T) {
	t.Parallel()

	file := sparse(t)

	for name, test := range map[string]struct {
		size int64
		want []Range
	}{
		"all":                 {16 * block, written},
		"up to within data":   {5 * block, []Range{{0, block}, {4 * block, block}}},
		"up to within a hole": {10 * block, written[:2]},
		"more than the file":  {100 * block, written},
		"up to data":          {4 * block, written[:1]},
		"up to a hole":        {6 * block, written[:2]},
		"one byte of data":    {4*block + 1, []Range{{0, block}, {4 * block, 1}}},
		"nothing":             {0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var (
				found []Range
				total int64
			)

			require.NoError(t, DataRanges(file, test.size, func(start, end int64) error {
				found = append(found, Range{start, end - start})
				total += end - start

				return nil
			}))
			require.Equal(t, test.want, found)

			counted, err := DataBytes(file, test.size)
			require.NoError(t, err)
			require.Equal(t, total, counted, "want: DataBytes is the sum of all ranges")
		})
	}

	require.ErrorIs(t, DataRanges(file, 16*block, func(int64, int64) error { return os.ErrClosed }), os.ErrClosed, "want: the error of visit")
}

// TestReadersAgree: the same file is read in the way of the filesystem that it is on.
func TestReadersAgree(t *testing.T) {
	t.Parallel()

	file := sparse(t)

	var found []Range

	for each, err := range Written(t.Context(), file, 0, 16*block) {
		require.NoError(t, err)

		if last := len(found) - 1; last >= 0 && found[last].End() == each.Start {
			found[last].Length += each.End - each.Start // one write may have several extents
		} else {
			found = append(found, Range{each.Start, each.End - each.Start})
		}
	}

	require.Equal(t, written, found)

	holes, err := Holes(file, 17*block)
	if !errors.Is(err, errors.ErrUnsupported) {
		require.NoError(t, err)
		require.Equal(t, []Range{{block, 3 * block}, {6 * block, 9 * block}, {16 * block, block}}, holes)
	}

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	for _, extents := range []iter.Seq2[Extent, error]{Written(cancelled, file, 0, 16*block), data(cancelled, file, 0, 16*block)} {
		reads := 0

		for _, err := range extents {
			reads++

			require.ErrorIs(t, err, context.Canceled)
		}

		require.Equal(t, 1, reads, "want: the first error ends the extents")
	}
}

func TestPhysicalSpaceIsComparedWithinAFilesystem(t *testing.T) {
	t.Parallel()

	a, b := sparse(t), sparse(t)
	_, known, err := physicalSpace(a)
	require.NoError(t, err)

	same, err := ComparablePhysical(a, b)
	require.NoError(t, err)
	require.Equal(t, known, same, "two files of one filesystem")

	null, err := os.Open(os.DevNull)
	require.NoError(t, err)

	defer null.Close()

	same, err = ComparablePhysical(a, null)
	require.NoError(t, err)
	require.False(t, same, "a file of another filesystem")

	require.NoError(t, null.Close())
	_, err = ComparablePhysical(null, a)
	require.Error(t, err, "want: what cannot be observed is an error")
}

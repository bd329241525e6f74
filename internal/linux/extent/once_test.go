package extent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	os.Exit(namespace.Main(m))
}

const part = 64 << 10

// ranges are adjacent extents as one range, which is how they are expected.
type ranges []extent.Range

func (r *ranges) add(start, end int64) {
	if last := len(*r) - 1; last >= 0 && (*r)[last].End() == start {
		(*r)[last].Length += end - start
	} else {
		*r = append(*r, extent.Range{Offset: start, Length: end - start})
	}
}

// onFile returns an operation that finds ranges of a file. Its end returns what was wrong: a success with
// other ranges, or a failure without its cause.
func onFile(find func(file *os.File) (ranges, error), want ...extent.Range) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		file, err := os.Open(filepath.Join(directory, "file"))
		if err != nil {
			return nil, nil, err
		}

		var wrong error

		return func() error {
			got, err := find(file)

			switch {
			case err == nil && !reflect.DeepEqual(got, ranges(want)):
				wrong = fmt.Errorf("ranges are %v instead of %v", got, want)
			case err != nil && !errors.Is(err, unix.EIO):
				wrong = fmt.Errorf("not the cause of the failure: %w", err)
			}

			return err
		}, func() error { return errors.Join(wrong, file.Close()) }, nil
	}
}

func readWritten(file *os.File) (found ranges, err error) {
	for each, err := range extent.Written(context.Background(), file, 0, 8*part) {
		if err != nil {
			return found, err
		}

		found.add(each.Start, each.End)
	}

	return found, nil
}

// The file has data in its parts 1, 2 and 5, and part 6 is preallocated.
var onceOperations = map[string]syscallfault.Operation{
	"written": onFile(readWritten, extent.Range{Offset: part, Length: 2 * part}, extent.Range{Offset: 5 * part, Length: part}),
	"allocated": onFile(func(file *os.File) (found ranges, err error) {
		for each, err := range extent.Allocated(context.Background(), file) {
			if err != nil {
				return found, err
			}

			found.add(each.Start, each.End)
		}

		return found, nil
	}, extent.Range{Offset: part, Length: 2 * part}, extent.Range{Offset: 5 * part, Length: 2 * part}),
	"holes": onFile(func(file *os.File) (ranges, error) { return extent.Holes(file, 8*part) },
		extent.Range{Length: part}, extent.Range{Offset: 3 * part, Length: 2 * part}, extent.Range{Offset: 7 * part, Length: part}),
	"data": onFile(func(file *os.File) (found ranges, err error) {
		err = extent.DataRanges(file, 6*part, func(start, end int64) error {
			found.add(start, end)

			return nil
		})

		return found, err
	}, extent.Range{Offset: part, Length: 2 * part}, extent.Range{Offset: 5 * part, Length: part}),
	"bytes": onFile(func(file *os.File) (ranges, error) {
		total, err := extent.DataBytes(file, 6*part)

		return ranges{{Length: total}}, err
	}, extent.Range{Length: 3 * part}),
	// Where the device of an XFS file is not known, its offsets are not compared.
	"comparable": onFile(func(file *os.File) (ranges, error) {
		_, err := extent.ComparablePhysical(file, file)

		return nil, err
	}),
}

// TestEachCallFailsOnce has each call fail once by which extents are found. No range is missing
// then, and the cause is reported.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	mapped := testpool.Reflink(t, 512<<20)
	unmapped := t.TempDir()

	require.NoError(t, unix.Mount("tmpfs", unmapped, "tmpfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(unmapped, unix.MNT_DETACH)) })

	for name, c := range map[string]*syscallfault.Case{
		"written with FIEMAP":    {Operation: "written", Within: mapped, Reported: []string{"ioctl"}},
		"written without FIEMAP": {Operation: "written", Within: unmapped, Reported: []string{"ioctl", "lseek"}},
		"allocated":              {Operation: "allocated", Within: mapped, Reported: []string{"ioctl"}},
		"holes":                  {Operation: "holes", Within: mapped, Reported: []string{"ioctl"}},
		"data":                   {Operation: "data", Within: mapped, Reported: []string{"lseek"}},
		"bytes":                  {Operation: "bytes", Within: unmapped, Reported: []string{"lseek"}},
		"comparable":             {Operation: "comparable", Within: mapped, Reported: []string{"fstat"}},
	} {
		c.Verify = func(*testing.T, string) {}
		c.Prepare = func(t *testing.T, directory string) {
			t.Helper()

			file, err := os.Create(filepath.Join(directory, "file"))
			require.NoError(t, err)
			require.NoError(t, file.Truncate(8*part)) // behind its end XFS preallocates more

			for _, each := range []int64{1, 2, 5} {
				_, err := file.WriteAt(make([]byte, part), each*part)
				require.NoError(t, err)
			}

			// A tmpfs writes what it preallocates.
			if c.Within == mapped {
				require.NoError(t, unix.Fallocate(int(file.Fd()), 0, 6*part, part))
			}

			require.NoError(t, errors.Join(file.Sync(), file.Close()))
		}

		t.Run(name, func(t *testing.T) { syscallfault.EachCallFailsOnce(t, c) })
	}
}

// TestFilesystemWithoutAMapIsRead: what needs FIEMAP is not supported on a tmpfs, and two files of
// an XFS are comparable.
func TestFilesystemWithoutAMapIsRead(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	file := func(directory string) *os.File {
		opened, err := os.Create(filepath.Join(directory, "file"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, opened.Close()) })

		return opened
	}

	mapped, unmapped := file(testpool.Reflink(t, 512<<20)), file("/dev/shm")
	require.NoError(t, os.Remove(unmapped.Name()))

	_, err := extent.Holes(unmapped, part)
	require.ErrorIs(t, err, errors.ErrUnsupported)

	var failures []error
	for _, err := range extent.Allocated(t.Context(), unmapped) {
		failures = append(failures, err)
	}

	require.Len(t, failures, 1, "want: a file without a map is not taken for an empty one")
	require.ErrorIs(t, failures[0], errors.ErrUnsupported)

	for other, want := range map[*os.File]bool{mapped: true, unmapped: false} {
		same, err := extent.ComparablePhysical(mapped, other)
		require.NoError(t, err)
		require.Equal(t, want, same, other.Name())
	}
}

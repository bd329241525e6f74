package changedblocks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/pool/changedblocks"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	// onceExtents are more than one page of FIEMAP has, and than one batch of the read-ahead.
	onceExtents = 600
	onceBlock   = 4096
)

// onceRanges is where an operation writes what it has visited: not beneath the directory, whose calls
// fail.
func onceRanges(directory string) string { return directory + ".ranges" }

// listing returns an operation that lists the ranges that walk returns.
func listing(walk func(base, target *os.File, visit func(extent.Range) error) error) syscallfault.Operation {
	return func(directory string) (run, end func() error, err error) {
		base, err := os.Open(filepath.Join(directory, "base"))
		if err != nil {
			return nil, nil, err
		}

		target, err := os.Open(filepath.Join(directory, "target"))
		if err != nil {
			return nil, nil, errors.Join(err, base.Close())
		}

		return func() error { return list(base, target, onceRanges(directory), walk) },
			func() error { return errors.Join(base.Close(), target.Close()) }, nil
	}
}

func list(base, target *os.File, to string, walk func(base, target *os.File, visit func(extent.Range) error) error) error {
	var ranges []extent.Range

	err := walk(base, target, func(r extent.Range) error {
		ranges = append(ranges, r)

		return nil
	})
	if err != nil {
		return err
	}

	text, err := json.Marshal(ranges) //nolint:musttag // read by the same test
	if err != nil {
		return err
	}

	return os.WriteFile(to, text, 0o600)
}

var onceOperations = map[string]syscallfault.Operation{
	"allocated": listing(func(_, target *os.File, visit func(extent.Range) error) error {
		return changedblocks.Allocated(context.Background(), target, 0, visit)
	}),
	"changed": listing(func(base, target *os.File, visit func(extent.Range) error) error {
		return changedblocks.Changed(context.Background(), base, target, 0, visit)
	}),
}

// TestEachCallFailsOnce has each system call fail once by which blocks are listed. A list that
// succeeds has all ranges: a short one would be an incomplete backup.
func TestEachCallFailsOnce(t *testing.T) {
	t.Parallel()

	for name, within := range map[string]func(t *testing.T) string{
		"shared extents": func(t *testing.T) string {
			t.Helper()
			namespace.NeedRoot(t)

			return mounted(t, "xfs", "", "mkfs.xfs", "-q", "-m", "reflink=1")
		},
		"compared bytes": func(t *testing.T) string { t.Helper(); return t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := within(t)

			for _, operation := range []string{"allocated", "changed"} {
				t.Run(operation, func(t *testing.T) {
					var all, odd []extent.Range

					for i := range int64(onceExtents) {
						all = append(all, extent.Range{Offset: 2 * i * onceBlock, Length: onceBlock})
					}

					for i := 1; i < onceExtents; i += 2 {
						odd = append(odd, all[i])
					}

					want := map[string][]extent.Range{"allocated": all, "changed": odd}[operation]

					syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
						Causes: true, Operation: operation, Within: directory,
						Prepare: func(t *testing.T, directory string) {
							t.Helper()
							prepareOnce(t, directory, all, odd)
						},
						Verify: func(t *testing.T, directory string) {
							t.Helper()

							text, err := os.ReadFile(onceRanges(directory))
							require.NoError(t, err)

							var got []extent.Range

							require.NoError(t, json.Unmarshal(text, &got)) //nolint:musttag // written by the same test
							require.Equal(t, want, got)
						},
					})
				})
			}
		})
	}
}

// prepareOnce makes a base with all ranges, and a target that differs in some: a clone if the
// filesystem has these.
func prepareOnce(t *testing.T, directory string, all, differing []extent.Range) {
	t.Helper()

	base, err := os.Create(filepath.Join(directory, "base"))
	require.NoError(t, err)

	defer base.Close()

	target, err := os.Create(filepath.Join(directory, "target"))
	require.NoError(t, err)

	defer target.Close()

	write := func(file *os.File, ranges []extent.Range, content byte) {
		for _, each := range ranges {
			_, err := file.WriteAt(bytes.Repeat([]byte{content}, int(each.Length)), each.Offset)
			require.NoError(t, err)
		}
	}

	write(base, all, 1)

	if unix.IoctlFileClone(int(target.Fd()), int(base.Fd())) != nil {
		write(target, all, 1)
	}

	write(target, differing, 2)
}

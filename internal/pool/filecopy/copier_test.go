package filecopy_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
)

const (
	mebi = 1 << 20
	// chunk is how much is copied between two checks of the context.
	chunk = 16 * mebi
)

// random returns bytes of which no block is zeros.
func random(length int) []byte {
	content := make([]byte, length)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)

	return content
}

// newFile makes a file in a directory with that content at an offset, and zeros before it.
func newFile(t *testing.T, directory string, at int64, content []byte) *os.File {
	t.Helper()

	file, err := os.CreateTemp(directory, "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })

	_, err = file.WriteAt(content, at)
	require.NoError(t, err)

	return file
}

func read(t *testing.T, file *os.File) []byte {
	t.Helper()

	content, err := os.ReadFile(file.Name())
	require.NoError(t, err)

	return content
}

// TestCopy copies within a filesystem, and to another one, through a buffer.
func TestCopy(t *testing.T) {
	t.Parallel()

	other, err := os.MkdirTemp("/dev/shm", "touchstone-copy-") //nolint:usetesting // another filesystem
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(other)) })

	for name, where := range map[string]string{"in the kernel": t.TempDir(), "through a buffer": other} {
		for _, test := range []struct {
			name     string
			at       int64
			length   int
			size     int64
			copied   int64
			progress []int64
		}{
			{name: "empty"},
			{name: "small", length: 5000, size: 5000, copied: 5000, progress: []int64{0, 5000}},
			{name: "less than the file", length: 8192, size: 4096, copied: 4096, progress: []int64{0, 4096}},
			{name: "the source is shorter", length: 4096, size: 3 * 4096, copied: 4096, progress: []int64{0, 4096}},
			{name: "behind a hole", at: 4 * mebi, length: 4096, size: 4*mebi + 4096, copied: 4*mebi + 4096, progress: []int64{0, 4096}},
			{name: "one chunk", length: chunk, size: chunk, copied: chunk, progress: []int64{0, chunk}},
			{
				name: "more than two chunks", length: 2*chunk + 5, size: 2*chunk + 5, copied: 2*chunk + 5,
				progress: []int64{0, chunk, 2 * chunk, 2*chunk + 5},
			},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()

				source := newFile(t, t.TempDir(), test.at, random(test.length))
				target := newFile(t, where, 0, nil)
				require.NoError(t, target.Truncate(test.copied))

				var (
					copier   filecopy.Copier
					progress []int64
				)

				copier.ReportTo(func(done, total int64) {
					require.Equal(t, test.size, total, "want: the total stays")
					progress = append(progress, done)
				}, test.size)
				require.NoError(t, copier.Copy(t.Context(), target, source, test.size))
				require.True(t, bytes.Equal(read(t, source)[:test.copied], read(t, target)), "the copy differs from its source")

				if test.progress != nil {
					require.Equal(t, test.progress, slices.Compact(progress))
				}
			})
		}
	}
}

// TestCopyThroughABufferKeepsHoles copies blocks of zeros as holes.
func TestCopyThroughABufferKeepsHoles(t *testing.T) {
	t.Parallel()

	other, err := os.MkdirTemp("/dev/shm", "touchstone-copy-") //nolint:usetesting // another filesystem
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(other)) })

	source := newFile(t, t.TempDir(), 0, slices.Concat(random(4096), make([]byte, 4*mebi), random(4096)))
	target := newFile(t, other, 0, nil)

	var copier filecopy.Copier

	require.NoError(t, copier.Copy(t.Context(), target, source, 4*mebi+8192))
	require.True(t, bytes.Equal(read(t, source), read(t, target)), "the copy differs from its source")

	var found unix.Stat_t
	require.NoError(t, unix.Fstat(int(target.Fd()), &found))
	require.LessOrEqual(t, found.Blocks*512, int64(64<<10), "want: blocks of zeros are holes")
}

// TestReportedProgressHasALimit has a source that grows during the copy.
func TestReportedProgressHasALimit(t *testing.T) {
	t.Parallel()

	var (
		copier filecopy.Copier
		got    []int64
	)

	copier.ReportTo(func(done, _ int64) { got = append(got, done) }, 10)

	for _, bytes := range []int64{3, 6, 1, 5} {
		copier.Copied(bytes)
	}

	require.Equal(t, []int64{0, 3, 9, 10, 10}, got)
}

// TestCopyFails has a context that has ended, and files that cannot be read or written.
func TestCopyFails(t *testing.T) {
	t.Parallel()

	other, err := os.MkdirTemp("/dev/shm", "touchstone-copy-") //nolint:usetesting // another filesystem
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(other)) })

	// With a hole to be skipped.
	source := newFile(t, t.TempDir(), 0, append(append(random(8192), make([]byte, 4096)...), random(4096)...))

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	readOnly := func(directory string) *os.File {
		file, err := os.Open(newFile(t, directory, 0, nil).Name())
		require.NoError(t, err)
		t.Cleanup(func() { _ = file.Close() })

		return file
	}

	require.ErrorIs(t, filecopy.Unshare(ended, source), context.Canceled)

	for name, test := range map[string]struct {
		ctx    context.Context //nolint:containedctx // one of a case
		target *os.File
		fails  error
	}{
		"the context has ended":      {ctx: ended, target: newFile(t, t.TempDir(), 0, nil), fails: context.Canceled},
		"a target of the filesystem": {ctx: t.Context(), target: readOnly(t.TempDir()), fails: unix.EBADF},
		"a target of another":        {ctx: t.Context(), target: readOnly(other), fails: unix.EBADF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var copier filecopy.Copier

			require.ErrorIs(t, copier.Copy(test.ctx, test.target, source, 16384), test.fails)
		})
	}

	writeOnly, err := os.OpenFile(source.Name(), os.O_WRONLY, 0)
	require.NoError(t, err)

	defer writeOnly.Close()

	for _, directory := range []string{t.TempDir(), other} {
		var copier filecopy.Copier

		require.ErrorIs(t, copier.Copy(t.Context(), newFile(t, directory, 0, nil), writeOnly, 8192), unix.EBADF)
	}
}

// TestCloneFails where the files are on different filesystems, or cannot be written.
func TestCloneFails(t *testing.T) {
	t.Parallel()

	other, err := os.MkdirTemp("/dev/shm", "touchstone-copy-") //nolint:usetesting // another filesystem
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(other)) })

	source := newFile(t, t.TempDir(), 0, random(4096))
	require.ErrorIs(t, filecopy.Clone(newFile(t, other, 0, nil), source), filecopy.ErrCloneUnsupported)

	closed := newFile(t, other, 0, nil)
	require.NoError(t, closed.Close())

	err = filecopy.Clone(closed, source)
	require.ErrorIs(t, err, unix.EBADF)
	require.NotErrorIs(t, err, filecopy.ErrCloneUnsupported)
	require.Error(t, filecopy.Unshare(t.Context(), closed), "want: the failure of the file is reported")

	instant, err := filecopy.Reflinks(other)
	require.NoError(t, err)
	require.False(t, instant, "want: a tmpfs shares no blocks")

	_, err = filecopy.Reflinks(filepath.Join(other, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
)

func TestPoolGrows(t *testing.T) { onEach(t, testPoolGrows) }

func testPoolGrows(t *testing.T, kind string) {
	directory := newDirectory(t)
	pool := ensure(t, kind, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")

	// While it is mounted, as of a driver that was killed.
	online := ensure(t, kind, directory, larger)
	require.EqualValues(t, larger, size(t, pool.Image()), "want: the image has the larger size")
	require.Greater(t, total(t, online.Directory()), int64(larger*8/10), "want: the mounted filesystem has grown")
	end(t, pool)
	end(t, online)

	const final, grows, keeps = 2 * larger, "an embedded pool grows", "larger than asked"

	for _, step := range []struct {
		asked  int64
		logged string
	}{{final, grows}, {final, ""}, {small, keeps}, {0, ""}} {
		pool, log := ensureLogged(t, kind, directory, step.asked)
		require.EqualValues(t, final, size(t, pool.Image()), "want: the image grows and never shrinks")
		require.Greater(t, total(t, pool.Directory()), int64(final*8/10), "want: the filesystem is as large as the image")

		for _, text := range []string{grows, keeps} {
			require.Equal(t, text == step.logged, strings.Contains(log.String(), text), "want: only what happens is logged: %s", text)
		}

		holds(t, filepath.Join(pool.Directory(), "data"), "kept")
		end(t, pool)
	}

	require.Empty(t, devices(t, directory), "want: no device is left")
	requireSound(t, kind, filepath.Join(directory, "pool.img"))
}

// TestInterruptedGrowthIsCompleted by the next start, also by one that asks for nothing.
func TestInterruptedGrowthIsCompleted(t *testing.T) { onEach(t, testInterruptedGrowthIsCompleted) }

func testInterruptedGrowthIsCompleted(t *testing.T, kind string) {
	grownImage := func(t *testing.T, directory string) {
		t.Helper()
		require.NoError(t, os.Truncate(filepath.Join(directory, "pool.img"), larger))
	}

	for name, interrupt := range map[string]func(*testing.T, string){
		"after the image": grownImage,
		"after the device": func(t *testing.T, directory string) {
			t.Helper()
			grownImage(t, directory)

			_, err := loop.NewLoops(loop.LoopsOptions{}).Resize(devices(t, directory)[0].Number)
			require.NoError(t, err)
		},
	} {
		for _, reboot := range []bool{false, true} {
			for _, asked := range []int64{0, larger} {
				t.Run(name, func(t *testing.T) {
					directory := newDirectory(t)
					died(t, kind, directory, small)
					interrupt(t, directory)

					if reboot {
						require.NoError(t, unix.Unmount(filepath.Join(directory, "mounted"), 0))
					}

					pool := ensure(t, kind, directory, asked)
					require.Greater(t, total(t, pool.Directory()), int64(larger*8/10), "want: the filesystem is as large as was asked for")
				})
			}
		}
	}
}

func TestFullHostIsRefused(t *testing.T) { onEach(t, testFullHostIsRefused) }

func testFullHostIsRefused(t *testing.T, kind string) {
	directory := newDirectory(t)
	require.NoError(t, os.Mkdir(directory, 0o700))
	require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, "size=96m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, 0)) })

	ballast := filepath.Join(directory, "ballast")
	write(t, ballast, string(make([]byte, 95*mib)))
	refused(t, kind, directory, small, embedded.ErrHostFull, "bytes free", "free some")
	require.NoFileExists(t, filepath.Join(directory, "pool.img"))
	require.NoError(t, os.Remove(ballast))

	pool := ensure(t, kind, directory, small)
	write(t, filepath.Join(pool.Directory(), "data"), "kept")
	end(t, pool)

	// A start must not fail for it: deleting volumes frees space.
	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(directory, &stat))
	write(t, ballast, string(make([]byte, int64(stat.Bavail)*stat.Bsize-4*mib)))

	pool = ensure(t, kind, directory, larger)
	require.EqualValues(t, small, size(t, pool.Image()), "want: the image does not grow on a full host")
	holds(t, filepath.Join(pool.Directory(), "data"), "kept")
	end(t, pool)

	require.NoError(t, os.Remove(ballast))
	pool = ensure(t, kind, directory, larger)
	require.EqualValues(t, larger, size(t, pool.Image()), "want: the image grows when the host has space")
	end(t, pool)
}

// TestATruncatedImageDoesNotGrow truncates the image while it is mounted: growing it would hide
// that data is lost.
func TestATruncatedImageDoesNotGrow(t *testing.T) { onEach(t, testATruncatedImageDoesNotGrow) }

func testATruncatedImageDoesNotGrow(t *testing.T, kind string) {
	directory := newDirectory(t)
	pool := ensure(t, kind, directory, small)
	require.NoError(t, os.Truncate(pool.Image(), small-mib))
	refused(t, kind, directory, larger, embedded.ErrDamaged, "truncated")
	require.EqualValues(t, small-mib, size(t, pool.Image()), "want: a truncated image does not grow")
	require.NoError(t, os.Truncate(pool.Image(), small))
	end(t, pool)
}

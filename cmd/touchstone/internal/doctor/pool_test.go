package doctor_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// withPool is a machine with an existing pool.
func withPool(t *testing.T, directory string) doctor.Config {
	t.Helper()

	c := machine(t)
	c.Pools["default"] = directory

	return c
}

func TestReflinkingPoolPasses(t *testing.T) {
	namespace.NeedRoot(t)

	directory := testpool.Reflink(t, 320<<20)
	c := withPool(t, directory)

	finds(t, look(t, c, "pool", "default"), doctor.OK, directory, "xfs", "/dev/loop")
	finds(t, look(t, c, "pool-space", "default"), doctor.OK, "MiB available", "inodes")
	finds(t, look(t, c, "pool-reflink", "default"), doctor.OK, "immediate")
	finds(t, look(t, c, "pool-attach", "default"), doctor.OK, "direct I/O")
	require.Empty(t, names(t, directory), "want: the pool is empty again")
}

func TestPoolWithoutReflinkIsReported(t *testing.T) {
	namespace.NeedRoot(t)

	directory := testpool.Plain(t, 1<<30)
	require.NoError(t, os.Mkdir(filepath.Join(directory, "scratch"), 0o700))

	c := withPool(t, directory)
	before := numbers(t)

	finds(t, look(t, c, "pool", "default"), doctor.OK, "ext4")
	finds(t, look(t, c, "pool-attach", "default"), doctor.OK, "direct I/O")

	found := look(t, c, "pool-reflink", "default")
	finds(t, found, doctor.Warning, "share no blocks")
	require.Contains(t, found.Cure, "--pool-image-size")

	c.PoolImageBytes, c.WithoutDriver = 1<<30, true
	finds(t, look(t, c, "pool-reflink", "default"), doctor.OK, "embed")

	require.Empty(t, names(t, filepath.Join(directory, "scratch")), "want: no scratch file is left")
	require.Equal(t, []string{"scratch"}, names(t, directory))
	// A device left by a killed doctor may be reused, and is removed then.
	require.Subset(t, before, numbers(t), "a device was left in the kernel")
}

// numbers returns the loop devices in the range of trials.
func numbers(t *testing.T) []int {
	t.Helper()

	const trials, last = 64, loop.MaxNumber - 1024

	var found []int

	for number := last - trials + 1; number <= last; number++ {
		if _, err := os.Stat("/sys/block/loop" + strconv.Itoa(number)); err == nil {
			found = append(found, number)
		}
	}

	return found
}

func TestPoolInMemoryIsReported(t *testing.T) {
	c := machine(t)
	directory := c.Pools["default"]

	t.Run("tmpfs", func(t *testing.T) {
		mountAt(t, "scratch", directory, "tmpfs", 0, "size=4m,nr_inodes=100")
		finds(t, look(t, c, "pool", "default"), doctor.Warning, "in memory")
		finds(t, look(t, c, "pool-reflink", "default"), doctor.Warning)
		finds(t, look(t, c, "pool-space", "default"), doctor.OK, "4.0 MiB", "of 100 inodes")

		for i := range 97 {
			require.NoError(t, os.WriteFile(filepath.Join(directory, strconv.Itoa(i)), nil, 0o600))
		}

		finds(t, look(t, c, "pool-space", "default"), doctor.Warning, "2 of 100 inodes")
		fill(t, filepath.Join(directory, "0"), 4<<20)
		finds(t, look(t, c, "pool-space", "default"), doctor.Problem, "0 B of 4.0 MiB")
	})
	t.Run("read-only", func(t *testing.T) {
		mountAt(t, directory, directory, "", unix.MS_BIND, "")
		require.NoError(t, unix.Mount("", directory, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		finds(t, look(t, c, "pool", "default"), doctor.Problem, "read-only")
		finds(t, look(t, c, "pool-attach", "default"), doctor.Skipped, "read-only")
	})
}

func fill(t *testing.T, path string, bytes int64) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, unix.Fallocate(int(file.Fd()), 0, 0, bytes))
}

func TestMissingPoolIsReported(t *testing.T) {
	c := machine(t)
	file := filepath.Join(c.StateDir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	c.Pools = map[string]string{"missing": filepath.Join(c.StateDir, "none"), "file": file}

	finds(t, look(t, c, "pool", "missing"), doctor.Warning, "is not there")
	finds(t, look(t, c, "pool", "file"), doctor.Problem, "not a directory")

	for _, check := range []string{"pool-space", "pool-reflink", "pool-attach"} {
		for name := range c.Pools {
			finds(t, look(t, c, check, name), doctor.Skipped)
		}
	}

	require.NoDirExists(t, c.Pools["missing"])
}

func TestEmbeddedPoolIsChecked(t *testing.T) {
	namespace.NeedRoot(t)

	c := machine(t)
	directory := c.Pools["default"]

	embedded, err := embedded.Ensure(t.Context(), embedded.Options{
		Directory: directory, Bytes: 320 << 20, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)

	if embedded.Image() == "" {
		t.Skip("the temporary directory can reflink by itself")
	}

	finds(t, look(t, c, "pool", "default"), doctor.OK, "embedded xfs", "pool.img")
	finds(t, look(t, c, "pool-space", "default"), doctor.OK, "MiB")
	finds(t, look(t, c, "pool-reflink", "default"), doctor.OK)
	finds(t, look(t, c, "pool-attach", "default"), doctor.OK)
	require.NoError(t, embedded.Close(t.Context()))

	// As after the driver was stopped.
	finds(t, look(t, c, "pool", "default"), doctor.Problem, "not mounted")
	finds(t, look(t, c, "pool-space", "default"), doctor.Skipped)

	c.WithoutDriver = true
	finds(t, look(t, c, "pool", "default"), doctor.OK, "mounts at its start")

	require.NoError(t, os.Remove(filepath.Join(directory, "pool.img")))
	require.NoError(t, os.Symlink("/dev/null", filepath.Join(directory, "pool.img")))
	mountAt(t, "scratch", filepath.Join(directory, "mounted"), "tmpfs", 0, "size=1m")
	finds(t, look(t, c, "pool", "default"), doctor.Problem, "pool.img")
}

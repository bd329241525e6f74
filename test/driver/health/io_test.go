package health_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// TestFailingImagesAreReported has the images of volumes fail below their
// filesystems. In a kernel of 6.18 no ext4 and no xfs counts errors of data: with
// polling alone it is known only what the filesystem makes of them.
func TestFailingImagesAreReported(t *testing.T) {
	errors := []health.Reason{health.IOErrors}

	contract(t, []illness{
		{
			name: "ext4 read errors that pass", served: true, evented: true, unpolled: true,
			options: []harness.Option{holding(2 * time.Second)}, recurs: true,
			strike: failReads, cure: release, node: errors,
		},
		{
			name: "xfs read errors that pass", served: true, evented: true, unpolled: true, volume: harness.Formatted("xfs"),
			options: []harness.Option{holding(2 * time.Second)}, recurs: true,
			strike: failReads, cure: release, node: errors,
		},
		{
			name: "btrfs read errors", served: true, evented: true, volume: harness.Formatted("btrfs"),
			strike: failReads, cure: releaseAndRestage, node: errors,
		},
		{
			name: "raw block read errors", served: true, evented: true, unpolled: true, volume: rawBlock(),
			strike: failReads, cure: releaseAndRestage, node: errors,
		},
		{
			name: "ext4 write errors", served: true, evented: true, volume: harness.Formatted("ext4", "errors=remount-ro"),
			strike: failWrites, cure: releaseAndRestage, node: errors, polledNode: []health.Reason{health.ReadOnlyRemount},
			beside: []health.Reason{health.FilesystemErrors, health.ReadOnlyRemount, health.DiskFailure},
		},
		{
			name: "ext4 metadata read errors", served: true, evented: true,
			strike: failMetadata, cure: releaseAndRestage,
			node: []health.Reason{health.IOErrors, health.FilesystemErrors}, polledNode: []health.Reason{health.FilesystemErrors},
			beside: []health.Reason{health.ReadOnlyRemount},
		},
		{
			// As in an overcommitted pool.
			name: "ext4 without space below", served: true, evented: true, unpolled: true,
			options: []harness.Option{holding(2 * time.Second)}, recurs: true,
			strike: failSpace, cure: release, node: errors,
		},
		{
			name: "xfs write errors", served: true, evented: true, volume: harness.Formatted("xfs"),
			strike: failWrites, cure: releaseAndRestage, polledNode: []health.Reason{health.DiskFailure},
			node: []health.Reason{health.IOErrors, health.DiskFailure}, beside: []health.Reason{health.ReadOnlyRemount},
		},
		{
			name: "btrfs write errors", served: true, evented: true, volume: harness.Formatted("btrfs"),
			strike: failWrites, cure: releaseAndRestage, node: errors,
			beside: []health.Reason{health.ReadOnlyRemount, health.DiskFailure},
		},
	})
}

// holding keeps a volume unhealthy for so long after its last I/O error.
func holding(hold time.Duration) harness.Option {
	return func(c *driver.Config) { c.Node.IOErrorHold = hold }
}

// failReads has a read of the volume fail.
func failReads(t *testing.T, p *sufferer) {
	t.Helper()

	path := harness.DataPath(p.claim)
	block := p.claim.Capability.GetBlock() != nil

	if !block {
		require.NoError(t, os.WriteFile(path, make([]byte, 4*harness.MiB), 0o600))
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())

	memory := aligned(t)
	p.recur = func() error { return readAnew(path, memory) }

	p.fail(t, faults.Fault{Ops: faults.Reads, Errno: unix.EIO})
	require.ErrorIs(t, p.recur(), unix.EIO)
}

// readAnew reads past the page cache, which may still have it.
func readAnew(path string, memory []byte) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer file.Close()

	// btrfs reads through the page cache nevertheless.
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}

	_, err = file.ReadAt(memory, harness.MiB)

	return err
}

// failWrites has the volume fail to keep what is written to it.
func failWrites(t *testing.T, p *sufferer) {
	t.Helper()

	file, err := os.Create(filepath.Join(p.claim.TargetPath, "data"))
	require.NoError(t, err)

	defer file.Close()

	p.fail(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})

	_, err = file.Write(make([]byte, harness.MiB))
	require.NoError(t, err)
	require.Error(t, file.Sync(), "fsync while writes of the image fail")

	// An application that goes on finds out that the journal fails, too.
	_ = harness.Syncfs(p.claim.TargetPath)
	require.Error(t, os.WriteFile(filepath.Join(p.claim.TargetPath, "second"), []byte("x"), 0o600), "a new file while writes of the image fail")
}

// failMetadata has the kernel not find out what is in a directory.
func failMetadata(t *testing.T, p *sufferer) {
	t.Helper()

	directory := filepath.Join(p.claim.TargetPath, "directory")
	require.NoError(t, os.Mkdir(directory, 0o700))
	// What was read once is in memory as long as the filesystem is mounted.
	restage(t, p)

	_, err := os.Stat(directory)
	require.NoError(t, err)
	p.fail(t, faults.Fault{Ops: faults.Reads, Errno: unix.EIO})

	_, err = os.Stat(filepath.Join(directory, "file"))
	require.ErrorIs(t, err, unix.EIO)
}

// failSpace has a write to a file fail for want of space in the pool, while the
// journal has what it needs.
func failSpace(t *testing.T, p *sufferer) {
	t.Helper()

	file, err := os.Create(harness.DataPath(p.claim))
	require.NoError(t, err)

	defer file.Close()

	block := make([]byte, 4096)
	_, err = file.Write(block)
	require.NoError(t, err)
	require.NoError(t, file.Sync())

	const fibmap = 1 // FIBMAP, asked for the first block

	at, err := unix.IoctlGetInt(int(file.Fd()), fibmap)
	require.NoError(t, err)
	require.Positive(t, at, "want: the file has a block")

	path := file.Name()
	p.recur = func() error { return writeAnew(path, block) }

	p.fail(t, faults.Fault{Ops: faults.Writes, Offset: int64(at) * 4096, Length: 4096, Errno: unix.ENOSPC})
	require.Error(t, p.recur(), "a write while the image's filesystem is full")
}

// writeAnew returns once the block is on the disk, or can't be.
func writeAnew(path string, block []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()

	if _, err := file.WriteAt(block, 0); err != nil {
		return err
	}

	return file.Sync()
}

func release(t *testing.T, p *sufferer) {
	t.Helper()
	p.served.Release(t)
}

func releaseAndRestage(t *testing.T, p *sufferer) {
	t.Helper()
	p.served.Release(t)
	restage(t, p)
}

// aligned is memory that direct I/O can read into.
func aligned(t *testing.T) []byte {
	t.Helper()

	memory, err := unix.Mmap(-1, 0, harness.MiB, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })

	return memory
}

package health_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// TestLostMountsAreReported unmounts volumes behind the driver's back, and has the
// kernel make them read-only.
func TestLostMountsAreReported(t *testing.T) {
	unmounted := []health.Reason{health.VolumeUnmounted}

	contract(t, []illness{
		{
			name: "staging unmounted", evented: true, node: unmounted,
			strike: func(t *testing.T, p *sufferer) { harness.Unmount(t, p.claim.StagingPath) },
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, p.Stage(t.Context(), p.claim))
			},
		},
		{
			name: "target unmounted", evented: true, node: unmounted,
			strike: func(t *testing.T, p *sufferer) { harness.Unmount(t, p.claim.TargetPath) },
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, p.Publish(t.Context(), p.claim))
			},
		},
		{
			name: "target of a raw block volume unmounted", evented: true, volume: rawBlock(), node: unmounted,
			strike: func(t *testing.T, p *sufferer) { harness.Unmount(t, p.claim.TargetPath) },
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, p.Publish(t.Context(), p.claim))
			},
		},
		{
			name: "ext4 read-only for an error", evented: true, volume: harness.Formatted("ext4", "errors=remount-ro"),
			strike: triggerError, cure: restage,
			node: []health.Reason{health.ReadOnlyRemount, health.FilesystemCorrupted},
		},
		{
			name: "remounted read-only by an administrator", evented: true, volume: harness.Formatted("xfs"), node: []health.Reason{health.ReadOnlyRemount},
			strike: func(t *testing.T, p *sufferer) {
				require.NoError(t, unix.Mount("", p.claim.StagingPath, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			},
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, unix.Mount("", p.claim.StagingPath, "", unix.MS_REMOUNT, ""))
			},
		},
	})
}

// TestUnhealthyFilesystemsAreReported: they shut down, have damage, and are full.
func TestUnhealthyFilesystemsAreReported(t *testing.T) {
	contract(t, []illness{
		{
			// The driver mounts it with errors=remount-ro.
			name: "ext4 error", evented: true, strike: triggerError, cure: restage,
			node: []health.Reason{health.ReadOnlyRemount, health.FilesystemCorrupted},
		},
		{
			name: "ext4 metadata corrupted", evented: true, strike: corruptInode, cure: repair,
			node:   []health.Reason{health.FilesystemCorrupted},
			beside: []health.Reason{health.FilesystemErrors, health.ReadOnlyRemount},
		},
		{
			name: "xfs shut down", evented: true, volume: harness.Formatted("xfs"), strike: goDown, cure: restage,
			node: []health.Reason{health.DiskFailure}, beside: []health.Reason{health.ReadOnlyRemount},
		},
		{
			name: "ext4 shut down", evented: true, strike: goDown, cure: restage,
			node: []health.Reason{health.DiskFailure}, beside: []health.Reason{health.ReadOnlyRemount, health.FilesystemErrors},
		},
		{name: "ext4 full", strike: useSpace, cure: empty, node: []health.Reason{health.OutOfCapacity}},
		{name: "xfs full", volume: harness.Formatted("xfs"), strike: useSpace, cure: empty, node: []health.Reason{health.OutOfCapacity}},
		{name: "btrfs full", volume: harness.Formatted("btrfs"), strike: useSpace, cure: empty, node: []health.Reason{health.OutOfCapacity}},
		{name: "inodes gone", volume: withFewInodes(), strike: useInodes, cure: empty, node: []health.Reason{health.InodesExhausted}},
	})
}

func withFewInodes() *csi.CreateVolumeRequest {
	few := harness.Formatted("ext4")
	few.Parameters = map[string]string{"mkfsOptions": "-N 256"}

	return few
}

// triggerError has the kernel treat the filesystem as if it had met damage, which
// it then calls EFSCORRUPTED.
func triggerError(t *testing.T, p *sufferer) {
	t.Helper()

	triggerErrorOn(t, p.device(t))
}

func triggerErrorOn(t *testing.T, device string) {
	t.Helper()

	trigger := "/sys/fs/ext4/" + filepath.Base(device) + "/trigger_fs_error"
	require.NoError(t, os.WriteFile(trigger, []byte("triggered by a test"), 0o200))
}

// corruptInode destroys the inode of a file that is not in memory, and has the
// kernel read it.
func corruptInode(t *testing.T, p *sufferer) {
	t.Helper()

	const files = 100

	for n := range files {
		require.NoError(t, os.WriteFile(filepath.Join(p.claim.TargetPath, strconv.Itoa(n)), []byte("x"), 0o600))
	}

	// The inode is in memory only as long as the filesystem stays mounted.
	harness.TakeDown(t, p.Driver, p.claim)

	victim := strconv.Itoa(files - 1)
	at := regexp.MustCompile(`at block (\d+), offset (0x[0-9a-f]+)`).FindStringSubmatch(
		harness.RunTool(t, 0, "debugfs", "-R", "imap /"+victim, p.image))
	require.Len(t, at, 3, "want: debugfs names block and offset of the inode")

	block, err := strconv.ParseInt(at[1], 10, 64)
	require.NoError(t, err)
	offset, err := strconv.ParseInt(at[2], 0, 64)
	require.NoError(t, err)

	restage(t, p)

	// Through the device, as a failing disk would have it: no process has written the
	// image.
	const times = 16 // where an inode has its times

	writeAt(t, p.device(t), block*4096+offset+times, bytes.Repeat([]byte{0xa5}, 8))

	_, err = os.Stat(filepath.Join(p.claim.TargetPath, victim))
	require.ErrorIs(t, err, unix.EBADMSG)
}

// repair is what an operator does about damage.
func repair(t *testing.T, p *sufferer) {
	t.Helper()
	harness.TakeDown(t, p.Driver, p.claim)
	harness.RunTool(t, 1, "e2fsck", "-fy", p.image)
	require.NoError(t, p.Attach(t.Context(), p.claim))
	require.NoError(t, p.Stage(t.Context(), p.claim))
	require.NoError(t, p.Publish(t.Context(), p.claim))
}

// goDown stops the filesystem, as it does by itself when its log fails.
func goDown(t *testing.T, p *sufferer) {
	t.Helper()

	require.NoError(t, harness.AtRoot(p.claim.StagingPath, harness.ShutDownFilesystem))
}

// useSpace takes all the space there is.
func useSpace(t *testing.T, p *sufferer) {
	t.Helper()

	file, err := os.Create(filepath.Join(p.claim.TargetPath, "filling"))
	require.NoError(t, err)

	defer file.Close()

	// In steps that become smaller: what is left does not go at once.
	for step := int64(16 * harness.MiB); step >= 4096; {
		info, err := file.Stat()
		require.NoError(t, err)

		if err := unix.Fallocate(int(file.Fd()), 0, info.Size(), step); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)

			step /= 2
		}
	}
}

// useInodes makes files until there can be no more.
func useInodes(t *testing.T, p *sufferer) {
	t.Helper()

	directory := filepath.Join(p.claim.TargetPath, "filling")
	require.NoError(t, os.Mkdir(directory, 0o700))

	for n := 0; ; n++ {
		err := os.WriteFile(filepath.Join(directory, strconv.Itoa(n)), nil, 0o600)
		if err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)

			return
		}
	}
}

// empty gives back what useSpace or useInodes have taken.
func empty(t *testing.T, p *sufferer) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(p.claim.TargetPath, "filling")))
	// btrfs has it back with its next commit, some 30 s later.
	require.NoError(t, harness.Syncfs(p.claim.TargetPath))
}

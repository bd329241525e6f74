package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// readOnlyKinds are those with a way of their own to be read-only.
func readOnlyKinds(mode csi.VolumeCapability_AccessMode_Mode) map[string]*csi.CreateVolumeRequest {
	ask := func(bytes int64, parameters map[string]string, capability *csi.VolumeCapability) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			CapacityRange: required(bytes), Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
		}
	}

	return map[string]*csi.CreateVolumeRequest{
		"ext4":      ask(64*mib, nil, csiclient.MountCapability(mode, "ext4")),
		"xfs":       ask(300*mib, nil, csiclient.MountCapability(mode, "xfs")),
		"btrfs":     ask(256*mib, nil, csiclient.MountCapability(mode, "btrfs")),
		"block":     ask(64*mib, nil, csiclient.BlockCapability(mode)),
		"directory": ask(64*mib, directoryBacked(), csiclient.MountCapability(mode, "")),
	}
}

func dataPath(claim *csiclient.Publication) string {
	if claim.Capability.GetBlock() != nil {
		return claim.TargetPath
	}

	return filepath.Join(claim.TargetPath, "data")
}

// requireReadOnly tries all that could change the volume.
func requireReadOnly(t *testing.T, claim *csiclient.Publication) {
	t.Helper()
	require.Error(t, writeThrough(dataPath(claim)), "write to a read-only publication")

	if claim.Capability.GetBlock() != nil {
		device, err := os.Open(claim.TargetPath)
		require.NoError(t, err)

		defer device.Close()

		flag, err := unix.IoctlGetInt(int(device.Fd()), unix.BLKROGET)
		require.NoError(t, err)
		require.NotZero(t, flag)

		return
	}

	require.ErrorIs(t, os.WriteFile(filepath.Join(claim.TargetPath, "new"), nil, 0o600), unix.EROFS)
	require.ErrorIs(t, os.Mkdir(filepath.Join(claim.TargetPath, "new"), 0o700), unix.EROFS)
	require.ErrorIs(t, os.Chmod(claim.TargetPath, 0o700), unix.EROFS)
}

// readBlock reads past the page cache of the device, which a second device of
// the same image does not share.
func readBlock(t *testing.T, path string) []byte {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()
	require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))

	block := make([]byte, 4096)
	_, err = file.ReadAt(block, 0)
	require.NoError(t, err)

	return block
}

// TestReadOnlyBesideWritable publishes one volume twice.
func TestReadOnlyBesideWritable(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range readOnlyKinds(multiWriter) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, request)
			bringUp(t, d, claim)
			require.NoError(t, writeThrough(dataPath(claim)))

			reader := another(claim, "reader")
			reader.ReadOnly = true
			require.NoError(t, d.Publish(t.Context(), reader))
			t.Cleanup(func() { require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), reader)) })

			for range 2 {
				requireReadOnly(t, reader)

				// The writer still is one, and the reader sees what it writes.
				text := make([]byte, 4096)
				copy(text, t.Name())

				file, err := os.OpenFile(dataPath(claim), os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = file.Write(text)
				require.NoError(t, err)
				require.NoError(t, file.Sync())
				require.NoError(t, file.Close())
				require.Equal(t, text, readBlock(t, dataPath(reader)))

				d.Restart(t)
			}

			require.NoError(t, d.Unpublish(t.Context(), claim))
			requireReadOnly(t, reader)
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoError(t, d.Unpublish(t.Context(), reader))
			require.NoError(t, writeThrough(dataPath(claim)))

			if claim.Capability.GetBlock() != nil {
				// The reader's device has gone with it.
				require.Len(t, devicesOf(t, d, claim.VolumeID), 1)
			}
		})
	}
}

// devicesOf are the loop devices that have the volume's image.
func devicesOf(t *testing.T, d *harness.Driver, id string) []loop.Attachment {
	t.Helper()

	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	require.NoError(t, err)

	var own []loop.Attachment

	for _, each := range attached {
		if each.BackingPath == imageOf(d, id) {
			own = append(own, each)
		}
	}

	return own
}

func TestReaderOnlyModes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range readOnlyKinds(readerOnly) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, request)
			bringUp(t, d, claim)
			requireReadOnly(t, claim)
			d.Restart(t)
			requireReadOnly(t, claim)
		})
	}
}

// TestAttachedForReading shows that what the controller attached for reading is
// not written through on the node, whatever NodePublish asks.
func TestAttachedForReading(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range readOnlyKinds(writer) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, request)
			claim.ReadOnly = true
			require.NoError(t, d.Attach(t.Context(), claim))
			require.NoError(t, d.Stage(t.Context(), claim))
			t.Cleanup(func() { takeDown(t, d, claim) })

			claim.ReadOnly = false
			require.NoError(t, d.Publish(t.Context(), claim))
			requireReadOnly(t, claim)
		})
	}
}

// TestReadOnlyFlag asks by mount flag instead.
func TestReadOnlyFlag(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "ext4", "ro", "noexec")},
	})
	bringUp(t, d, claim)
	requireReadOnly(t, claim)
}

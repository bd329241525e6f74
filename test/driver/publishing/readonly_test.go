package publishing_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// requireReadOnly tries all that could change the volume.
func requireReadOnly(t *testing.T, claim *csiclient.Publication) {
	t.Helper()
	require.Error(t, harness.WriteThrough(harness.DataPath(claim)), "write to a read-only publication")

	if claim.Capability.GetBlock() != nil {
		device, err := os.Open(claim.TargetPath)
		require.NoError(t, err)

		defer device.Close()

		flag, err := unix.IoctlGetInt(int(device.Fd()), unix.BLKROGET)
		require.NoError(t, err)
		require.NotZero(t, flag, "want: the device is read-only")

		return
	}

	require.ErrorIs(t, os.WriteFile(filepath.Join(claim.TargetPath, "new"), nil, 0o600), unix.EROFS)
	require.ErrorIs(t, os.Mkdir(filepath.Join(claim.TargetPath, "new"), 0o700), unix.EROFS)
	require.ErrorIs(t, os.Chmod(claim.TargetPath, 0o700), unix.EROFS)
}

// TestReadOnlyBesideWritable publishes one volume twice.
func TestReadOnlyBesideWritable(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range harness.KindRequests(harness.MultiWriter) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)
			require.NoError(t, harness.WriteThrough(harness.DataPath(claim)))

			reader := harness.AnotherTarget(claim, "reader")
			reader.ReadOnly = true
			require.NoError(t, d.Publish(t.Context(), reader))
			t.Cleanup(func() { require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), reader)) })

			for range 2 {
				requireReadOnly(t, reader)

				// The writer still is one, and the reader sees what it writes.
				text := make([]byte, 4096)
				copy(text, t.Name())

				file, err := os.OpenFile(harness.DataPath(claim), os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = file.Write(text)
				require.NoError(t, err)
				require.NoError(t, file.Sync())
				require.NoError(t, file.Close())
				require.Equal(t, text, harness.ReadBlock(t, harness.DataPath(reader)))

				d.Restart(t)
			}

			require.NoError(t, d.Unpublish(t.Context(), claim))
			requireReadOnly(t, reader)
			conformance.Shows(t, "NodePublishVolume", "readonly given", "nothing can be written through target_path")
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoError(t, d.Unpublish(t.Context(), reader))
			require.NoError(t, harness.WriteThrough(harness.DataPath(claim)))

			if claim.Capability.GetBlock() != nil {
				// The reader's device has gone with it.
				require.Len(t, harness.DevicesOf(t, d, claim.VolumeID), 1, "want: the reader's device has gone with it")
			}
		})
	}
}

// TestFailedReaderLeavesNoDevice: the second device of a raw block volume is attached, but its queue cannot be
// set, and the CO does not call again.
func TestFailedReaderLeavesNoDevice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.KindRequests(harness.MultiWriter)["block"])
	harness.BringUp(t, d, claim)

	attributes := filepath.Join(d.Pool(), "attributes", claim.VolumeID+".json")
	harness.WriteFile(t, attributes, "no JSON")

	reader := harness.AnotherTarget(claim, "reader")
	reader.ReadOnly = true
	require.Error(t, d.Publish(t.Context(), reader), "want: its mutable parameters cannot be read")
	require.Len(t, harness.DevicesOf(t, d, claim.VolumeID), 1, "want: the writer's device alone is left")
	require.NoError(t, os.Remove(attributes))

	require.NoError(t, harness.WriteThrough(harness.DataPath(claim)))
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)
}

func TestReaderOnlyModesTakeNoWrites(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range harness.KindRequests(harness.ReaderOnly) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)
			requireReadOnly(t, claim)
			d.Restart(t)
			requireReadOnly(t, claim)
		})
	}
}

// TestReadOnlyAttachmentIsNotWritten through on the node, whatever NodePublish asks.
func TestReadOnlyAttachmentIsNotWritten(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range harness.KindRequests(harness.Writer) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, request)
			claim.ReadOnly = true
			require.NoError(t, d.Attach(t.Context(), claim))
			require.NoError(t, d.Stage(t.Context(), claim))
			t.Cleanup(func() { harness.TakeDown(t, d, claim) })

			claim.ReadOnly = false
			require.NoError(t, d.Publish(t.Context(), claim))
			requireReadOnly(t, claim)
			conformance.Shows(t, "ControllerPublishVolume", "readonly given", "nothing is written on the node")
		})
	}
}

func TestReadOnlyMountFlagIsRespected(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4", "ro", "noexec")},
	})
	harness.BringUp(t, d, claim)
	requireReadOnly(t, claim)
}

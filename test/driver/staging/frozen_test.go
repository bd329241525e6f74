package staging_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// freeze freezes a published filesystem as a pod does that ends before it thaws it.
func freeze(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	attached := harness.DevicesOf(t, d, claim.VolumeID)
	require.Len(t, attached, 1, "want: the volume has one device")

	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(claim.TargetPath))
	require.NoError(t, err)
	require.Len(t, mounts, 1, "want: the target has one mount")
	require.NoError(t, harness.AtRoot(claim.TargetPath, filesystem.Freeze))
	t.Cleanup(func() {
		// Should the test have failed, no process waits for ever, and no device is left.
		if len(harness.DevicesOf(t, d, claim.VolumeID)) == 0 {
			return
		}

		tree, err := mount.Mount(attached[0].Path, mounts[0].FSType, mount.Options{})
		if err != nil {
			return
		}
		defer tree.Close()

		root, err := tree.OpenRoot()
		require.NoError(t, err)

		_ = filesystem.Thaw(root)

		require.NoError(t, root.Close())
	})
}

// TestLeakedFreezeEndsWithTheStaging: it freezes a volume and leaves it so: the kernel keeps a
// frozen filesystem, and its device, beyond its last mount.
func TestLeakedFreezeEndsWithTheStaging(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range filesystem.Names() {
		for name, leave := range map[string]func(t *testing.T, d *harness.Driver, claim *csiclient.Publication){
			"unstaged": func(*testing.T, *harness.Driver, *csiclient.Publication) {},
			"unmounted by another program": func(t *testing.T, _ *harness.Driver, claim *csiclient.Publication) {
				t.Helper()
				harness.Unmount(t, claim.StagingPath)
			},
			"unmounted by another program before a restart": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
				t.Helper()
				harness.Unmount(t, claim.StagingPath)
				d.Restart(t)
			},
			"left by a release without the record of its device": func(
				t *testing.T, d *harness.Driver, claim *csiclient.Publication,
			) {
				t.Helper()
				harness.Unmount(t, claim.StagingPath)
				harness.EditRecord(t, d, "uses", claim.VolumeID, func(record map[string]any) { delete(record, "device") })
				require.NoError(t, d.Stage(t.Context(), claim))
			},
			"staged again": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
				t.Helper()
				harness.Unmount(t, claim.StagingPath)
				require.NoError(t, d.Stage(t.Context(), claim))
				harness.RequireThawed(t, claim.StagingPath)
			},
		} {
			t.Run(fsType+" "+name, func(t *testing.T) {
				t.Parallel()

				d := harness.Start(t)
				claim := harness.NewVolume(t, d, harness.Formatted(fsType))
				harness.BringUp(t, d, claim)
				harness.WriteBlock(t, claim)
				freeze(t, d, claim)
				require.NoError(t, d.Unpublish(t.Context(), claim))
				leave(t, d, claim)

				began := time.Now()

				require.NoError(t, d.Unstage(t.Context(), claim))
				require.Less(t, time.Since(began), await.Limit, "want: the frozen volume is unstaged at once")
				require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
				require.NoError(t, d.Detach(t.Context(), claim))

				harness.BringUp(t, d, claim)
				harness.RequireBlock(t, claim)
				harness.TakeDown(t, d, claim)
				harness.DeleteVolume(t, d, claim.VolumeID)
			})
		}
	}
}

// TestUnstageWaitsForTheDevice has another program keep the device: while it does, the volume is in
// use.
func TestUnstageWaitsForTheDevice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, between := range map[string]func(*testing.T, *harness.Driver){
		"at once":         func(*testing.T, *harness.Driver) {},
		"after a restart": func(t *testing.T, d *harness.Driver) { d.Restart(t) },
		"without records": func(*testing.T, *harness.Driver) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
			harness.AttachAndStage(t, d, claim)

			if name == "without records" {
				d.Stop()
				require.NoError(t, os.RemoveAll(d.Config.StateDir))
				d.Leaves("the volume whose record was removed", leftover.Entry)
				d.Restart(t)
			}

			device, err := os.Open(harness.DevicesOf(t, d, claim.VolumeID)[0].Path)
			require.NoError(t, err)

			defer device.Close()

			require.Error(t, d.Unstage(t.Context(), claim), "want: a device in use is not unstaged")
			between(t, d)

			if name != "without records" {
				harness.RequireCode(t, d.Detach(t.Context(), claim), codes.FailedPrecondition, claim.VolumeID)
			}

			ended := make(chan error, 1)

			go func() { ended <- d.Unstage(context.WithoutCancel(t.Context()), claim) }()

			select {
			case err := <-ended:
				require.Fail(t, "the device is attached", "NodeUnstageVolume answered %v", err)
			case <-time.After(200 * time.Millisecond):
			}

			require.NoError(t, device.Close())
			require.NoError(t, await.Receive(t, ended, "the volume to be unstaged"))
			require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
		})
	}
}

// TestAFrozenVolumeIsNotExpanded: the growth would wait for the thaw, and all other calls for it.
func TestAFrozenVolumeIsNotExpanded(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.Formatted(fsType))
			harness.BringUp(t, d, claim)
			freeze(t, d, claim)

			wanted := harness.RequiredBytes(2 * harness.SizeFor(fsType))
			_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: claim.VolumeID, CapacityRange: wanted,
			})
			require.NoError(t, err)

			_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: wanted,
			})
			harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, "frozen", "fsfreeze")
			harness.RequireFrozen(t, claim.StagingPath)
			harness.TakeDown(t, d, claim)

			harness.BringUp(t, d, claim)
			require.Greater(t, filesystemBytes(t, claim.TargetPath), harness.SizeFor(fsType), "want: the filesystem has grown after the thaw")
			harness.TakeDown(t, d, claim)
		})
	}
}

// TestAFrozenVolumeIsNotGivenToAGroup: the change of the first file would wait for the thaw.
func TestAFrozenVolumeIsNotGivenToAGroup(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.WithMountGroup)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
	})
	harness.BringUp(t, d, claim)
	freeze(t, d, claim)

	second := harness.AnotherTarget(claim, "second")
	second.Capability = csiclient.MountCapability(harness.MultiWriter, "")
	second.Capability.GetMount().VolumeMountGroup = "2000"
	harness.RequireCode(t, d.Publish(t.Context(), second), codes.FailedPrecondition, claim.VolumeID, "frozen", "fsfreeze")

	require.NoError(t, harness.Thaw(claim.TargetPath))
	require.NoError(t, d.Publish(t.Context(), second))
	harness.RequireOwned(t, second.TargetPath, 2000, 0o2775)
	require.NoError(t, d.Unpublish(t.Context(), second))
}

package direct_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// readOnlyDevice is the one of the volume's two devices that can't be written.
func readOnlyDevice(t *testing.T, d *harness.Driver, claim *csiclient.Publication) loop.Status {
	t.Helper()

	attached := harness.DevicesOf(t, d, claim.VolumeID)
	require.Len(t, attached, 2, "want: the volume has a device for each mode")

	for _, each := range attached {
		if each.ReadOnly {
			return statusOf(t, each.Number)
		}
	}

	require.Fail(t, "none of its devices is read-only")

	return loop.Status{}
}

// assignedReadOnly requires that a guest reads so in both files, and could not
// write if it tried.
func assignedReadOnly(t *testing.T, d *harness.Driver, claim *csiclient.Publication, device loop.Status, options ...string) {
	t.Helper()

	harness.RequireFile(t, filepath.Join(claim.TargetPath, "csiPlugin.json"), fmt.Sprintf(
		`{"device":%q,"volumeType":"block","targetPath":%q,"fsType":"ext4","options":%q}`,
		device.Path, claim.TargetPath, strings.Join(options, ",")))
	harness.RequireFile(t, harness.MountInfoPath(d, claim), fmt.Sprintf(
		`{"volume-type":"directvol","device":%q,"fstype":"ext4","options":[%s]}`,
		device.Path, `"`+strings.Join(options, `","`)+`"`))

	reported := listed(t, d, claim)
	require.True(t, reported.ReadOnly, "want: the assignment is read-only")
	require.Equal(t, device.Path, reported.Device)
	require.Equal(t, options, reported.Options)

	require.True(t, device.ReadOnly, "want: the device is read-only")
	require.ErrorIs(t, writeDevice(device.Path), unix.EPERM)
	require.Error(t, mountable(device.Path), "a mount of the assigned device")

	vm := boot(t, device.Path, "ext4", "ro")
	require.ErrorIs(t, os.WriteFile(vm.path("new"), nil, 0o600), unix.EROFS)
	vm.shutDown()
}

// mountable tries to mount the device for writing.
func mountable(device string) error {
	options := unix.MS_NODEV
	target, err := os.MkdirTemp("", "mountable")
	if err != nil {
		return err
	}
	defer os.Remove(target)

	if err := unix.Mount(device, target, "ext4", uintptr(options), ""); err != nil {
		return err
	}

	return unix.Unmount(target, 0)
}

// writeDevice writes the beginning of a device to it, which changes nothing.
func writeDevice(path string) error {
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer device.Close()

	block := make([]byte, 4096)
	if _, err := device.ReadAt(block, 0); err != nil {
		return err
	}

	_, err = device.WriteAt(block, 0)

	return err
}

// TestDirectReadOnlyPublicationIsRefused if the staging is writable.
func TestDirectReadOnlyPublicationIsRefused(t *testing.T) {
	d := directDriver(t)
	claim := harness.NewVolume(t, d, harness.DirectRequest("ext4", "rw", "noatime"))
	harness.AttachAndStage(t, d, claim)

	written := deviceOf(t, d, claim)
	claim.ReadOnly = true

	for range 2 {
		require.NoError(t, d.Publish(t.Context(), claim))
		assignedReadOnly(t, d, claim, readOnlyDevice(t, d, claim), "noatime", "ro")
		d.Restart(t)
	}

	run(t, d, claim).SetUsage(t, smallUsage())
	guestSays(t, d, claim, smallUsage())

	claim.ReadOnly = false
	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.AlreadyExists)

	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.Equal(t, written.Path, deviceOf(t, d, claim).Path)
	require.NoError(t, d.Publish(t.Context(), claim))
	require.Equal(t, written.Path, listed(t, d, claim).Device)
	require.False(t, listed(t, d, claim).ReadOnly, "want: the assignment is writable")
	require.NoError(t, writeDevice(written.Path))
}

// TestDirectReaderHasOneDevice: it is staged for reading.
func TestDirectReaderHasOneDevice(t *testing.T) {
	d := directDriver(t)

	for name, prepare := range map[string]func(claim *csiclient.Publication){
		"by mode": func(claim *csiclient.Publication) {
			claim.Capability = csiclient.MountCapability(harness.ReaderOnly, "ext4")
		},
		// Only the attachment says so.
		"by attachment": func(claim *csiclient.Publication) { claim.ReadOnly = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			request := harness.DirectRequest("ext4")
			request.VolumeCapabilities = append(request.VolumeCapabilities, csiclient.MountCapability(harness.ReaderOnly, "ext4"))
			claim := harness.NewVolume(t, d, request)
			harness.AttachAndStage(t, d, claim)
			require.NoError(t, d.Publish(t.Context(), claim))

			vm := boot(t, deviceOf(t, d, claim).Path, "ext4")
			harness.WriteFile(t, vm.path("data"), "precious")
			vm.crash(t)
			harness.TakeDown(t, d, claim)

			prepare(claim)
			require.NoError(t, d.Attach(t.Context(), claim))
			require.NoError(t, d.Stage(t.Context(), claim))

			claim.ReadOnly = false

			for range 2 {
				require.NoError(t, d.Publish(t.Context(), claim))
				assignedReadOnly(t, d, claim, deviceOf(t, d, claim), "ro")
			}
		})
	}
}

func TestDirectMountGroupIsLeftToTheGuest(t *testing.T) {
	d := directDriver(t, harness.WithMountGroup)
	claim := harness.NewVolume(t, d, harness.DirectRequest("ext4"))
	claim.Capability = csiclient.MountCapability(harness.Writer, "ext4", "noatime")
	claim.Capability.GetMount().VolumeMountGroup = "2000"
	harness.AttachAndStage(t, d, claim)
	require.NoError(t, d.Publish(t.Context(), claim))

	device := deviceOf(t, d, claim).Path
	harness.RequireFile(t, harness.MountInfoPath(d, claim), fmt.Sprintf(`{"volume-type":"directvol","device":%q,"fstype":"ext4",`+
		`"metadata":{"fsGroup":"2000","fsGroupChangePolicy":"OnRootMismatch"},"options":["noatime"]}`, device))
	harness.RequireFile(t, filepath.Join(claim.TargetPath, "csiPlugin.json"), fmt.Sprintf(
		`{"device":%q,"volumeType":"block","targetPath":%q,"fsType":"ext4","options":"noatime"}`, device, claim.TargetPath))

	// The sealed tmpfs stays root's.
	harness.RequireOwned(t, claim.TargetPath, 0, 0o700)

	vm := boot(t, device, "ext4")
	harness.RequireOwned(t, vm.path(""), 0, 0o755)
	vm.shutDown()
}

// TestDirectHostPathsNameDevices by the paths that they have on the host.
func TestDirectHostPathsNameDevices(t *testing.T) {
	d := directDriver(t, func(c *driver.Config) { c.Node.Direct.HostPaths = []string{"/dev=/host/dev"} })
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))

	shim := run(t, d, claim)
	shim.SetUsage(t, smallUsage())
	guestSays(t, d, claim, smallUsage())

	reported := "/host" + deviceOf(t, d, claim).Path
	require.Equal(t, reported, listed(t, d, claim).Device)
	harness.RequireFile(t, harness.MountInfoPath(d, claim), fmt.Sprintf(`{"volume-type":"directvol","device":%q,"fstype":"ext4"}`, reported))
	harness.RequireFile(t, filepath.Join(claim.TargetPath, "csiPlugin.json"), fmt.Sprintf(
		`{"device":%q,"volumeType":"block","targetPath":%q,"fsType":"ext4"}`, reported, claim.TargetPath))
	require.Contains(t, shim.Requests()[0].URI, "path=%2Fhost%2Fdev%2Floop")

	// A guest knows its device by the name in its file, whatever others will be.
	d.Restart(t, func(c *driver.Config) { c.Node.Direct.HostPaths = nil })
	taken(t, d, claim, sandbox)
	guestSays(t, d, claim, smallUsage())
	require.NoError(t, d.Publish(t.Context(), claim))
	taken(t, d, claim, sandbox)
	guestSays(t, d, claim, smallUsage())
}

// TestWhatTwoKernelsWouldDestroyIsRefused, and what cannot be assigned to a guest.
func TestWhatTwoKernelsWouldDestroyIsRefused(t *testing.T) {
	d := directDriver(t)
	fresh := harness.NewVolume(t, d, harness.DirectRequest("ext4"))
	require.NoError(t, d.Attach(t.Context(), fresh))
	t.Cleanup(func() { harness.TakeDown(t, d, fresh) })

	inUse := harness.NewVolume(t, d, func() *csi.CreateVolumeRequest {
		request := harness.DirectRequest("ext4")
		request.Name = "in use"

		return request
	}())
	harness.AttachAndStage(t, d, inUse)

	for name, capability := range map[string]*csi.VolumeCapability{
		"SINGLE_NODE_MULTI_WRITER": csiclient.MountCapability(harness.MultiWriter, "ext4"),
		"MULTI_NODE_READER_ONLY":   csiclient.MountCapability(harness.NodesRead, "ext4"),
		"MULTI_NODE_SINGLE_WRITER": csiclient.MountCapability(harness.NodesOne, "ext4"),
		"MULTI_NODE_MULTI_WRITER":  csiclient.MountCapability(harness.NodesWrite, "ext4"),
		"block":                    csiclient.BlockCapability(harness.Writer),
	} {
		staged := *fresh
		staged.Capability = capability
		harness.RequireCode(t, d.Stage(t.Context(), &staged), codes.FailedPrecondition, name)

		published := *inUse
		published.Capability = capability
		harness.RequireCode(t, d.Publish(t.Context(), &published), codes.FailedPrecondition, "volume_capability")
	}

	directory := *fresh
	directory.VolumeContext = maps.Clone(fresh.VolumeContext)
	directory.VolumeContext["backing"] = "directory"
	harness.RequireCode(t, d.Stage(t.Context(), &directory), codes.InvalidArgument, "directory", "backing=image")
	harness.RequireCode(t, d.Publish(t.Context(), fresh), codes.FailedPrecondition, "NodeStageVolume")

	inline := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "directAssign": "true"})
	harness.RequireCode(t, d.Publish(t.Context(), inline), codes.InvalidArgument, "directAssign")

	require.Empty(t, harness.DevicesOf(t, d, fresh.VolumeID), "want: a refused volume has no device")
	require.NoDirExists(t, d.Config.Node.Direct.Root)
	require.NoDirExists(t, inUse.TargetPath)
}

// TestDirectIsForOneTarget: it has a guest, beside which there is no second one.
func TestDirectIsForOneTarget(t *testing.T) {
	d := directDriver(t)

	for name, mode := range map[string]csi.VolumeCapability_AccessMode_Mode{
		"writer": harness.Writer, "single writer": harness.SingleWriter, "reader": harness.ReaderOnly,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			request := harness.DirectRequest("ext4")
			request.VolumeCapabilities = append(request.VolumeCapabilities, csiclient.MountCapability(mode, "ext4"))
			claim := harness.NewVolume(t, d, request)

			if mode == harness.ReaderOnly {
				// Its filesystem must exist.
				harness.AttachAndStage(t, d, claim)
				harness.TakeDown(t, d, claim)
			}

			claim.Capability = csiclient.MountCapability(mode, "ext4")
			harness.BringUp(t, d, claim)
			take(t, d, claim, claim.VolumeID)

			second := harness.AnotherTarget(claim, "second")
			t.Cleanup(func() { require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), second)) })
			harness.RequireCode(t, d.Publish(t.Context(), second), codes.FailedPrecondition, claim.TargetPath)

			second.ReadOnly = true
			harness.RequireCode(t, d.Publish(t.Context(), second), codes.FailedPrecondition, claim.TargetPath)
			require.NoDirExists(t, second.TargetPath)
			require.NoDirExists(t, harness.DirectEntry(d, second))

			harness.RequireCode(t, d.Stage(t.Context(), ordinary(claim)), codes.AlreadyExists, "directAssign")
			harness.RequireCode(t, d.Unstage(t.Context(), claim), codes.FailedPrecondition, claim.TargetPath)

			elsewhere := *claim
			elsewhere.StagingPath += "-elsewhere"
			harness.RequireCode(t, d.Stage(t.Context(), &elsewhere), codes.FailedPrecondition, claim.StagingPath)

			_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
			harness.RequireCode(t, err, codes.FailedPrecondition)

			taken(t, d, claim, claim.VolumeID)
			require.NoError(t, d.Unpublish(t.Context(), claim))

			// Staged, it is still a direct one.
			harness.RequireCode(t, d.Stage(t.Context(), ordinary(claim)), codes.AlreadyExists, "directAssign")

			second.ReadOnly = false
			require.NoError(t, d.Publish(t.Context(), second))
			require.NoDirExists(t, harness.DirectEntry(d, claim))
			require.FileExists(t, harness.MountInfoPath(d, second))
		})
	}
}

// TestMountedVolumeIsNotAssigned to a guest.
func TestMountedVolumeIsNotAssigned(t *testing.T) {
	d := directDriver(t)
	claim := harness.NewVolume(t, d, harness.Formatted("ext4"))
	harness.BringUp(t, d, claim)

	stolen := *claim
	stolen.VolumeContext = maps.Clone(claim.VolumeContext)
	stolen.VolumeContext["directAssign"] = "true"
	harness.RequireCode(t, d.Stage(t.Context(), &stolen), codes.AlreadyExists, "directAssign")
	require.NoError(t, d.Publish(t.Context(), &stolen), "it is what was staged that is published")
	require.NoDirExists(t, d.Config.Node.Direct.Root)
	require.Nil(t, listed(t, d, claim), "the driver lists the volume among the assigned")
}

// TestDirectIsNotUnpublishedByOthers: by another volume's id, and from elsewhere.
func TestDirectIsNotUnpublishedByOthers(t *testing.T) {
	d := directDriver(t)
	claim, _ := published(t, d)
	before := harness.Tree(t, d.Config.Node.Direct.Root, claim.TargetPath)

	request := harness.DirectRequest("ext4")
	request.Name = "other"
	other := harness.NewVolume(t, d, request)

	for _, stagedToo := range []bool{false, true} {
		if stagedToo {
			harness.AttachAndStage(t, d, other)
		}

		mistaken := *other
		mistaken.TargetPath = claim.TargetPath
		require.NoError(t, d.Unpublish(t.Context(), &mistaken))
		require.NoError(t, d.Unpublish(t.Context(), harness.AnotherTarget(claim, "elsewhere")))
		require.Equal(t, before, harness.Tree(t, d.Config.Node.Direct.Root, claim.TargetPath))
		guestSays(t, d, claim, smallUsage())
	}

	mistaken := *other
	mistaken.TargetPath = claim.TargetPath
	harness.RequireCode(t, d.Publish(t.Context(), &mistaken), codes.FailedPrecondition, "not volume "+other.VolumeID)
	require.Equal(t, before, harness.Tree(t, d.Config.Node.Direct.Root, claim.TargetPath))
}

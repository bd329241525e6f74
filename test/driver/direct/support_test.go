package direct_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/guest"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// sandbox is the id of the one that has a test's volume.
const sandbox = "8a1f02c4"

// directClaim is the use of a direct ext4 that is staged.
func directClaim(t *testing.T, d *harness.Driver) *csiclient.Publication {
	t.Helper()

	claim := harness.NewVolume(t, d, harness.DirectRequest("ext4"))
	harness.AttachAndStage(t, d, claim)

	return claim
}

// take has a sandbox take the volume, as Kata's runtime says it.
func take(t *testing.T, d *harness.Driver, claim *csiclient.Publication, id string) {
	t.Helper()
	harness.WriteFile(t, filepath.Join(harness.DirectEntry(d, claim), id), "")
}

// taken says whether the sandbox has it still, as far as the runtime knows.
func taken(t *testing.T, d *harness.Driver, claim *csiclient.Publication, id string) {
	t.Helper()
	require.FileExists(t, filepath.Join(harness.DirectEntry(d, claim), id))
}

// run has a sandbox take the volume, and a shim answer for it.
func run(t *testing.T, d *harness.Driver, claim *csiclient.Publication) *guest.Shim {
	t.Helper()
	take(t, d, claim, sandbox)

	return guest.StartShim(t, d.Config.Node.Direct.Guest.ShimRoots[0], sandbox)
}

// deviceOf is the one loop device that the volume has.
func deviceOf(t *testing.T, d *harness.Driver, claim *csiclient.Publication) loop.Status {
	t.Helper()

	attached := harness.DevicesOf(t, d, claim.VolumeID)
	require.Len(t, attached, 1, "want: the volume has one device")

	return statusOf(t, attached[0].Number)
}

func statusOf(t *testing.T, number int) loop.Status {
	t.Helper()

	status, attached, err := loop.NewLoops(loop.LoopsOptions{}).Status(number)
	require.NoError(t, err)
	require.True(t, attached, "want: the image is attached")

	return status
}

// machine is a guest that has mounted its volume: where only it sees it.
type machine struct {
	tree *mount.Detached
	root *os.File
}

// boot mounts the device as the guest does. It is shut down with the test.
func boot(t *testing.T, device, fsType string, flags ...string) *machine {
	t.Helper()

	options, err := mount.ParseFlags(flags)
	require.NoError(t, err)

	tree, err := mount.Mount(device, fsType, options)
	require.NoError(t, err)

	root, err := tree.OpenRoot()
	if err != nil {
		tree.Close()
	}

	require.NoError(t, err)

	m := &machine{tree: tree, root: root}
	t.Cleanup(m.shutDown)

	return m
}

func (m *machine) path(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", m.root.Fd(), name)
}

func (m *machine) usage(t *testing.T) mount.Usage {
	t.Helper()

	usage, err := mount.UsageOf(m.root)
	require.NoError(t, err)

	return usage
}

// shutDown unmounts in order; a second time it does nothing.
func (m *machine) shutDown() {
	if m.root == nil {
		return
	}

	_ = m.root.Close() // nothing was written through it
	m.root = nil
	m.tree.Close()
}

// crash has the guest end with nothing written back.
func (m *machine) crash(t *testing.T) {
	t.Helper()
	require.NoError(t, harness.ShutDownFilesystem(m.root))
	m.shutDown()
}

// ordinary is the same claim of a volume that is mounted on the host.
func ordinary(claim *csiclient.Publication) *csiclient.Publication {
	hosted := *claim
	hosted.VolumeContext = maps.Clone(claim.VolumeContext)
	delete(hosted.VolumeContext, "directAssign")

	return &hosted
}

// listed is what is said of the volume that is assigned, nil where none is.
func listed(t *testing.T, d *harness.Driver, claim *csiclient.Publication) *kata.AssignedVolume {
	t.Helper()

	all, err := kata.List(t.Context(), d.Conn())
	require.NoError(t, err)

	for _, each := range all {
		if each.VolumeID == claim.VolumeID {
			return &each
		}
	}

	return nil
}

// stagedUsage requires that staging paths report the device's size and nothing more,
// and that nothing is the matter.
func stagedUsage(t *testing.T, d *harness.Driver, claim *csiclient.Publication, bytes int64) {
	t.Helper()

	usage, sick, message := askUsage(t, d, claim.VolumeID, claim.StagingPath)
	require.Equal(t, mount.Usage{Bytes: mount.Amount{Total: bytes}}, usage)
	require.False(t, sick, message)
}

// guestSays requires that the usage is what the guest says, and that nothing is the
// matter with the volume.
func guestSays(t *testing.T, d *harness.Driver, claim *csiclient.Publication, want mount.Usage) {
	t.Helper()

	want.Filesystem = [2]int32{}

	for _, path := range []string{claim.TargetPath, claim.StagingPath} {
		usage, sick, message := askUsage(t, d, claim.VolumeID, path)
		require.Equal(t, want, usage)
		require.False(t, sick, message)
	}

	awaitReasons(t, d, claim)
}

// guestIsSilent requires that only the device's size is reported, with the reason.
func guestIsSilent(t *testing.T, d *harness.Driver, claim *csiclient.Publication, bytes int64) {
	t.Helper()

	usage, sick, message := askUsage(t, d, claim.VolumeID, claim.TargetPath)
	require.Equal(t, mount.Usage{Bytes: mount.Amount{Total: bytes}}, usage)
	require.True(t, sick, "want: the volume is reported as abnormal")
	require.Contains(t, message, string(health.GuestStatsUnavailable))
	awaitReasons(t, d, claim, health.GuestStatsUnavailable)
}

// awaitReasons waits until exactly these are reported for the volume.
func awaitReasons(t *testing.T, d *harness.Driver, claim *csiclient.Publication, want ...health.Reason) {
	t.Helper()

	var found []health.Reason

	require.Eventually(t, func() bool {
		found = harness.ReasonsOf(t, d, claim.VolumeID)

		return fmt.Sprint(found) == fmt.Sprint(want)
	}, await.Limit, harness.Often, "%v, not %v", &found, want)
}

// askUsage is NodeGetVolumeStats, with the condition in the older dialect.
func askUsage(t *testing.T, d *harness.Driver, id, path string) (usage mount.Usage, sick bool, message string) {
	t.Helper()

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
	require.NoError(t, err)

	for _, each := range answer.GetUsage() {
		amount := mount.Amount{Total: each.GetTotal(), Used: each.GetUsed(), Available: each.GetAvailable()}

		switch each.GetUnit() {
		case csi.VolumeUsage_BYTES:
			usage.Bytes = amount
		case csi.VolumeUsage_INODES:
			usage.Inodes = amount
		case csi.VolumeUsage_UNKNOWN:
			require.Fail(t, "a usage of no unit", "%v", each)
		}
	}

	sick, message = harness.ConditionIn(t, answer)

	return usage, sick, message
}

// expandController and expandNode make the volume larger, and its user know.
func expandController(t *testing.T, d *harness.Driver, claim *csiclient.Publication, bytes int64) {
	t.Helper()

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(bytes), VolumeCapability: claim.Capability,
	})
	require.NoError(t, err)
}

func expandNode(t *testing.T, d *harness.Driver, claim *csiclient.Publication, path string, bytes int64) error {
	t.Helper()

	return expandNodeWith(t.Context(), d.Client, claim, path, bytes)
}

func expandNodeWith(ctx context.Context, o *csiclient.Client, claim *csiclient.Publication, path string, bytes int64) error {
	answer, err := o.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: path, StagingTargetPath: claim.StagingPath,
		CapacityRange: harness.RequiredBytes(bytes), VolumeCapability: claim.Capability,
	})
	if err == nil && answer.GetCapacityBytes() != bytes {
		return fmt.Errorf("%w: %d bytes, not %d", errOtherSize, answer.GetCapacityBytes(), bytes)
	}

	return err
}

var errOtherSize = errors.New("the volume has another size")

// directDriver is for a test that runs beside others.
func directDriver(t *testing.T, options ...harness.Option) *harness.Driver {
	t.Helper()
	namespace.NeedRoot(t)
	t.Parallel()

	return harness.Start(t, options...)
}

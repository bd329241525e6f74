package publishing_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// keep makes a publication persistent.
func keep(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, persistent.Set(t.Context(), d.Conn(),
		persistent.Request{VolumeID: claim.VolumeID, TargetPath: claim.TargetPath, Persistent: true}))
}

// newPersistent returns a volume that each start mounts.
func newPersistent(t *testing.T, d *harness.Driver, name string, capability *csi.VolumeCapability) *csiclient.Publication {
	t.Helper()

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: harness.RequiredBytes(300 * harness.MiB), VolumeCapabilities: []*csi.VolumeCapability{capability},
	})
	harness.BringUp(t, d, claim)
	harness.WriteBlock(t, claim)
	keep(t, d, claim)

	return claim
}

// TestPersistentMountsComeBack after a reboot, until they are unpublished.
func TestPersistentMountsComeBack(t *testing.T) {
	harness.RunEachKind(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
		keep(t, d, claim)
		require.Equal(t, []string{claim.TargetPath}, harness.ReportOf(t, d, claim.VolumeID).Persistent)

		// The second one after a start that has made them.
		for range 2 {
			reboot(t, d)
			harness.RequireBlock(t, claim)
			harness.AwaitReason(t, d, claim.VolumeID, "")
			require.NoError(t, harness.VolumeStats(t, d, claim, claim.TargetPath))
		}

		// What is mounted stays as it is.
		before := harness.MountOptions(t, claim.TargetPath)
		d.Restart(t)
		require.Equal(t, before, harness.MountOptions(t, claim.TargetPath))
		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		harness.RequireBlock(t, claim)

		require.NoError(t, d.Unpublish(t.Context(), claim))
		reboot(t, d)
		harness.RequireNothingMounted(t, d.Config.KubeletDir)
		require.NoError(t, d.Detach(t.Context(), claim))
		harness.DeleteVolume(t, d, claim.VolumeID)
	})
}

// TestPersistentMountWithoutItsParent, which is in memory on some machines, makes it.
func TestPersistentMountWithoutItsParent(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newPersistent(t, d, "data", csiclient.MountCapability(harness.Writer, "ext4"))

	rebootWith(t, d, func() {
		require.NoError(t, os.RemoveAll(filepath.Dir(claim.StagingPath)))
		require.NoError(t, os.RemoveAll(filepath.Dir(claim.TargetPath)))
	})
	harness.RequireBlock(t, claim)
	harness.TakeDown(t, d, claim)
}

func hideImage(_ *testing.T, d *harness.Driver, claim *csiclient.Publication) error {
	return os.Rename(harness.ImageOf(d, claim.VolumeID), filepath.Join(d.Pool(), "away"))
}

func showImage(_ *testing.T, d *harness.Driver, claim *csiclient.Publication) error {
	return os.Rename(filepath.Join(d.Pool(), "away"), harness.ImageOf(d, claim.VolumeID))
}

// TestPersistentMountThatFails is a condition of its volume, which names the cause, and keeps neither another
// volume nor the driver from its start. The volume cannot be deleted meanwhile.
func TestPersistentMountThatFails(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		breaks, mends func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) error
		says          string
		reasons       []health.Reason
		capability    *csi.VolumeCapability
	}{
		"files are in the way": {
			breaks: func(_ *testing.T, _ *harness.Driver, claim *csiclient.Publication) error {
				return os.WriteFile(filepath.Join(claim.TargetPath, "mine"), []byte("not yours"), 0o600)
			},
			mends: func(t *testing.T, _ *harness.Driver, claim *csiclient.Publication) error {
				harness.RequireFile(t, filepath.Join(claim.TargetPath, "mine"), "not yours")

				return os.Remove(filepath.Join(claim.TargetPath, "mine"))
			},
			says: "is not empty", reasons: []health.Reason{health.VolumeUnmounted}, capability: csiclient.MountCapability(harness.Writer, "ext4"),
		},
		"its image is missing": {
			breaks: hideImage, mends: showImage, says: "image", capability: csiclient.MountCapability(harness.Writer, "xfs"),
			reasons: []health.Reason{health.BackingFileMissing, health.VolumeUnmounted},
		},
		"its image is missing, of a raw block volume": {
			breaks: hideImage, mends: showImage, says: "image", capability: csiclient.BlockCapability(harness.Writer),
			reasons: []health.Reason{health.BackingFileMissing, health.VolumeUnmounted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim, other := newPersistent(t, d, "data", test.capability), newPersistent(t, d, "other", test.capability)

			rebootWith(t, d, func() { require.NoError(t, test.breaks(t, d, claim)) })
			harness.RequireBlock(t, other)
			require.Equal(t, test.reasons, harness.ReasonsOf(t, d, claim.VolumeID))
			harness.AwaitReason(t, d, other.VolumeID, "")
			require.Contains(t, harness.ReportOf(t, d, claim.VolumeID).Conditions[0].Message, test.says)

			_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
			harness.RequireCode(t, err, codes.FailedPrecondition)

			require.NoError(t, test.mends(t, d, claim))
			d.Restart(t)
			harness.RequireBlock(t, claim)
			harness.AwaitReason(t, d, claim.VolumeID, "")

			for _, each := range []*csiclient.Publication{claim, other} {
				harness.TakeDown(t, d, each)
			}
		})
	}
}

// TestPersistentMountThatIsInterrupted at any step of its staging and publication is completed by the next start.
func TestPersistentMountThatIsInterrupted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newPersistent(t, d, "data", csiclient.MountCapability(harness.Writer, "ext4"))

	for _, point := range []operation.Point{
		operation.StagingRecorded, operation.DeviceAttached, operation.VolumeStaged, operation.PublicationRecorded, operation.VolumePublished,
	} {
		rules := filepath.Join(t.TempDir(), "rules.yaml")
		harness.WriteFile(t, rules, fmt.Sprintf("- {match: {at: %s}, act: {before: {code: INTERNAL}}}\n", point))
		rebootWith(t, d, func() { d.Config.Faults = rules })

		d.Config.Faults = ""
		d.Restart(t)
		harness.RequireBlock(t, claim)
		harness.AwaitReason(t, d, claim.VolumeID, "")
	}

	harness.TakeDown(t, d, claim)
}

package staging_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestStagingOfReadersIsReadOnly: the staging mount of a mode that only reads is
// read-only itself, not only the publications.
func TestStagingOfReadersIsReadOnly(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range harness.KindRequests(harness.ReaderOnly) {
		if request.GetVolumeCapabilities()[0].GetBlock() != nil {
			continue
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, request)
			harness.AttachAndStage(t, d, claim)

			found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(claim.StagingPath))
			require.NoError(t, err)
			require.Len(t, found, 1, "mounts at the staging path")
			require.Contains(t, strings.Split(found[0].Options, ","), "ro", "options of the staging mount")
			conformance.Shows(t, "NodeStageVolume", "SINGLE_NODE_READER_ONLY given", "the staging mount is read-only")
		})
	}
}

// TestTargetWithoutItsParent: the parent is the CO's to make, and a missing one is not
// a missing volume.
func TestTargetWithoutItsParent(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.AttachAndStage(t, d, claim)

	missing := *claim
	missing.TargetPath = filepath.Join(d.Config.KubeletDir, "missing", "target")

	_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: claim.VolumeID, PublishContext: claim.PublishContext, VolumeContext: claim.VolumeContext,
		StagingTargetPath: claim.StagingPath, TargetPath: missing.TargetPath, VolumeCapability: claim.Capability,
	})
	harness.RequireCode(t, err, codes.FailedPrecondition, "parent")
}

// TestAFailedStagingIsForgotten: a volume whose staging failed is not in use.
func TestAFailedStagingIsForgotten(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4", "data=nonsense")},
	})
	require.NoError(t, d.Attach(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })

	harness.RequireCode(t, d.Stage(t.Context(), claim), codes.InvalidArgument)

	_, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.StagingPath})
	harness.RequireCode(t, err, codes.NotFound, "is not in use on this node")
}

// TestStagingIsRecordedFirst: where the record cannot be written nothing is attached or
// mounted, since no later start would know of it.
func TestStagingIsRecordedFirst(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	require.NoError(t, d.Attach(t.Context(), claim))
	t.Cleanup(func() {
		served.Release(t)
		d.Restart(t)
		harness.TakeDown(t, d, claim)
	})

	served.Inject(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})
	harness.RequireCode(t, d.Stage(t.Context(), claim), codes.Unavailable, "state")

	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(claim.StagingPath))
	require.NoError(t, err)
	require.Empty(t, found, "mounts at the staging path of a staging that is not recorded")
	require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "loop devices of a staging that is not recorded")
}

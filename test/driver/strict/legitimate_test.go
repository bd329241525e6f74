package strict_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// refusing starts a driver that refuses violations: one that it falsely found would also fail a call.
func refusing(c *driver.Config) { c.Strict = strict.Refuse }

// TestLifecyclesOfEachKind has no violation in an ordinary lifecycle, with its calls repeated.
func TestLifecyclesOfEachKind(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, kind := range harness.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, refusing)
			l := harness.NewLifecycle(t, d, kind)

			l.Up()
			l.Up() // the kubelet repeats all of them after its own restart
			sum := l.Write()
			l.Expand()
			l.Holds(sum)
			l.Down()
			l.Down()
			l.Up()
			l.Holds(sum)
			l.Down()
			l.Delete()
			l.Delete()
			require.Empty(t, found(t, d), "want: the lifecycle is no violation")
		})
	}
}

func TestUndoOfMissingObjectsIsNoViolation(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, refusing)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)
	harness.DeleteVolume(t, d, claim.VolumeID)
	harness.DeleteVolume(t, d, harness.UnknownVolume)
	require.Empty(t, found(t, d), "want: calls for what is not there are no violation")
}

// TestSeveralPodsShareAVolume, in a sequence of their own each.
func TestSeveralPodsShareAVolume(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, refusing)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters:         harness.DirectoryBacked(),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
	})
	harness.AttachAndStage(t, d, claim)

	published := make(chan error, 3)

	for _, name := range []string{"a", "b", "c"} {
		pod := harness.AnotherTarget(claim, name)
		go func() {
			err := d.Publish(t.Context(), pod)
			if err == nil {
				err = d.Unpublish(t.Context(), pod)
			}

			published <- err
		}()
	}

	for range 3 {
		require.NoError(t, await.Receive(t, published, "a pod to be published and unpublished"))
	}

	require.Empty(t, found(t, d), "want: several pods of one volume are no violation")
}

// TestInlineVolumesAreNoViolation: they have NodePublishVolume alone.
func TestInlineVolumesAreNoViolation(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, refusing)
	claim := harness.InlineClaim(t, d, harness.SmallInline())

	for range 2 {
		require.NoError(t, d.Publish(t.Context(), claim))
		require.NoError(t, d.Unpublish(t.Context(), claim))
	}

	require.Empty(t, found(t, d), "want: an inline volume is no violation")
}

// TestCopiesAreNoViolation takes snapshots and clones of a volume in use, and a group, which is deleted as a whole.
func TestCopiesAreNoViolation(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, refusing)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)

	snapshot := harness.TakeSnapshot(t, d, claim.VolumeID, "s")
	restored := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "restored", VolumeContentSource: harness.FromSnapshot(snapshot)})
	harness.BringUp(t, d, restored)
	harness.TakeDown(t, d, restored)

	_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot})
	require.NoError(t, err)

	group, err := d.CreateGroupSnapshotAndWait(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: "g", SourceVolumeIds: []string{restored.VolumeID},
	})
	require.NoError(t, err)

	var members []string
	for _, member := range group.GetGroupSnapshot().GetSnapshots() {
		members = append(members, member.GetSnapshotId())
	}

	_, err = d.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: group.GetGroupSnapshot().GetGroupSnapshotId(), SnapshotIds: members,
	})
	require.NoError(t, err)
	harness.ListAll(t, d)
	require.Empty(t, found(t, d), "want: copies are no violation")
}

// TestRestartIsNoViolation, although it forgets the lifecycle of a volume in use.
func TestRestartIsNoViolation(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, refusing)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters:         harness.DirectoryBacked(),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
	})
	harness.BringUp(t, d, claim)
	d.Restart(t)
	require.NoError(t, d.Publish(t.Context(), harness.AnotherTarget(claim, "second")))
	require.NoError(t, d.Unpublish(t.Context(), harness.AnotherTarget(claim, "second")))
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)
	require.Empty(t, found(t, d), "want: a restart is no violation")
}

func TestTwoProcessesAreCheckedSeparately(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	controller := harness.Start(t, refusing, harness.InMode(driver.ModeController))
	node := harness.Start(t, refusing, harness.InMode(driver.ModeNode), func(c *driver.Config) { c.Pools = controller.Config.Pools })

	volume := harness.NewVolume(t, controller, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	require.NoError(t, controller.Attach(t.Context(), volume))

	claim := node.Claim(t, volume.VolumeID)
	claim.VolumeContext, claim.PublishContext, claim.Capability = volume.VolumeContext, volume.PublishContext, volume.Capability
	require.NoError(t, node.Stage(t.Context(), claim))
	require.NoError(t, node.Publish(t.Context(), claim))

	second := *claim
	second.StagingPath += "-second"
	harness.RequireCode(t, node.Stage(t.Context(), &second), codes.FailedPrecondition, "second-staging-path")
	harness.RequireCode(t, node.Unstage(t.Context(), claim), codes.FailedPrecondition, "unstage-while-published")

	require.NoError(t, node.Unpublish(t.Context(), claim))
	require.NoError(t, node.Unstage(t.Context(), claim))
	harness.RequireCode(t, node.Publish(t.Context(), claim), codes.FailedPrecondition, "publish-after-unstage")
	require.NoError(t, controller.Detach(t.Context(), volume))
	harness.DeleteVolume(t, controller, volume.VolumeID)

	require.Empty(t, found(t, controller), "want: two processes are no violation")
	require.Equal(t, []string{"second-staging-path", "unstage-while-published", "publish-after-unstage"}, found(t, node))
}

func TestWithoutTheFlagThereIsNoService(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	_, err := strict.List(t.Context(), d.Conn())
	harness.RequireCode(t, err, codes.Unimplemented)
}

package strict_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// observed starts a driver that checks its CO.
func observed(c *driver.Config) { c.Strict = strict.Observe }

// found are the ids of the violations that a driver reports.
func found(t *testing.T, d *harness.Driver) []string {
	t.Helper()

	list, err := strict.List(t.Context(), d.Conn())
	require.NoError(t, err)

	ids := []string{}
	for _, each := range list {
		ids = append(ids, each.ID)
	}

	return ids
}

// co is a CO that violates the spec.
type co struct {
	*harness.Driver

	t *testing.T
}

// volume creates a volume and cleans up after it in the right order.
func (c *co) volume() *csiclient.Publication {
	c.t.Helper()

	claim := harness.NewVolume(c.t, c.Driver, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	c.t.Cleanup(func() {
		ctx := context.WithoutCancel(c.t.Context())
		caps, err := c.Capabilities(ctx)
		require.NoError(c.t, err)

		steps, err := c.UnpublishSteps(caps, claim)
		require.NoError(c.t, err)

		for _, step := range steps {
			require.NoError(c.t, step.Call(ctx, claim))
		}
	})

	return claim
}

func (c *co) attached() *csiclient.Publication {
	c.t.Helper()

	claim := c.volume()
	require.NoError(c.t, c.Attach(c.t.Context(), claim))

	return claim
}

func (c *co) staged() *csiclient.Publication {
	c.t.Helper()

	claim := c.attached()
	namespace.NeedRoot(c.t)
	require.NoError(c.t, c.Stage(c.t.Context(), claim))

	return claim
}

func (c *co) published() *csiclient.Publication {
	c.t.Helper()

	claim := c.staged()
	require.NoError(c.t, c.Publish(c.t.Context(), claim))

	return claim
}

func (c *co) create(change func(*csi.CreateVolumeRequest)) {
	c.t.Helper()

	request := &csi.CreateVolumeRequest{
		Name: "changed", Parameters: harness.DirectoryBacked(), CapacityRange: harness.RequiredBytes(harness.MiB),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
	}
	change(request)
	_, _ = c.CreateVolume(c.t.Context(), request)
}

// ctx is that of calls whose outcome is the driver's decision.
func (c *co) ctx() context.Context { return c.t.Context() }

// causes cause each kind by one call. Whether the driver accepts that call is its own decision.
var causes = []struct {
	id       string
	disabled []string
	cause    func(c *co)
}{
	{"stage-before-attach", nil, func(c *co) { _ = c.Stage(c.ctx(), c.volume()) }},
	{"publish-before-attach", []string{"STAGE_UNSTAGE_VOLUME"}, func(c *co) { _ = c.Publish(c.ctx(), c.volume()) }},
	{"publish-before-stage", nil, func(c *co) { _ = c.Publish(c.ctx(), c.attached()) }},
	{"publish-after-unstage", nil, func(c *co) {
		claim := c.staged()
		require.NoError(c.t, c.Unstage(c.ctx(), claim))
		_ = c.Publish(c.ctx(), claim)
	}},
	{"expand-before-stage", nil, func(c *co) {
		claim := c.attached()
		_, _ = c.NodeExpandVolume(c.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
	}},
	{"unstage-while-published", nil, func(c *co) { _ = c.Unstage(c.ctx(), c.published()) }},
	{"detach-while-staged", nil, func(c *co) { _ = c.Detach(c.ctx(), c.staged()) }},
	{"detach-while-published", []string{"STAGE_UNSTAGE_VOLUME"}, func(c *co) {
		claim := c.attached()
		namespace.NeedRoot(c.t)
		require.NoError(c.t, c.Publish(c.ctx(), claim))
		_ = c.Detach(c.ctx(), claim)
	}},
	{"delete-while-in-use", nil, func(c *co) {
		_, _ = c.DeleteVolume(c.ctx(), &csi.DeleteVolumeRequest{VolumeId: c.attached().VolumeID})
	}},
	{"expand-while-in-use", []string{"ONLINE"}, func(c *co) {
		_, _ = c.ControllerExpandVolume(c.ctx(), &csi.ControllerExpandVolumeRequest{
			VolumeId: c.attached().VolumeID, CapacityRange: harness.RequiredBytes(harness.GiB),
		})
	}},
	{"expand-without-controller", nil, func(c *co) {
		claim := c.published()
		_, _ = c.NodeExpandVolume(c.ctx(), &csi.NodeExpandVolumeRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.RequiredBytes(harness.GiB),
		})
	}},
	{"volume-context-changed", nil, func(c *co) {
		claim := c.volume()
		claim.VolumeContext = nil
		_ = c.Attach(c.ctx(), claim)
	}},
	{"publish-context-changed", nil, func(c *co) {
		claim := c.attached()
		claim.PublishContext = map[string]string{"made": "up"}
		_ = c.Stage(c.ctx(), claim)
	}},
	{"second-staging-path", nil, func(c *co) {
		second := *c.staged()
		second.StagingPath += "-second"
		_ = c.Stage(c.ctx(), &second)
	}},
	{"target-path-shared", nil, func(c *co) {
		first := c.published()
		second := harness.NewVolume(c.t, c.Driver, &csi.CreateVolumeRequest{Name: "second", Parameters: harness.DirectoryBacked()})
		harness.AttachAndStage(c.t, c.Driver, second)

		both := *second
		both.TargetPath = first.TargetPath
		_ = c.Publish(c.ctx(), &both)
	}},
	{"create-changed", nil, func(c *co) {
		c.create(func(*csi.CreateVolumeRequest) {})
		c.create(func(r *csi.CreateVolumeRequest) { r.Parameters = nil })
	}},
	{"group-member-deleted", nil, func(c *co) {
		group, err := c.CreateVolumeGroupSnapshot(c.ctx(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: "g", SourceVolumeIds: []string{c.volume().VolumeID},
		})
		require.NoError(c.t, err)

		_, _ = c.DeleteSnapshot(c.ctx(), &csi.DeleteSnapshotRequest{SnapshotId: group.GetGroupSnapshot().GetSnapshots()[0].GetSnapshotId()})
	}},
	{"call-not-advertised", []string{"LIST_VOLUMES"}, func(c *co) { _, _ = c.ListVolumes(c.ctx(), &csi.ListVolumesRequest{}) }},
	{"call-not-advertised", []string{"SNAPSHOT_METADATA_SERVICE"}, func(c *co) { // a stream
		stream, err := c.GetMetadataAllocated(c.ctx(), &csi.GetMetadataAllocatedRequest{SnapshotId: harness.UnknownVolume})
		require.NoError(c.t, err)

		_, _ = stream.Recv()
	}},
	{"readonly-not-advertised", []string{"PUBLISH_READONLY"}, func(c *co) {
		claim := c.volume()
		claim.ReadOnly = true
		_ = c.Attach(c.ctx(), claim)
	}},
	{"mount-group-not-advertised", nil, func(c *co) {
		c.create(func(r *csi.CreateVolumeRequest) { r.GetVolumeCapabilities()[0].GetMount().VolumeMountGroup = "100" })
	}},
	{"access-mode-not-advertised", []string{"SINGLE_NODE_MULTI_WRITER"}, func(c *co) {
		c.create(harness.AskFor(csiclient.MountCapability(harness.SingleWriter, "")))
	}},
	{"content-source-not-advertised", []string{"CLONE_VOLUME"}, func(c *co) {
		c.create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = harness.FromVolume(harness.UnknownVolume) })
	}},
	{"topology-not-advertised", []string{"TOPOLOGY"}, func(c *co) {
		c.create(func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = harness.Topology(harness.NodeSegment, harness.NodeID)
		})
	}},
	{"mutable-parameters-not-advertised", []string{"MODIFY_VOLUME"}, func(c *co) {
		c.create(func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"readIOPS": "500"} })
	}},
	{"publish-context-not-advertised", []string{"PUBLISH_UNPUBLISH_VOLUME"}, func(c *co) {
		claim := c.volume()
		claim.PublishContext = map[string]string{"made": "up"}
		_ = c.Stage(c.ctx(), claim)
	}},
	{"secret-key-malformed", nil, func(c *co) {
		c.create(func(r *csi.CreateVolumeRequest) { r.Secrets = map[string]string{"a key": "x"} })
	}},
	{"token-unknown", nil, func(c *co) {
		_, _ = c.ListVolumes(c.ctx(), &csi.ListVolumesRequest{StartingToken: "made-up"})
	}},
	{"token-reused", nil, func(c *co) {
		for _, name := range []string{"a", "b", "c"} {
			harness.NewVolume(c.t, c.Driver, &csi.CreateVolumeRequest{Name: name, Parameters: harness.DirectoryBacked()})
		}

		page, err := c.ListVolumes(c.ctx(), &csi.ListVolumesRequest{MaxEntries: 1})
		require.NoError(c.t, err)

		for range 2 {
			_, err = c.ListVolumes(c.ctx(), &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: page.GetNextToken()})
			require.NoError(c.t, err)
		}
	}},
	{"retry-without-backoff", nil, func(c *co) {
		// Four within a second, also where the machine is busy.
		for len(found(c.t, c.Driver)) == 0 {
			_, err := c.ControllerGetVolume(c.ctx(), &csi.ControllerGetVolumeRequest{VolumeId: harness.UnknownVolume})
			require.Error(c.t, err, "want: an unknown volume is refused")
		}
	}},
}

func TestEachViolationIsFound(t *testing.T) {
	t.Parallel()

	for _, test := range causes {
		t.Run(test.id+strings.Join(test.disabled, ""), func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, observed, harness.WithoutCapabilities(test.disabled...))
			test.cause(&co{d, t})
			require.Equal(t, []string{test.id}, found(t, d))
		})
	}

	for _, kind := range strict.Kinds() {
		// Its test has to hold a call: TestConcurrentExpansionsAreAViolation.
		caused := kind.ID == "concurrent-requests"
		for _, test := range causes {
			caused = caused || test.id == kind.ID
		}

		require.True(t, caused, "%s is caused by no client", kind.ID)
	}
}

// TestConcurrentExpansionsAreAViolation, to two sizes at once: the coalescing window holds the
// first.
func TestConcurrentExpansionsAreAViolation(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, observed, func(c *driver.Config) { c.Controller.CoalesceWindow = time.Hour })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	ended := make(chan error, 2)

	for _, size := range []int64{128, 256} {
		go func() {
			_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(size * harness.MiB),
			})
			ended <- err
		}()
	}

	_ = await.Receive(t, ended, "the refused expansion")
	require.Equal(t, []string{"concurrent-requests"}, found(t, d))
	d.Stop() // which ends the window
	_ = await.Receive(t, ended, "the other expansion")
}

// TestViolationIsRefused: nothing is staged, and the right order passes.
func TestViolationIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Strict = strict.Refuse })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	before := harness.Everything(t, d)

	harness.RequireCode(t, d.Stage(t.Context(), claim), 9, "refused by --strict=refuse", claim.VolumeID, "stage-before-attach", "NSV-3")
	require.Equal(t, before, harness.Everything(t, d))

	require.NoError(t, d.Attach(t.Context(), claim))
	harness.RequireCode(t, d.Publish(t.Context(), claim), 9, "publish-before-stage")
	harness.BringUp(t, d, claim)

	second := *claim
	second.StagingPath += "-second"
	harness.RequireCode(t, d.Stage(t.Context(), &second), 9, "second-staging-path")

	list, err := strict.List(t.Context(), d.Conn())
	require.NoError(t, err)
	require.Len(t, list, 3, "want: each violation is refused")
	require.False(t, slices.ContainsFunc(list, func(r strict.Violation) bool { return !r.Refused || r.Object != claim.VolumeID }), "want: each violation was refused, and is of the volume")

	info, err := d.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "refuse", info.GetManifest()["strict"])

	require.NoError(t, strict.Clear(t.Context(), d.Conn()))
	require.Empty(t, found(t, d), "want: Clear removes all violations")
}

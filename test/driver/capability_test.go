package driver_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func without(names ...string) harness.Option {
	return func(c *driver.Config) { c.Disabled = names }
}

// everyCapability advertises also what is off unless asked for.
func everyCapability(c *driver.Config) { c.VolumeMountGroup = true }

// rpcs are those that only some drivers have, by name, with a request that says
// nothing: who serves the RPC refuses it for that.
func rpcs(d *harness.Driver) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"CreateVolume": func(ctx context.Context) error {
			_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{})

			return err
		},
		"DeleteVolume": func(ctx context.Context) error {
			_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})

			return err
		},
		"ControllerPublishVolume": func(ctx context.Context) error {
			_, err := d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{})

			return err
		},
		"ControllerUnpublishVolume": func(ctx context.Context) error {
			_, err := d.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{})

			return err
		},
		"ValidateVolumeCapabilities": func(ctx context.Context) error {
			_, err := d.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{})

			return err
		},
		"ListVolumes": func(ctx context.Context) error {
			_, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{})

			return err
		},
		"GetCapacity": func(ctx context.Context) error {
			_, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})

			return err
		},
		"ControllerGetCapabilities": func(ctx context.Context) error {
			_, err := d.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})

			return err
		},
		"ControllerExpandVolume": func(ctx context.Context) error {
			_, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{})

			return err
		},
		"ControllerGetVolume": func(ctx context.Context) error {
			_, err := d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{})

			return err
		},
		"ControllerModifyVolume": func(ctx context.Context) error {
			_, err := d.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{})

			return err
		},
		"CreateSnapshot": func(ctx context.Context) error {
			_, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{})

			return err
		},
		"DeleteSnapshot": func(ctx context.Context) error {
			_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{})

			return err
		},
		"ListSnapshots": func(ctx context.Context) error {
			_, err := d.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})

			return err
		},
		"GetSnapshot": func(ctx context.Context) error {
			_, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{})

			return err
		},
		"GroupControllerGetCapabilities": func(ctx context.Context) error {
			_, err := d.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})

			return err
		},
		"CreateVolumeGroupSnapshot": func(ctx context.Context) error {
			_, err := d.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{})

			return err
		},
		"DeleteVolumeGroupSnapshot": func(ctx context.Context) error {
			_, err := d.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{})

			return err
		},
		"GetVolumeGroupSnapshot": func(ctx context.Context) error {
			_, err := d.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{})

			return err
		},
		"GetMetadataAllocated": func(ctx context.Context) error {
			stream, err := d.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{})
			if err == nil {
				_, err = stream.Recv()
			}

			return err
		},
		"GetMetadataDelta": func(ctx context.Context) error {
			stream, err := d.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{})
			if err == nil {
				_, err = stream.Recv()
			}

			return err
		},
		"NodeStageVolume": func(ctx context.Context) error {
			_, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{})

			return err
		},
		"NodeUnstageVolume": func(ctx context.Context) error {
			_, err := d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{})

			return err
		},
		"NodeGetVolumeStats": func(ctx context.Context) error {
			_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{})

			return err
		},
		"ControllerGetVolumeHealth": func(ctx context.Context) error {
			_, err := d.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{})

			return err
		},
		"ControllerListVolumeHealth": func(ctx context.Context) error {
			_, err := d.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})

			return err
		},
		"NodeGetVolumeHealth": func(ctx context.Context) error {
			_, err := d.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{})

			return err
		},
		"NodeGetStorageHealth": func(ctx context.Context) error {
			_, err := d.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})

			return err
		},
		"NodeExpandVolume": func(ctx context.Context) error {
			_, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{})

			return err
		},
	}
}

// disabled is what goes when one capability is disabled.
type disabled struct {
	name string
	// gone are the capabilities, as advertised names them.
	gone []string
	// unserved are the RPCs.
	unserved []string
}

func disabledOnes() []disabled {
	controller := []string{
		"controller CREATE_DELETE_VOLUME", "controller PUBLISH_UNPUBLISH_VOLUME", "controller LIST_VOLUMES",
		"controller GET_CAPACITY", "controller PUBLISH_READONLY", "controller EXPAND_VOLUME",
		"controller LIST_VOLUMES_PUBLISHED_NODES", "controller GET_VOLUME", "controller SINGLE_NODE_MULTI_WRITER",
		"controller MODIFY_VOLUME", "controller CREATE_DELETE_SNAPSHOT", "controller LIST_SNAPSHOTS",
		"controller CLONE_VOLUME", "controller GET_SNAPSHOT",
		"controller 11", "controller GET_VOLUME_HEALTH", "controller LIST_VOLUME_HEALTH",
	}

	return []disabled{
		{
			"CONTROLLER_SERVICE", append(controller, "plugin CONTROLLER_SERVICE"), []string{
				"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume",
				"ValidateVolumeCapabilities", "ListVolumes", "GetCapacity", "ControllerGetCapabilities",
				"ControllerExpandVolume", "ControllerGetVolume", "ControllerModifyVolume",
				"CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "GetSnapshot",
				"ControllerGetVolumeHealth", "ControllerListVolumeHealth",
			},
		},
		{
			"VOLUME_ACCESSIBILITY_CONSTRAINTS",
			[]string{"plugin VOLUME_ACCESSIBILITY_CONSTRAINTS", "plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"},
			nil,
		},
		{
			"TOPOLOGY", []string{"plugin VOLUME_ACCESSIBILITY_CONSTRAINTS", "plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"}, nil,
		},
		{"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", []string{"plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"}, nil},
		{
			"GROUP_CONTROLLER_SERVICE",
			[]string{"plugin GROUP_CONTROLLER_SERVICE", "group CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"},
			[]string{
				"GroupControllerGetCapabilities", "CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot",
			},
		},
		{
			"CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
			[]string{"group CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"},
			[]string{"CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot"},
		},
		{
			"SNAPSHOT_METADATA_SERVICE",
			[]string{"plugin SNAPSHOT_METADATA_SERVICE"},
			[]string{"GetMetadataAllocated", "GetMetadataDelta"},
		},
		{"CREATE_DELETE_SNAPSHOT", []string{"controller CREATE_DELETE_SNAPSHOT"}, []string{"CreateSnapshot", "DeleteSnapshot"}},
		{"LIST_SNAPSHOTS", []string{"controller LIST_SNAPSHOTS"}, []string{"ListSnapshots"}},
		{"GET_SNAPSHOT", []string{"controller GET_SNAPSHOT"}, []string{"GetSnapshot"}},
		{"CLONE_VOLUME", []string{"controller CLONE_VOLUME"}, nil},
		{"ONLINE", []string{"plugin ONLINE"}, nil},
		{"CREATE_DELETE_VOLUME", []string{"controller CREATE_DELETE_VOLUME"}, []string{"CreateVolume", "DeleteVolume"}},
		{
			"PUBLISH_UNPUBLISH_VOLUME",
			[]string{
				"controller PUBLISH_UNPUBLISH_VOLUME", "controller PUBLISH_READONLY", "controller LIST_VOLUMES_PUBLISHED_NODES",
			},
			[]string{"ControllerPublishVolume", "ControllerUnpublishVolume"},
		},
		{"PUBLISH_READONLY", []string{"controller PUBLISH_READONLY"}, nil},
		{"LIST_VOLUMES", []string{"controller LIST_VOLUMES"}, []string{"ListVolumes"}},
		{"LIST_VOLUMES_PUBLISHED_NODES", []string{"controller LIST_VOLUMES_PUBLISHED_NODES"}, nil},
		{"GET_VOLUME", []string{"controller GET_VOLUME"}, []string{"ControllerGetVolume"}},
		{"GET_CAPACITY", []string{"controller GET_CAPACITY"}, []string{"GetCapacity"}},
		{
			"EXPAND_VOLUME",
			[]string{"controller EXPAND_VOLUME", "node EXPAND_VOLUME", "plugin ONLINE"},
			[]string{"ControllerExpandVolume", "NodeExpandVolume"},
		},
		{"MODIFY_VOLUME", []string{"controller MODIFY_VOLUME"}, []string{"ControllerModifyVolume"}},
		{"SINGLE_NODE_MULTI_WRITER", []string{"controller SINGLE_NODE_MULTI_WRITER", "node SINGLE_NODE_MULTI_WRITER"}, nil},
		{"STAGE_UNSTAGE_VOLUME", []string{"node STAGE_UNSTAGE_VOLUME"}, []string{"NodeStageVolume", "NodeUnstageVolume"}},
		{"GET_VOLUME_STATS", []string{"node GET_VOLUME_STATS"}, []string{"NodeGetVolumeStats"}},
		{"VOLUME_MOUNT_GROUP", []string{"node VOLUME_MOUNT_GROUP"}, nil},
		// The numbers that are reserved in the spec, which has no names for them.
		{"VOLUME_CONDITION", []string{"controller 11", "node 4"}, nil},
		{
			"GET_VOLUME_HEALTH",
			[]string{"controller GET_VOLUME_HEALTH", "controller LIST_VOLUME_HEALTH", "node GET_VOLUME_HEALTH"},
			[]string{"ControllerGetVolumeHealth", "ControllerListVolumeHealth", "NodeGetVolumeHealth"},
		},
		{"LIST_VOLUME_HEALTH", []string{"controller LIST_VOLUME_HEALTH"}, []string{"ControllerListVolumeHealth"}},
		{"GET_STORAGE_HEALTH", []string{"node GET_STORAGE_HEALTH"}, []string{"NodeGetStorageHealth"}},
	}
}

// advertised names all capabilities after the service that has them.
func advertised(t *testing.T, d *harness.Driver) []string {
	t.Helper()

	caps, err := d.Capabilities(t.Context())
	require.NoError(t, err)

	var names []string

	for _, each := range caps.Plugin {
		switch {
		case each.GetService() != nil:
			names = append(names, "plugin "+each.GetService().GetType().String())
		case each.GetVolumeExpansion().GetType() == csi.PluginCapability_VolumeExpansion_ONLINE:
			names = append(names, "plugin ONLINE")
		}
	}

	for _, each := range caps.Controller {
		names = append(names, "controller "+each.GetRpc().GetType().String())
	}

	for _, each := range caps.GroupController {
		names = append(names, "group "+each.GetRpc().GetType().String())
	}

	for _, each := range caps.Node {
		names = append(names, "node "+each.GetRpc().GetType().String())
	}

	return names
}

// TestEveryCapabilityCanBeDisabled also fails for an advertised one that the
// table lacks.
func TestEveryCapabilityCanBeDisabled(t *testing.T) {
	namespace.NeedRoot(t)

	full := advertised(t, harness.Start(t, everyCapability))

	var tried []string

	for _, row := range disabledOnes() {
		tried = append(tried, row.gone...)

		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, everyCapability, without(row.name))
			left := slices.DeleteFunc(slices.Clone(full), func(name string) bool { return slices.Contains(row.gone, name) })
			require.ElementsMatch(t, left, advertised(t, d))

			for name, call := range rpcs(d) {
				if slices.Contains(row.unserved, name) {
					fails(t, call(t.Context()), codes.Unimplemented, name)
				} else {
					require.NotEqual(t, codes.Unimplemented.String(), status.Code(call(t.Context())).String(), name)
				}
			}

			d.Restart(t, without())
			require.ElementsMatch(t, full, advertised(t, d))
		})
	}

	for _, name := range full {
		require.Contains(t, tried, name)
	}
}

func TestCapabilityThatNobodyKnows(t *testing.T) {
	namespace.NeedRoot(t)

	for _, name := range []string{"CLONE", "expand_volume", "", "UNKNOWN"} {
		config := harness.Start(t).Config
		config.Disabled = []string{"GET_VOLUME", name}

		_, err := driver.New(t.Context(), config)
		require.ErrorIs(t, err, driver.ErrConfig)
		require.ErrorContains(t, err, "disable-capability")
		require.ErrorContains(t, err, "EXPAND_VOLUME")
		require.ErrorContains(t, err, "TOPOLOGY")
	}
}

// TestLifeWithoutACapability leaves out the calls of what is disabled, as a CO
// does.
func TestLifeWithoutACapability(t *testing.T) {
	namespace.NeedRoot(t)

	for _, row := range disabledOnes() {
		for _, k := range kinds() {
			if !slices.Contains([]string{"ext4", "block", "directory"}, k.name) {
				continue
			}

			t.Run(row.name+"/"+k.name, func(t *testing.T) {
				t.Parallel()

				d := harness.Start(t, without(row.name))
				uncreatable := slices.Contains(row.unserved, "CreateVolume")

				if uncreatable {
					d.Restart(t, without())
				}

				volume := &lesserLife{life: create(t, d, k)}

				if uncreatable {
					d.Restart(t, without(row.name))
				}

				volume.goOn()

				if uncreatable {
					d.Restart(t, without())
				}

				volume.delete()
			})
		}
	}
}

// lesserLife is a volume's life with a CO that calls what is advertised only.
type lesserLife struct{ *life }

func (l *lesserLife) steps(choose func(csiclient.Capabilities, *csiclient.Publication) ([]csiclient.Step, error)) {
	l.t.Helper()

	caps, err := l.driver.Capabilities(l.t.Context())
	require.NoError(l.t, err)

	todo, err := choose(caps, l.claim)
	require.NoError(l.t, err)

	for _, step := range todo {
		require.NoError(l.t, step.Call(l.t.Context(), l.claim), step.RPC)
	}
}

func (l *lesserLife) up() {
	l.t.Helper()
	l.steps(l.driver.PublishSteps)
}

func (l *lesserLife) down() {
	l.t.Helper()
	l.steps(l.driver.UnpublishSteps)
}

func (l *lesserLife) goOn() {
	l.t.Helper()

	l.up()
	sum := l.write()
	// All of it is answered from what is there.
	l.up()
	l.driver.Restart(l.t)
	l.up()
	l.holds(sum)
	l.down()
	l.down()
	require.NoFileExists(l.t, l.claim.TargetPath)
	l.up()
	l.holds(sum)
	l.down()
	requireNothingStaged(l.t, l.driver)
}

func ownStaging(d *harness.Driver) string {
	return filepath.Join(d.Config.KubeletDir, "plugins", d.Config.DriverName, "staging")
}

func requireNothingStaged(t *testing.T, d *harness.Driver) {
	t.Helper()

	if _, err := os.Stat(ownStaging(d)); err == nil {
		left, err := os.ReadDir(ownStaging(d))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// unstagedClaim is a use of a volume by a CO that does not stage.
func unstagedClaim(t *testing.T, d *harness.Driver, request *csi.CreateVolumeRequest) *csiclient.Publication {
	t.Helper()

	claim := newVolume(t, d, request)
	require.NoError(t, d.Attach(t.Context(), claim))
	claim.StagingPath = ""
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, d.Unpublish(ctx, claim))
		require.NoError(t, d.Detach(ctx, claim))
	})

	return claim
}

func unstagedKinds() map[string]*csi.CreateVolumeRequest {
	kinds := readOnlyKinds(multiWriter)
	maps.DeleteFunc(kinds, func(name string, _ *csi.CreateVolumeRequest) bool { return name == "xfs" || name == "btrfs" })

	return kinds
}

func TestPublishWithoutStaging(t *testing.T) {
	namespace.NeedRoot(t)

	for name, request := range unstagedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, without("STAGE_UNSTAGE_VOLUME"))
			first := unstagedClaim(t, d, request)
			second, reader := another(first, "second"), another(first, "reader")
			reader.ReadOnly = true

			require.NoError(t, d.Publish(t.Context(), first))
			writeBlock(t, first)

			for _, more := range []*csiclient.Publication{second, reader} {
				require.NoError(t, d.Publish(t.Context(), more))
				requireBlock(t, more)
			}

			// The last one to go takes the staging along, whoever was first, and
			// however often the driver was restarted in between.
			for _, gone := range []*csiclient.Publication{first, reader} {
				require.NoError(t, d.Unpublish(t.Context(), gone))
				requireBlock(t, second)
				d.Restart(t)
				requireBlock(t, second)
			}

			require.NoError(t, d.Unpublish(t.Context(), second))
			requireNothingStaged(t, d)
			require.NoError(t, d.Detach(t.Context(), first))
			deleteVolume(t, d, first.VolumeID)
		})
	}
}

func TestFailedPublicationUndoesItsStaging(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, without("STAGE_UNSTAGE_VOLUME"))
	claim := unstagedClaim(t, d, &csi.CreateVolumeRequest{})

	target := claim.TargetPath
	claim.TargetPath = filepath.Join(d.Root, "elsewhere")
	fails(t, d.Publish(t.Context(), claim), codes.InvalidArgument, "elsewhere")
	requireNothingStaged(t, d)

	claim.TargetPath = target
	require.NoError(t, d.Publish(t.Context(), claim))
	requireNothingElseStaged(t, d, claim.VolumeID)
}

func requireNothingElseStaged(t *testing.T, d *harness.Driver, id string) {
	t.Helper()

	left, err := os.ReadDir(ownStaging(d))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, id, left[0].Name())
}

// TestStagingWithoutPublicationGoesAtTheStart is what a crash leaves, or
// somebody who unmounts.
func TestStagingWithoutPublicationGoesAtTheStart(t *testing.T) {
	namespace.NeedRoot(t)

	for name, request := range unstagedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, without("STAGE_UNSTAGE_VOLUME"))
			claim := unstagedClaim(t, d, request)
			require.NoError(t, d.Publish(t.Context(), claim))
			writeBlock(t, claim)
			unmount(t, claim.TargetPath)

			d.Restart(t)
			requireNothingStaged(t, d)
			require.NoError(t, d.Publish(t.Context(), claim))
			requireBlock(t, claim)
		})
	}
}

// TestStagingIsDisabledWhileVolumesAreUsed and enabled again: what is published
// stays so, and nothing of it remains in the end.
func TestStagingIsDisabledWhileVolumesAreUsed(t *testing.T) {
	namespace.NeedRoot(t)

	for name, request := range unstagedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := newVolume(t, d, request)
			bringUp(t, d, claim)
			writeBlock(t, claim)

			d.Restart(t, without("STAGE_UNSTAGE_VOLUME"))
			requireBlock(t, claim)

			second := another(claim, "second")
			require.NoError(t, d.Publish(t.Context(), second))
			requireBlock(t, second)
			require.NoError(t, d.Unpublish(t.Context(), second))
			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			requireNothingElseStagedUnless(t, d, claim)
			requireBlock(t, claim)

			d.Restart(t, without())
			requireBlock(t, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			requireNothingStaged(t, d)

			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			requireBlock(t, claim)
		})
	}
}

// requireNothingElseStagedUnless it is a device, which needs no mount point.
func requireNothingElseStagedUnless(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	if claim.Capability.GetBlock() == nil {
		requireNothingElseStaged(t, d, claim.VolumeID)
	}
}

func TestWithoutAttachmentBytesAreThereForGood(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	// This is what a power failure does to a volume that was never attached.
	require.NoError(t, os.Remove(imageOf(d, claim.VolumeID)))

	d.Restart(t, without("PUBLISH_UNPUBLISH_VOLUME"))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))

	second := newVolume(t, d, &csi.CreateVolumeRequest{Name: "second"})

	// An attachment does not make again what was there for good.
	d.Restart(t, without())

	for _, each := range []*csiclient.Publication{claim, second} {
		require.NoError(t, os.Remove(imageOf(d, each.VolumeID)))
		require.NoError(t, d.Attach(t.Context(), each))
		fails(t, d.Stage(t.Context(), each), codes.NotFound)
		require.NoError(t, d.Detach(t.Context(), each))
	}
}

// TestAttachmentsOfBeforeDoNotCount where nobody can take them away.
func TestAttachmentsOfBeforeDoNotCount(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	require.NoError(t, d.Attach(t.Context(), claim))

	d.Restart(t, without("PUBLISH_UNPUBLISH_VOLUME"))
	deleteVolume(t, d, claim.VolumeID)
	require.Empty(t, listAll(t, d))
}

func TestAnswersWithoutACapability(t *testing.T) {
	namespace.NeedRoot(t)

	for name, judge := range map[string]func(*testing.T, *harness.Driver, *csiclient.Publication){
		"TOPOLOGY": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			info, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
			require.NoError(t, err)
			require.Nil(t, info.GetAccessibleTopology())

			for _, seen := range seenBy(t, d, claim) {
				require.Empty(t, seen.volume.GetAccessibleTopology())
				require.Equal(t, []string{harness.NodeID}, seen.nodes)
			}
		},
		"LIST_VOLUMES_PUBLISHED_NODES": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			for _, seen := range seenBy(t, d, claim) {
				require.Empty(t, seen.nodes)
				require.NotEmpty(t, seen.volume.GetAccessibleTopology())
			}
		},
		"PUBLISH_READONLY": func(t *testing.T, d *harness.Driver, _ *csiclient.Publication) {
			t.Helper()

			other := newVolume(t, d, &csi.CreateVolumeRequest{Name: "other"})
			other.ReadOnly = true
			fails(t, d.Attach(t.Context(), other), codes.InvalidArgument, "PUBLISH_READONLY")
		},
		"ONLINE": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			larger := &csi.ControllerExpandVolumeRequest{VolumeId: claim.VolumeID, CapacityRange: required(128 * mib)}
			_, err := d.ControllerExpandVolume(t.Context(), larger)
			fails(t, err, codes.FailedPrecondition, harness.NodeID)
			takeDown(t, d, claim)

			_, err = d.ControllerExpandVolume(t.Context(), larger)
			require.NoError(t, err)
			bringUp(t, d, claim)
		},
		"SINGLE_NODE_MULTI_WRITER": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			t.Helper()

			for _, mode := range []csi.VolumeCapability_AccessMode_Mode{singleWriter, multiWriter} {
				requireModeUnknown(t, d, claim, csiclient.MountCapability(mode, ""))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			// It was made and attached when the driver had the capability.
			d := harness.Start(t)
			claim := newVolume(t, d, &csi.CreateVolumeRequest{})
			bringUp(t, d, claim)
			d.Restart(t, without(name))
			judge(t, d, claim)
		})
	}
}

func requireModeUnknown(t *testing.T, d *harness.Driver, claim *csiclient.Publication, wanted *csi.VolumeCapability) {
	t.Helper()

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "other", VolumeCapabilities: []*csi.VolumeCapability{wanted},
	})
	fails(t, err, codes.InvalidArgument, "SINGLE_NODE_MULTI_WRITER")

	confirmed, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: claim.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{wanted},
	})
	require.NoError(t, err)
	require.Nil(t, confirmed.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", confirmed.GetMessage())

	other := another(claim, "other")
	other.Capability = wanted

	for _, call := range []func(context.Context, *csiclient.Publication) error{d.Attach, d.Stage, d.Publish} {
		fails(t, call(t.Context(), other), codes.InvalidArgument, "SINGLE_NODE_MULTI_WRITER")
	}
}

type seen struct {
	volume *csi.Volume
	nodes  []string
}

// seenBy are the ways in which a CO sees the volume.
func seenBy(t *testing.T, d *harness.Driver, claim *csiclient.Publication) []seen {
	t.Helper()

	got, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)

	list, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetEntries(), 1)

	return []seen{
		{got.GetVolume(), got.GetStatus().GetPublishedNodeIds()},
		{list.GetEntries()[0].GetVolume(), list.GetEntries()[0].GetStatus().GetPublishedNodeIds()},
	}
}

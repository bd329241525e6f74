package create_test

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestCreateIsIdempotentByName(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	first := &csi.CreateVolumeRequest{
		Name:                      "pvc",
		CapacityRange:             &csi.CapacityRange{RequiredBytes: 64 * harness.MiB, LimitBytes: 512 * harness.MiB},
		VolumeCapabilities:        []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4", "noatime", "nodev")},
		AccessibilityRequirements: harness.Topology(harness.NodeSegment, harness.NodeID),
	}
	made, err := d.CreateVolume(t.Context(), first)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		want   codes.Code
	}{
		"same":                    {func(*csi.CreateVolumeRequest) {}, codes.OK},
		"a range that it lies in": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1 }, codes.OK},
		"defaults spelled out":    {harness.WithParameter("backing", "image"), codes.OK},
		"the provisioner's keys":  {harness.WithParameter("csi.storage.k8s.io/pvc/name", "x"), codes.OK},
		"flags in another order":  {harness.AskFor(csiclient.MountCapability(harness.Writer, "ext4", "nodev", "noatime")), codes.OK},
		"the same filesystem":     {harness.AskFor(csiclient.MountCapability(harness.Writer, "ext4", "nodev", "noatime")), codes.OK},
		"no topology":             {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = nil }, codes.OK},
		"larger":                  {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes++ }, codes.AlreadyExists},
		"smaller":                 {func(r *csi.CreateVolumeRequest) { r.CapacityRange = harness.UpTo(32 * harness.MiB) }, codes.AlreadyExists},
		"another access mode":     {harness.AskFor(csiclient.MountCapability(harness.MultiWriter, "ext4", "noatime", "nodev")), codes.AlreadyExists},
		"other flags":             {harness.AskFor(csiclient.MountCapability(harness.Writer, "ext4", "noatime")), codes.AlreadyExists},
		"block":                   {harness.AskFor(csiclient.BlockCapability(harness.Writer)), codes.AlreadyExists},
		"another filesystem":      {harness.AskFor(csiclient.MountCapability(harness.Writer, "btrfs", "noatime", "nodev")), codes.AlreadyExists},
		"one more capability":     {alsoAsking(csiclient.BlockCapability(harness.Writer)), codes.AlreadyExists},
		"another blockSize":       {harness.WithParameter("blockSize", "512"), codes.AlreadyExists},
		"thick":                   {harness.WithParameter("provisioning", "thick"), codes.AlreadyExists},
		"another backing":         {harness.WithParameter("backing", "directory"), codes.AlreadyExists},
		"other mkfsOptions":       {harness.WithParameter("mkfsOptions", "-m 1"), codes.AlreadyExists},
		"another node's topology": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = harness.Topology(harness.NodeSegment, "x")
		}, codes.AlreadyExists},
		"an unknown topology":      {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = harness.Topology("rack", "7") }, codes.AlreadyExists},
		"invalid stays so":         {func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = -1 }, codes.InvalidArgument},
		"unknown parameter, again": {harness.WithParameter("color", "blue"), codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			request := proto.CloneOf(first)
			test.change(request)

			again, err := d.CreateVolume(t.Context(), request)
			harness.RequireCode(t, err, test.want)

			if test.want == codes.OK {
				require.True(t, proto.Equal(made, again), "%v\n%v", made, again)
			}

			require.Len(t, harness.ListAll(t, d), 1, "want: the retries make one volume")
		})
	}

	other := proto.CloneOf(first)
	other.Name = "another"
	second, err := d.CreateVolume(t.Context(), other)
	require.NoError(t, err)
	require.NotEqual(t, made.GetVolume().GetVolumeId(), second.GetVolume().GetVolumeId(), "want: another name is another volume")

	d.Restart(t)

	again, err := d.CreateVolume(t.Context(), first)
	require.NoError(t, err)
	require.True(t, proto.Equal(made, again), "got %v, want %v", again, made)
}

func alsoAsking(capability *csi.VolumeCapability) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = append(r.VolumeCapabilities, capability) }
}

func TestCreateOfTheSameNameAtOnceMakesOneVolume(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	ids := make([]string, 16)

	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "pvc", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
			})
			if err == nil {
				ids[i] = made.GetVolume().GetVolumeId()
			}
		})
	}

	await.Return(t, group.Wait, "each CreateVolume to return")

	slices.Sort(ids)
	require.Equal(t, harness.ListAll(t, d), slices.Compact(ids))
}

func TestCreateAfterExpansion(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	request := &csi.CreateVolumeRequest{Name: "pvc"}
	claim := harness.NewVolume(t, d, request)

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: 100 * harness.MiB},
	})
	require.NoError(t, err)

	again, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, claim.VolumeID, again.GetVolume().GetVolumeId())
	require.EqualValues(t, 100*harness.MiB, again.GetVolume().GetCapacityBytes(), "want: the volume keeps its expanded size")
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	before := harness.Everything(t, d)

	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		words  []string
	}{
		"unknown parameter": {harness.WithParameter("color", "blue"), codes.InvalidArgument, []string{
			`"color"`, "backing", "blockSize", "csi.storage.k8s.io/fstype", "mkfsOptions", "pool", "provisioning",
		}},
		"backing":                     {harness.WithParameter("backing", "tape"), codes.InvalidArgument, []string{"tape", "image or directory"}},
		"provisioning":                {harness.WithParameter("provisioning", "fat"), codes.InvalidArgument, []string{"thin or thick"}},
		"blockSize":                   {harness.WithParameter("blockSize", "1024"), codes.InvalidArgument, []string{"4096 or 512"}},
		"fstype":                      {harness.WithParameter("csi.storage.k8s.io/fstype", "ntfs"), codes.InvalidArgument, []string{"ext4, xfs, btrfs"}},
		"pool":                        {harness.WithParameter("pool", "../x"), codes.InvalidArgument, []string{"default"}},
		"mkfsOptions naming a file":   {harness.WithParameter("mkfsOptions", "-d /etc"), codes.InvalidArgument, []string{"-d"}},
		"mkfsOptions with an operand": {harness.WithParameter("mkfsOptions", "/dev/sda"), codes.InvalidArgument, []string{"/dev/sda"}},
		"thick directory": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"backing": "directory", "provisioning": "thick"}
		}, codes.InvalidArgument, []string{"directory"}},
		"block on a directory": {func(r *csi.CreateVolumeRequest) {
			r.Parameters, r.VolumeCapabilities = harness.DirectoryBacked(), []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}
		}, codes.InvalidArgument, []string{"backing=image"}},
		"two filesystems":     {alsoAsking(csiclient.MountCapability(harness.Writer, "xfs")), codes.InvalidArgument, []string{"ext4", "xfs"}},
		"unknown filesystem":  {harness.AskFor(csiclient.MountCapability(harness.Writer, "zfs")), codes.InvalidArgument, []string{"zfs", "ext4"}},
		"refused mount flag":  {harness.AskFor(csiclient.MountCapability(harness.Writer, "", "remount")), codes.InvalidArgument, []string{"remount"}},
		"unknown access mode": {harness.AskFor(csiclient.MountCapability(99, "")), codes.InvalidArgument, []string{"99"}},
		"no topology fits": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = harness.Topology(harness.NodeSegment, "x")
		}, codes.ResourceExhausted, []string{harness.NodeSegment}},
		"an unknown key":       {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = harness.Topology("rack", "7") }, codes.ResourceExhausted, nil},
		"a long name":          {func(r *csi.CreateVolumeRequest) { r.Name = string(make([]rune, 129)) }, codes.InvalidArgument, nil},
		"an escape in a name":  {func(r *csi.CreateVolumeRequest) { r.Name = "a\x1bb" }, codes.InvalidArgument, []string{"name"}},
		"C1 control in a name": {func(r *csi.CreateVolumeRequest) { r.Name = "a\u0085b" }, codes.InvalidArgument, []string{"name"}},
		"a content source of no kind": {func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{}
		}, codes.InvalidArgument, []string{"volume_content_source"}},
		"unknown mutable parameter": {func(r *csi.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"color": "blue"}
		}, codes.InvalidArgument, []string{"color"}},
	} {
		t.Run(name, func(t *testing.T) {
			request := &csi.CreateVolumeRequest{
				Name: harness.NameOf(t), CapacityRange: harness.RequiredBytes(64 * harness.MiB),
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4")},
			}
			test.change(request)

			_, err := d.CreateVolume(t.Context(), request)
			harness.RequireCode(t, err, test.code, test.words...)
		})
	}

	require.Equal(t, before, harness.Everything(t, d))
}

// TestCreateTakesAnyName shows that a name is only a name: it may look like a
// path, and any character is good that the spec does not ban.
func TestCreateTakesAnyName(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	ids := map[string]bool{}

	for _, name := range []string{"../../etc", "/etc/passwd", "..", "a\tb\n", "éñ–☃", " ", "%s", "a=b,c"} {
		made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
			CapacityRange: harness.RequiredBytes(harness.MiB),
		})
		require.NoError(t, err, "%q", name)

		parsed, err := uuid.Parse(made.GetVolume().GetVolumeId())
		require.NoError(t, err)
		require.EqualValues(t, 7, parsed.Version(), "want: the id of a volume is a UUID of version 7")
		require.Equal(t, parsed.String(), made.GetVolume().GetVolumeId())
		require.FileExists(t, harness.ImageOf(d, parsed.String()))

		ids[parsed.String()] = true
	}

	require.Len(t, ids, 8, "want: each name has an id of its own")
	require.Len(t, harness.ListAll(t, d), 8, "want: each name is a volume")

	// What is deleted and made again is not what it was.
	for id := range ids {
		harness.DeleteVolume(t, d, id)
	}

	made := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "éñ–☃"})
	require.NotContains(t, ids, made.VolumeID)
}

func TestVolumesAreMadeWhereTheTopologyAllows(t *testing.T) {
	t.Parallel()

	rack := &csi.Topology{Segments: map[string]string{"rack": "7"}}
	other := &csi.Topology{Segments: map[string]string{"rack": "8"}}
	third := &csi.Topology{Segments: map[string]string{"rack": "9"}}
	capitals := &csi.Topology{Segments: map[string]string{"RACK": "7"}}
	node := &csi.Topology{Segments: map[string]string{harness.NodeSegment: harness.NodeID, "rack": "7"}}
	d := harness.Start(t, func(c *driver.Config) { c.Topology = map[string]string{"rack": "7"} })

	info, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.True(t, proto.Equal(node, info.GetAccessibleTopology()), "got %v, want %v", info.GetAccessibleTopology(), node)

	for name, test := range map[string]struct {
		asked *csi.TopologyRequirement
		code  codes.Code
	}{
		"none":                    {nil, codes.OK},
		"empty":                   {&csi.TopologyRequirement{}, codes.InvalidArgument},
		"preferred, not required": {&csi.TopologyRequirement{Requisite: []*csi.Topology{rack}, Preferred: []*csi.Topology{other}}, codes.InvalidArgument},
		"one of two":              {&csi.TopologyRequirement{Requisite: []*csi.Topology{other, rack}}, codes.OK},
		"all segments":            {&csi.TopologyRequirement{Requisite: []*csi.Topology{node}}, codes.OK},
		"preferred only":          {&csi.TopologyRequirement{Preferred: []*csi.Topology{rack}}, codes.OK},
		"another preferred":       {&csi.TopologyRequirement{Preferred: []*csi.Topology{other}}, codes.OK},
		"both, another preferred": {&csi.TopologyRequirement{Requisite: []*csi.Topology{rack, other}, Preferred: []*csi.Topology{other}}, codes.OK},
		"another":                 {&csi.TopologyRequirement{Requisite: []*csi.Topology{other}}, codes.ResourceExhausted},
		"none of two":             {&csi.TopologyRequirement{Requisite: []*csi.Topology{other, third}}, codes.ResourceExhausted},
		"keys in capitals":        {&csi.TopologyRequirement{Requisite: []*csi.Topology{capitals}}, codes.OK},
		"preferred in capitals":   {&csi.TopologyRequirement{Requisite: []*csi.Topology{rack}, Preferred: []*csi.Topology{capitals}}, codes.OK},
		"keys that differ by case": {&csi.TopologyRequirement{Requisite: []*csi.Topology{
			{Segments: map[string]string{"rack": "7", "Rack": "7"}},
		}}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := d.CreateVolume(conformance.Exercise(t.Context(), placements(test.asked, rack)...), &csi.CreateVolumeRequest{
				Name: harness.NameOf(t), AccessibilityRequirements: test.asked, CapacityRange: harness.RequiredBytes(harness.MiB),
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
			})
			harness.RequireCode(t, err, test.code)

			if test.code == codes.OK {
				require.Len(t, made.GetVolume().GetAccessibleTopology(), 1, "want: the volume is accessible from one topology")
				require.True(t, proto.Equal(node, made.GetVolume().GetAccessibleTopology()[0]), "want: the volume is accessible from the node of the request")
			}
		})
	}

	for topology, some := range map[*csi.Topology]bool{rack: true, node: true, other: false, nil: true} {
		capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: topology})
		require.NoError(t, err)
		require.Equal(t, some, capacity.GetAvailableCapacity() > 0, "%v", topology)
	}

	_, err = d.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{
		Segments: map[string]string{"rack": "7", "Rack": "7"},
	}})
	harness.RequireCode(t, err, codes.InvalidArgument, "accessible_topology", "case")
}

// placements are conditions of a topology requirement; has is the only topology that is possible.
func placements(asked *csi.TopologyRequirement, has *csi.Topology) []conformance.Condition {
	var met []conformance.Condition

	for name, holds := range map[string]func(requisite, preferred []*csi.Topology) bool{
		"one requisite": func(requisite, _ []*csi.Topology) bool { return len(requisite) == 1 },
		"several requisites, one possible": func(requisite, _ []*csi.Topology) bool {
			return len(requisite) > 1 && slices.ContainsFunc(requisite, func(r *csi.Topology) bool { return proto.Equal(r, has) })
		},
		"no requisite possible": func(requisite, _ []*csi.Topology) bool {
			return len(requisite) > 0 && !slices.ContainsFunc(requisite, func(r *csi.Topology) bool {
				return r.GetSegments()["rack"] == has.GetSegments()["rack"] || r.GetSegments()["RACK"] != ""
			})
		},
		"preferred possible": func(_, preferred []*csi.Topology) bool { return len(preferred) == 1 && proto.Equal(preferred[0], has) },
		"preferred not among requisite": func(requisite, preferred []*csi.Topology) bool {
			return len(requisite) == 1 && len(preferred) == 1 && requisite[0].GetSegments()["rack"] != preferred[0].GetSegments()["rack"] &&
				preferred[0].GetSegments()["RACK"] == ""
		},
		"keys in another case": func(requisite, _ []*csi.Topology) bool {
			return len(requisite) == 1 && len(requisite[0].GetSegments()) == 1 && requisite[0].GetSegments()["RACK"] != ""
		},
		"keys that differ by case only": func(requisite, _ []*csi.Topology) bool {
			return len(requisite) == 1 && requisite[0].GetSegments()["rack"] != "" && requisite[0].GetSegments()["Rack"] != ""
		},
	} {
		if holds(asked.GetRequisite(), asked.GetPreferred()) {
			met = append(met, conformance.Where(name, func(r *csi.CreateVolumeRequest) bool {
				return holds(r.GetAccessibilityRequirements().GetRequisite(), r.GetAccessibilityRequirements().GetPreferred())
			}))
		}
	}

	return met
}

// TestAdvertisedRPCsAreServed calls nothing that other tests call; it compares
// the capabilities with UNIMPLEMENTED.
func TestAdvertisedRPCsAreServed(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	all, err := d.Capabilities(t.Context())
	require.NoError(t, err)

	ctx := t.Context()

	for capability, calls := range map[csi.ControllerServiceCapability_RPC_Type][]func() error{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME: {
			func() error { _, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{}); return err },
			func() error { _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: {
			func() error {
				_, err := d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{})
				return err
			},
			func() error {
				_, err := d.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{})
				return err
			},
		},
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES: {
			func() error { _, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_GET_CAPACITY: {
			func() error { _, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_GET_VOLUME: {
			func() error {
				_, err := d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{})
				return err
			},
		},
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME: {
			func() error {
				_, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{})
				return err
			},
		},
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT: {
			func() error { _, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{}); return err },
			func() error { _, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS: {
			func() error { _, err := d.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME: {
			func() error {
				_, err := d.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{})
				return err
			},
		},
	} {
		for _, call := range calls {
			served := status.Code(call()) != codes.Unimplemented
			require.Equal(t, all.HasControllerRPC(capability), served, "%s: %v", capability, call())
		}
	}

	for capability, calls := range map[csi.NodeServiceCapability_RPC_Type][]func() error{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: {
			func() error { _, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{}); return err },
			func() error { _, err := d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{}); return err },
		},
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS: {
			func() error { _, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{}); return err },
		},
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME: {
			func() error { _, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{}); return err },
		},
	} {
		for _, call := range calls {
			served := status.Code(call()) != codes.Unimplemented
			require.Equal(t, all.HasNodeRPC(capability), served, "%s: %v", capability, call())
		}
	}
}

// TestAFailedCreationLeavesNothing: a volume that cannot be recorded leaves no image.
func TestAFailedCreationLeavesNothing(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })

	served.Inject(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})
	t.Cleanup(func() { served.Release(t) })

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "volume", VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
	})
	harness.RequireCode(t, err, codes.Unavailable, "state")
	harness.RequireEntries(t, d, map[string]int{"images": 0, "scratch": 0})
}

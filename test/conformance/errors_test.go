package conformance_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// Ids and a token that are possible and unknown.
const (
	unknownID   = "01890a5d-ac96-774b-bcce-b302099a8057"
	unknownNode = "no-such-node"
	noToken     = "no token"
)

// row is a row of one of the spec's error tables: the RPC's name, the condition, and the code. call
// meets the condition with the fixture's ctx.
type row struct {
	rpc       string
	condition conformance.Condition
	code      codes.Code
	call      func(f *fixture) error
}

// fixture is a driver with what the conditions need.
type fixture struct {
	*harness.Driver

	// ctx is of the calls that meet a row's condition, plain of those beside them.
	ctx, plain context.Context //nolint:containedctx // of the test
	// free is a volume that is not attached; used one that is published on this node; member one
	// of a group.
	free, used, other *csiclient.Publication
	snapshot          string
	group             string
	members           []string
}

const size = 16 * harness.MiB

// isBeyond reports whether one of the capabilities is not of the fixture's volumes.
func isBeyond(capabilities ...*csi.VolumeCapability) bool {
	return slices.ContainsFunc(capabilities, func(c *csi.VolumeCapability) bool {
		return c.GetBlock() != nil || c.GetMount().GetFsType() == "xfs" || c.GetAccessMode().GetMode() == harness.NodesWrite
	})
}

var (
	mounted = csiclient.MountCapability(harness.Writer, "")
	asXFS   = csiclient.MountCapability(harness.Writer, "xfs")
	asBlock = csiclient.BlockCapability(harness.Writer)
	onNodes = csiclient.MountCapability(harness.NodesWrite, "")
)

func newFixture(t *testing.T, options ...harness.Option) *fixture {
	t.Helper()

	d := harness.Start(t, append([]harness.Option{harness.TwoNodes, func(c *driver.Config) { c.MaxVolumesPerNode = 2 }}, options...)...)
	f := &fixture{Driver: d, plain: context.WithoutCancel(t.Context())}

	_, err := d.Capabilities(f.plain)
	require.NoError(t, err)

	volume := func(name string) *csiclient.Publication {
		return harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Name: name, CapacityRange: harness.RequiredBytes(size), VolumeCapabilities: []*csi.VolumeCapability{mounted},
		})
	}

	f.free, f.used, f.other = volume("free"), volume("used"), volume("other")
	harness.BringUp(t, d, f.used)
	t.Cleanup(func() { harness.TakeDown(t, d, f.used) })

	made, err := d.CreateSnapshotAndWait(f.plain, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: f.free.VolumeID})
	require.NoError(t, err)

	f.snapshot = made.GetSnapshot().GetSnapshotId()

	grouped, err := d.CreateVolumeGroupSnapshot(f.plain, &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{f.free.VolumeID, f.other.VolumeID},
	})
	require.NoError(t, err)

	f.group = grouped.GetGroupSnapshot().GetGroupSnapshotId()
	for _, each := range grouped.GetGroupSnapshot().GetSnapshots() {
		f.members = append(f.members, each.GetSnapshotId())
	}

	return f
}

// rowIDs returns the ids of the rows of docs/spec.md for an RPC and a code, as "CreateVolume 3".
func rowIDs(t *testing.T) map[string]string {
	t.Helper()

	content, err := os.ReadFile("../../docs/spec/rows.tsv")
	require.NoError(t, err)

	ids := map[string]string{}

	for line := range strings.Lines(string(content)) {
		fields := strings.Split(line, "\t")
		rpc, ofErrors := strings.CutSuffix(fields[3], " Errors")

		if cells := strings.Split(fields[8], "|"); ofErrors && len(cells) > 2 {
			key := rpc + " " + strings.Fields(cells[2])[0]
			ids[key] = strings.TrimSpace(ids[key] + " " + fields[0])
		}
	}

	return ids
}

// TestErrorTables meets the conditions of the spec's error tables. The names of its parts begin with
// the ids of the rows.
func TestErrorTables(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	f, ids := newFixture(t), rowIDs(t)

	for _, rows := range [][]row{createRows, publishRows, snapshotRows, groupRows, listRows, stageRows, nodePublishRows, nodeRows, metadataRows} {
		for _, each := range rows {
			t.Run(ids[each.rpc+" "+strconv.Itoa(int(each.code))]+" "+each.rpc+" "+each.condition.Name, func(t *testing.T) {
				f.ctx = conformance.Exercise(f.plain, each.condition)

				harness.RequireCode(t, each.call(f), each.code)
			})
		}
	}
}

func (f *fixture) create(change func(r *csi.CreateVolumeRequest)) error {
	request := &csi.CreateVolumeRequest{
		Name: "made", CapacityRange: harness.RequiredBytes(size), VolumeCapabilities: []*csi.VolumeCapability{mounted},
	}
	change(request)

	made, err := f.CreateVolume(f.ctx, request)
	if err == nil && request.GetName() == "made" {
		_, err = f.DeleteVolume(f.plain, &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	}

	return err
}

var createRows = []row{
	{"CreateVolume", conformance.Is("name missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.Name = "" })
	}},
	{"CreateVolume", conformance.Is("volume_capabilities missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil })
	}},
	{"CreateVolume", conformance.Is("capacity_range empty"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} })
	}},
	{"CreateVolume", conformance.Is("accessibility_requirements empty"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = &csi.TopologyRequirement{} })
	}},
	{"CreateVolume", conformance.Where("volume_content_source incompatible", func(r *csi.CreateVolumeRequest) bool {
		return r.GetVolumeContentSource() != nil && isBeyond(r.GetVolumeCapabilities()...)
	}), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource, r.VolumeCapabilities = harness.FromSnapshot(f.snapshot), []*csi.VolumeCapability{asXFS}
		})
	}},
	{"CreateVolume", conformance.Is("volume_content_source.snapshot.snapshot_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = harness.FromSnapshot(unknownID) })
	}},
	{"CreateVolume", conformance.Is("volume_content_source.volume.volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = harness.FromVolume(unknownID) })
	}},
	{"CreateVolume", conformance.Is("other capacity_range"), codes.AlreadyExists, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.Name, r.CapacityRange = "free", harness.RequiredBytes(2*size) })
	}},
	{"CreateVolume", conformance.Is("other volume_capabilities"), codes.AlreadyExists, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.Name, r.VolumeCapabilities = "free", []*csi.VolumeCapability{asBlock}
		})
	}},
	{"CreateVolume", conformance.Is("other volume_capabilities"), codes.OK, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.Name, r.VolumeCapabilities = "free", []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4")}
		})
	}},
	{"CreateVolume", conformance.Is("other parameters"), codes.AlreadyExists, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.Name, r.Parameters = "free", map[string]string{"provisioning": "thick"}
		})
	}},
	{"CreateVolume", conformance.Is("other volume_content_source"), codes.AlreadyExists, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.Name, r.VolumeContentSource = "free", harness.FromSnapshot(f.snapshot)
		})
	}},
	{"CreateVolume", conformance.Where("requisite unreachable", func(r *csi.CreateVolumeRequest) bool {
		return r.GetAccessibilityRequirements().GetRequisite()[0].GetSegments()["zone"] == "other"
	}), codes.ResourceExhausted, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "other"}}}}
		})
	}},
	{"CreateVolume", conformance.Where("capacity_range unsupported", func(r *csi.CreateVolumeRequest) bool { return r.GetCapacityRange().GetLimitBytes() == 1 }), codes.OutOfRange, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 1} })
	}},
	{"CreateVolume", conformance.Where("a volume_context over its limit", func(r *csi.CreateVolumeRequest) bool { return len(r.GetParameters()["mkfsOptions"]) > 4000 }), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"mkfsOptions": longOption(4070)}
		})
	}},
	{"CreateVolume", conformance.Is("parameters over its limit"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"mkfsOptions": longOption(4090)} })
	}},
	{"CreateVolume", conformance.Is("volume_capabilities.mount.mount_flags over its limit"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "", slices.Repeat([]string{"noatime"}, 600)...)}
		})
	}},
	{"CreateVolume", conformance.Is("name over its limit"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) })
	}},
	{"CreateVolume", conformance.Is("volume_capabilities.access_mode missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{{AccessType: mounted.GetAccessType()}}
		})
	}},
	{"CreateVolume", conformance.Is("volume_capabilities.access_mode.mode missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{csiclient.MountCapability(csi.VolumeCapability_AccessMode_UNKNOWN, "")}
		})
	}},
	{"CreateVolume", conformance.Is("volume_capabilities.access_type missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{{AccessMode: mounted.GetAccessMode()}}
		})
	}},
	{"CreateVolume", conformance.Is("volume_content_source.type missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} })
	}},
	{"CreateVolume", conformance.Where("a key of mutable_parameters in parameters", func(r *csi.CreateVolumeRequest) bool {
		return r.GetParameters()["readAheadKiB"] != ""
	}), codes.InvalidArgument, func(f *fixture) error {
		return f.create(func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"readAheadKiB": "64"} })
	}},
	{"DeleteVolume", conformance.Is("volume_id missing"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{})
		return err
	}},
	{"DeleteVolume", conformance.Is("volume_id unknown"), codes.OK, func(f *fixture) error {
		_, err := f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{VolumeId: unknownID})
		return err
	}},
	{"DeleteVolume", conformance.Is("published to a node"), codes.FailedPrecondition, func(f *fixture) error {
		_, err := f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{VolumeId: f.used.VolumeID})
		return err
	}},
	{"ValidateVolumeCapabilities", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.validate(unknownID, mounted)
	}},
	{"ValidateVolumeCapabilities", conformance.Is("volume_capabilities missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.validate(f.free.VolumeID)
	}},
	{"ValidateVolumeCapabilities", conformance.Is("volume_capabilities.access_mode and volume_capabilities.access_type missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.validate(f.free.VolumeID, &csi.VolumeCapability{})
	}},
	{"GetCapacity", conformance.Is("volume_capabilities.access_mode and volume_capabilities.access_type missing"), codes.InvalidArgument, func(f *fixture) error {
		_, err := f.GetCapacity(f.ctx, &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{{}}})
		return err
	}},
	{"ControllerExpandVolume", conformance.Where("volume_capability beyond the volume", func(r *csi.ControllerExpandVolumeRequest) bool { return isBeyond(r.GetVolumeCapability()) }), codes.InvalidArgument, func(f *fixture) error {
		return f.expand(f.free.VolumeID, harness.RequiredBytes(2*size), asXFS)
	}},
	{"ControllerExpandVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.expand(unknownID, harness.RequiredBytes(2*size), nil)
	}},
	{"ControllerExpandVolume", conformance.Where("capacity_range unsupported", func(r *csi.ControllerExpandVolumeRequest) bool { return r.GetCapacityRange().GetLimitBytes() < size }), codes.OutOfRange, func(f *fixture) error {
		return f.expand(f.free.VolumeID, &csi.CapacityRange{LimitBytes: size / 2}, nil)
	}},
	{"ControllerExpandVolume", conformance.Is("capacity_range empty"), codes.InvalidArgument, func(f *fixture) error {
		return f.expand(f.free.VolumeID, &csi.CapacityRange{}, nil)
	}},
	{"ControllerModifyVolume", conformance.Where("mutable_parameters unsupported", func(r *csi.ControllerModifyVolumeRequest) bool {
		return r.GetMutableParameters()["noSuchParameter"] != ""
	}), codes.InvalidArgument, func(f *fixture) error {
		return f.modify(f.free.VolumeID, map[string]string{"noSuchParameter": "1"})
	}},
	{"ControllerModifyVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return f.modify(unknownID, map[string]string{"readAheadKiB": "128"})
	}},
	{"ControllerGetVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: unknownID})
		return err
	}},
	{"ControllerGetVolumeHealth", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		_, err := f.ControllerGetVolumeHealth(f.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: unknownID})
		return err
	}},
}

func (f *fixture) validate(id string, capabilities ...*csi.VolumeCapability) error {
	_, err := f.ValidateVolumeCapabilities(f.ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: capabilities})

	return err
}

func (f *fixture) expand(id string, size *csi.CapacityRange, capability *csi.VolumeCapability) error {
	_, err := f.ControllerExpandVolume(f.ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: size, VolumeCapability: capability,
	})

	return err
}

func (f *fixture) modify(id string, parameters map[string]string) error {
	_, err := f.ControllerModifyVolume(f.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: parameters})

	return err
}

// longOption is a valid option of mkfs.ext4 of that many bytes.
func longOption(bytes int) string {
	text := make([]byte, 0, bytes)
	for len(text) < bytes-len("-b 4096 ") {
		text = append(text, "-b 4096 "...)
	}

	return string(text)
}

func attached(f *fixture, change func(p *csiclient.Publication)) error {
	other := *f.used
	change(&other)

	return f.Attach(f.ctx, &other)
}

var publishRows = []row{
	{"ControllerPublishVolume", conformance.Is("volume_id unknown"), codes.NotFound, func(f *fixture) error {
		return attached(f, func(p *csiclient.Publication) { p.VolumeID = unknownID })
	}},
	{"ControllerPublishVolume", conformance.Where("node_id unknown", func(r *csi.ControllerPublishVolumeRequest) bool { return r.GetNodeId() == unknownNode }), codes.NotFound, func(f *fixture) error {
		return attached(f, func(p *csiclient.Publication) { p.NodeID = unknownNode })
	}},
	{"ControllerPublishVolume", conformance.Is("other readonly"), codes.AlreadyExists, func(f *fixture) error {
		return attached(f, func(p *csiclient.Publication) { p.ReadOnly = true })
	}},
	{"ControllerPublishVolume", conformance.Is("other volume_capability"), codes.OK, func(f *fixture) error {
		return attached(f, func(p *csiclient.Publication) { p.Capability = csiclient.MountCapability(harness.Writer, "ext4") })
	}},
	{"ControllerPublishVolume", conformance.Is("published to another node"), codes.FailedPrecondition, func(f *fixture) error {
		return attached(f, func(p *csiclient.Publication) { p.NodeID = harness.SecondNode })
	}},
	{"ControllerPublishVolume", conformance.Where("a node with all volumes that it can have", func(r *csi.ControllerPublishVolumeRequest) bool { return r.GetNodeId() == harness.NodeID }), codes.ResourceExhausted, func(f *fixture) error {
		first := *f.used
		first.VolumeID = f.free.VolumeID

		if err := f.Attach(f.plain, &first); err != nil {
			return err
		}

		err := attached(f, func(p *csiclient.Publication) { p.VolumeID = f.other.VolumeID })

		return errors.Join(f.Detach(f.plain, f.free), err)
	}},
	{"ControllerUnpublishVolume", conformance.Is("volume_id missing"), codes.InvalidArgument, func(f *fixture) error {
		return f.Detach(f.ctx, &csiclient.Publication{NodeID: harness.NodeID})
	}},
	{"ControllerUnpublishVolume", conformance.Is("volume_id unknown"), codes.OK, func(f *fixture) error {
		return f.Detach(f.ctx, &csiclient.Publication{VolumeID: unknownID, NodeID: harness.NodeID})
	}},
	{"ControllerUnpublishVolume", conformance.Where("node_id unknown", func(r *csi.ControllerUnpublishVolumeRequest) bool { return r.GetNodeId() == unknownNode }), codes.OK, func(f *fixture) error {
		return f.Detach(f.ctx, &csiclient.Publication{VolumeID: f.free.VolumeID, NodeID: unknownNode})
	}},
}

package strict_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// violations cause each kind.
var violations = []struct {
	id       string
	disabled []string
	run      func(f *fixture)
}{
	{"stage-before-attach", nil, func(f *fixture) { f.create(); f.call(f.stageRequest(), &csi.NodeStageVolumeResponse{}) }},
	{"publish-before-attach", []string{"STAGE_UNSTAGE_VOLUME"}, func(f *fixture) { f.create(); f.publish() }},
	{"publish-before-stage", nil, func(f *fixture) { f.create(); f.attach(); f.publish() }},
	{"publish-after-unstage", nil, func(f *fixture) { f.up(); f.unpublish(); f.unstage(); f.publish() }},
	{"expand-before-stage", nil, func(f *fixture) { f.create(); f.attach(); f.call(expand(f, 100), &csi.NodeExpandVolumeResponse{}) }},
	{"unstage-while-published", nil, func(f *fixture) { f.up(); f.unstage() }},
	{"detach-while-staged", nil, func(f *fixture) { f.create(); f.attach(); f.stage(); f.detach() }},
	{"detach-while-published", []string{"STAGE_UNSTAGE_VOLUME"}, func(f *fixture) { f.create(); f.attach(); f.publish(); f.detach() }},
	{"delete-while-in-use", nil, func(f *fixture) { f.create(); f.attach(); f.deleteVolume() }},
	{"expand-while-in-use", []string{"ONLINE"}, func(f *fixture) {
		f.create()
		f.attach()
		f.call(&csi.ControllerExpandVolumeRequest{VolumeId: f.id}, &csi.ControllerExpandVolumeResponse{CapacityBytes: 200})
	}},
	{"expand-without-controller", nil, func(f *fixture) { f.up(); f.call(expand(f, 200), &csi.NodeExpandVolumeResponse{}) }},
	{"volume-context-changed", nil, func(f *fixture) {
		f.create()

		request := f.attachRequest()
		request.VolumeContext = nil
		f.call(request, &csi.ControllerPublishVolumeResponse{PublishContext: publishContext()})
	}},
	{"publish-context-changed", nil, func(f *fixture) {
		f.create()
		f.attach()

		request := f.stageRequest()
		request.PublishContext = map[string]string{"slot": "2"}
		f.call(request, &csi.NodeStageVolumeResponse{})
	}},
	{"second-staging-path", nil, func(f *fixture) {
		f.create()
		f.attach()
		f.stage()

		request := f.stageRequest()
		request.StagingTargetPath = "/other"
		f.fail(request, codes.FailedPrecondition)
	}},
	{"target-path-shared", nil, func(f *fixture) {
		f.up()

		request := f.publishRequest()
		request.VolumeId = "another"
		f.fail(request, codes.AlreadyExists)
	}},
	{"create-changed", nil, func(f *fixture) {
		f.create()

		request := f.createRequest()
		request.Parameters = map[string]string{"pool": "fast"}
		f.fail(request, codes.AlreadyExists)
	}},
	{"group-member-deleted", nil, func(f *fixture) {
		f.call(&csi.CreateVolumeGroupSnapshotRequest{Name: "g"}, &csi.CreateVolumeGroupSnapshotResponse{
			GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: "g1", Snapshots: []*csi.Snapshot{{SnapshotId: "s1", GroupSnapshotId: "g1"}}},
		})
		f.fail(&csi.DeleteSnapshotRequest{SnapshotId: "s1"}, codes.InvalidArgument)
	}},
	{"call-not-advertised", []string{"LIST_VOLUMES"}, func(f *fixture) { f.fail(&csi.ListVolumesRequest{}, codes.Unimplemented) }},
	{"readonly-not-advertised", []string{"PUBLISH_READONLY"}, func(f *fixture) {
		f.create()

		request := f.attachRequest()
		request.Readonly = true
		f.fail(request, codes.InvalidArgument)
	}},
	{"mount-group-not-advertised", []string{"VOLUME_MOUNT_GROUP"}, func(f *fixture) {
		f.fail(&csi.CreateVolumeRequest{Name: "group", VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "100"}},
		}}}, codes.InvalidArgument)
	}},
	{"access-mode-not-advertised", []string{"SINGLE_NODE_MULTI_WRITER"}, func(f *fixture) {
		f.fail(&csi.ControllerPublishVolumeRequest{VolumeId: f.id, VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		}}, codes.InvalidArgument)
	}},
	{"content-source-not-advertised", []string{"CLONE_VOLUME"}, func(f *fixture) {
		f.fail(&csi.CreateVolumeRequest{Name: "clone", VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"},
		}}}, codes.InvalidArgument)
	}},
	{"topology-not-advertised", []string{"TOPOLOGY"}, func(f *fixture) {
		f.fail(&csi.CreateVolumeRequest{Name: "there", AccessibilityRequirements: &csi.TopologyRequirement{}}, codes.InvalidArgument)
	}},
	{"mutable-parameters-not-advertised", []string{"MODIFY_VOLUME"}, func(f *fixture) {
		f.fail(&csi.CreateVolumeRequest{Name: "fast", MutableParameters: map[string]string{"readIOPS": "5"}}, codes.InvalidArgument)
	}},
	{"publish-context-not-advertised", []string{"PUBLISH_UNPUBLISH_VOLUME"}, func(f *fixture) { f.create(); f.stage() }},
	{"secret-key-malformed", nil, func(f *fixture) {
		f.fail(&csi.DeleteVolumeRequest{VolumeId: f.id, Secrets: map[string]string{"a key": "x"}}, codes.NotFound)
	}},
	{"token-unknown", nil, func(f *fixture) { f.fail(&csi.ListVolumesRequest{StartingToken: "made-up"}, codes.Aborted) }},
	{"token-unknown", nil, func(f *fixture) {
		f.now = f.now.Add(time.Hour)
		f.call(&csi.ListVolumesRequest{StartingToken: "made-up"}, &csi.ListVolumesResponse{})
	}},
	{"token-reused", nil, func(f *fixture) {
		f.call(&csi.ListSnapshotsRequest{MaxEntries: 1}, &csi.ListSnapshotsResponse{NextToken: "t"})
		f.call(&csi.ListSnapshotsRequest{MaxEntries: 1, StartingToken: "t"}, &csi.ListSnapshotsResponse{})
		f.call(&csi.ListSnapshotsRequest{MaxEntries: 1, StartingToken: "t"}, &csi.ListSnapshotsResponse{})
	}},
	{"retry-without-backoff", nil, func(f *fixture) {
		for range 4 {
			f.fail(f.createRequest(), codes.ResourceExhausted)
			f.now = f.now.Add(100 * time.Millisecond)
		}
	}},
	{"concurrent-requests", nil, func(f *fixture) {
		f.create()
		f.attach()

		end := f.begin(f.t.Context(), f.stageRequest())
		f.call(&csi.NodeUnstageVolumeRequest{VolumeId: f.id, StagingTargetPath: staging}, &csi.NodeUnstageVolumeResponse{})
		end(&csi.NodeStageVolumeResponse{}, nil)
	}},
}

func TestEachKindIsFound(t *testing.T) {
	t.Parallel()

	caused := map[string]bool{}

	for _, test := range violations {
		caused[test.id] = true

		t.Run(test.id, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, strict.Observe, test.disabled...)
			test.run(f)
			require.Equal(t, []string{test.id}, f.ids())
			require.InDelta(t, 1, f.counted(test.id), 0, "want: the violation is counted once")
			require.Equal(t, 1, strings.Count(f.log.String(), "the CO violates the CSI spec"), f.log.String())
			require.Contains(t, f.log.String(), "violation="+test.id)

			record := f.List()[0]
			require.NotEmpty(t, record.Object, "want: the violation has its object")
			require.NotEmpty(t, record.Detail, "want: the violation has a detail")
			require.False(t, record.Refused, "want: the call was not refused")
		})
	}

	for _, kind := range strict.Kinds() {
		require.True(t, caused[kind.ID], "%s is caused by no test", kind.ID)
	}
}

// counted is the metric of a kind.
func (f *fixture) counted(id string) float64 {
	f.t.Helper()

	families, err := f.registry.Gather()
	require.NoError(f.t, err)

	for _, metric := range families[0].GetMetric() {
		if metric.GetLabel()[0].GetValue() == id {
			return metric.GetCounter().GetValue()
		}
	}

	return -1
}

func TestRefuseReturnsFailedPrecondition(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Refuse)
	f.create()

	_, err := f.Begin(t.Context(), 2, csi.Node_NodeStageVolume_FullMethodName, f.stageRequest())
	rpccode.Require(t, err, codes.FailedPrecondition)
	errtext.Require(t, err, "violation stage-before-attach, CSI spec NSV-3")
	errtext.Require(t, err, f.id)
	require.True(t, f.List()[0].Refused, "want: the call was refused")

	// The refused call is no call that runs, and the right order passes.
	f.now = f.now.Add(time.Minute)
	f.attach()
	f.stage()
	f.publish()
	f.down()
	require.Len(t, f.List(), 1, "want: the refused call is the only violation")
}

func TestAViolationIsLoggedOnce(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Observe)
	f.create()
	f.stage()
	f.stage()

	require.Equal(t, uint64(2), f.List()[0].Count, "want: the repeated violation is counted")
	require.Equal(t, uint64(3), f.List()[0].Call, "want: the record has the call of the last violation")
	require.Equal(t, 1, strings.Count(f.log.String(), "the CO violates the CSI spec"), "want: the repeated violation is logged once")
	require.InDelta(t, 2, f.counted("stage-before-attach"), 0, "want: both violations are counted")

	f.Clear()
	require.Empty(t, f.List(), "want: Clear removes all violations")
}

// TestRecordsAreBounded has more violations than are kept, of objects with long ids.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Observe)

	for i := range 1100 {
		f.fail(&csi.DeleteVolumeRequest{VolumeId: strconv.Itoa(i) + strings.Repeat("v", 300), Secrets: map[string]string{"": "x"}}, codes.NotFound)
		f.now = f.now.Add(time.Second)
	}

	list := f.List()
	require.Equal(t, 1000, len(list), "want: the records are limited") //nolint:testifylint // Len prints all of them
	require.Less(t, len(list[len(list)-1].Object), 300, "want: the object of a record is limited")
	require.True(t, strings.HasPrefix(list[len(list)-1].Object, "1099"), "want: the newest violation is the last")
}

// TestKindsCiteTheSpec requires each kind to cite rows of docs/spec/rows.tsv, and to be in
// docs/strict.md as the table has it.
func TestKindsCiteTheSpec(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../../docs/spec/rows.tsv")
	require.NoError(t, err)

	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		id, _, _ := strings.Cut(line, "\t")
		rows[id] = true
	}

	page, err := os.ReadFile("../../../docs/strict.md")
	require.NoError(t, err)

	var table strings.Builder

	ids := map[string]bool{}

	for _, kind := range strict.Kinds() {
		require.False(t, ids[kind.ID], "%s is there twice", kind.ID)
		ids[kind.ID] = true

		require.NotEmpty(t, kind.Rows, kind.ID)
		require.NotEmpty(t, kind.What, kind.ID)
		require.NotEmpty(t, kind.Remedy, kind.ID)

		for _, row := range kind.Rows {
			require.True(t, rows[row], "%s cites %s, which docs/spec/rows.tsv lacks", kind.ID, row)
		}

		table.WriteString("| `" + kind.ID + "` | " + kind.What + " | " + strings.Join(kind.Rows, ", ") + " | " + kind.Remedy + " |\n")
	}

	documented := regexp.MustCompile("(?m)^\\| `[a-z-]+` \\|.*\n").FindAllString(string(page), -1)
	require.Equal(t, table.String(), strings.Join(documented, ""), "the table of docs/strict.md")
}

// TestNewGroupMembersAreRemembered has more members of group snapshots than are remembered: the
// newest are known.
func TestNewGroupMembersAreRemembered(t *testing.T) {
	t.Parallel()

	f, listed := newFixture(t, strict.Observe), &csi.ListSnapshotsResponse{}

	for number := range 10_001 {
		listed.Entries = append(listed.Entries, &csi.ListSnapshotsResponse_Entry{
			Snapshot: &csi.Snapshot{SnapshotId: strconv.Itoa(number), GroupSnapshotId: "g"},
		})
	}

	f.call(&csi.ListSnapshotsRequest{}, listed)
	f.call(&csi.DeleteSnapshotRequest{SnapshotId: "0"}, &csi.DeleteSnapshotResponse{})
	require.Empty(t, f.ids(), "the oldest one is forgotten")

	f.fail(&csi.DeleteSnapshotRequest{SnapshotId: "10000"}, codes.InvalidArgument)
	require.Equal(t, []string{"group-member-deleted"}, f.ids())
}

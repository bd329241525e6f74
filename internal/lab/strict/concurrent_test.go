package strict_test

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

const otherTarget = "/other-target"

// writes are requests that change the volume "v" of the name "n", by a name of their own.
func writes() map[string]proto.Message {
	return map[string]proto.Message{
		"create":             &csi.CreateVolumeRequest{Name: "n"},
		"create-larger":      &csi.CreateVolumeRequest{Name: "n", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}},
		"delete":             &csi.DeleteVolumeRequest{VolumeId: "v"},
		"attach-1":           &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: node},
		"attach-1-read-only": &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: node, Readonly: true},
		"attach-2":           &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "node-2"},
		"detach-1":           &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: node},
		"detach-2":           &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: "node-2"},
		"detach-all":         &csi.ControllerUnpublishVolumeRequest{VolumeId: "v"},
		"expand-1":           &csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}},
		"expand-2":           &csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 2}},
		"modify-1":           &csi.ControllerModifyVolumeRequest{VolumeId: "v", MutableParameters: map[string]string{"readIOPS": "1"}},
		"modify-2":           &csi.ControllerModifyVolumeRequest{VolumeId: "v", MutableParameters: map[string]string{"readIOPS": "2"}},
		"stage":              &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: staging},
		"stage-other":        &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/other-staging"},
		"unstage":            &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: staging},
		"publish":            &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target},
		"publish-read-only":  &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target, Readonly: true},
		"publish-other":      &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: otherTarget},
		"unpublish":          &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target},
		"unpublish-other":    &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: otherTarget},
		"node-expand-1":      &csi.NodeExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}},
		"node-expand-2":      &csi.NodeExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 2}},
	}
}

// conflicts has which other requests each one excludes.
var conflicts = map[string]string{
	"create":        "create-larger",
	"create-larger": "create",
	"delete": "attach-1 attach-1-read-only attach-2 detach-1 detach-2 detach-all expand-1 expand-2 modify-1 modify-2 " +
		"stage stage-other unstage publish publish-read-only publish-other unpublish unpublish-other node-expand-1 node-expand-2",
	"attach-1":           "delete detach-1 detach-all attach-1-read-only",
	"attach-1-read-only": "delete detach-1 detach-all attach-1",
	"attach-2":           "delete detach-2 detach-all",
	"detach-1": "delete detach-all attach-1 attach-1-read-only stage stage-other unstage publish publish-read-only publish-other " +
		"unpublish unpublish-other node-expand-1 node-expand-2",
	"detach-2": "delete detach-all attach-2",
	"detach-all": "delete detach-1 detach-2 attach-1 attach-1-read-only attach-2 stage stage-other unstage publish publish-read-only " +
		"publish-other unpublish unpublish-other node-expand-1 node-expand-2",
	"expand-1":    "delete expand-2",
	"expand-2":    "delete expand-1",
	"modify-1":    "delete modify-2",
	"modify-2":    "delete modify-1",
	"stage":       "delete detach-1 detach-all unstage stage-other",
	"stage-other": "delete detach-1 detach-all unstage stage",
	"unstage": "delete detach-1 detach-all stage stage-other publish publish-read-only publish-other unpublish unpublish-other " +
		"node-expand-1 node-expand-2",
	"publish":           "delete detach-1 detach-all unstage publish-read-only unpublish",
	"publish-read-only": "delete detach-1 detach-all unstage publish unpublish",
	"publish-other":     "delete detach-1 detach-all unstage unpublish-other",
	"unpublish":         "delete detach-1 detach-all unstage publish publish-read-only",
	"unpublish-other":   "delete detach-1 detach-all unstage publish-other",
	"node-expand-1":     "delete detach-1 detach-all unstage node-expand-2",
	"node-expand-2":     "delete detach-1 detach-all unstage node-expand-1",
}

// TestWhichRequestsConflict begins each request while each other one runs.
func TestWhichRequestsConflict(t *testing.T) {
	t.Parallel()

	for running, first := range writes() {
		f := newFixture(t, strict.Observe)
		end := f.begin(t.Context(), first)
		excluded := map[string]bool{}

		for other := range strings.FieldsSeq(conflicts[running]) {
			excluded[other] = true
		}

		for other, second := range writes() {
			endOther := f.begin(t.Context(), second)
			require.Equal(t, excluded[other], len(f.List()) > 0, "want: %s while %s runs is a conflict or not", other, running)

			if excluded[other] {
				require.Equal(t, []string{"concurrent-requests"}, f.ids(), "%s while %s runs", other, running)
			}

			f.Clear()
			endOther(nil, errFailed)
		}

		end(nil, errFailed)

		for other, second := range writes() {
			f.begin(t.Context(), second)(nil, errFailed)
			require.Empty(t, f.ids(), "want: %s after the end of %s is no conflict", other, running)
		}
	}
}

// TestTheEndOfOneRequestLeavesTheOthersRunning, of one volume.
func TestTheEndOfOneRequestLeavesTheOthersRunning(t *testing.T) {
	t.Parallel()

	f, requests := newFixture(t, strict.Observe), writes()
	end := f.begin(t.Context(), requests["publish"])
	endOther := f.begin(t.Context(), requests["publish-other"])

	end(nil, errFailed)

	f.begin(t.Context(), requests["unpublish"])(nil, errFailed)
	require.Empty(t, f.ids(), "want: the ended request conflicts with none")

	f.begin(t.Context(), requests["unpublish-other"])(nil, errFailed)

	record := f.List()[0]
	require.Equal(t, []string{"concurrent-requests", "v", "NodePublishVolume runs"}, []string{record.ID, record.Object, record.Detail},
		"want: the other request still runs")
	endOther(nil, errFailed)
}

package strict_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

var errFailed = status.Error(codes.Internal, "it fails")

// orders are calls, and the violations of them: the kind and the detail of each.
var orders = map[string]struct {
	disabled []string
	run      func(f *fixture)
	want     []string
}{
	"a detach of another node": {run: func(f *fixture) { f.up(); f.detachFrom("node-2") }},
	"a detach of all nodes": {
		run:  func(f *fixture) { f.up(); f.detachFrom("") },
		want: []string{"detach-while-published: it is published at /target", "detach-while-staged: it is staged at /staging"},
	},
	"a stage after a detach of all nodes": {
		run:  func(f *fixture) { f.create(); f.attach(); f.detachFrom(""); f.stage() },
		want: []string{"stage-before-attach: it is not attached to node node-1"},
	},
	"a stage after a detach of another node": {run: func(f *fixture) { f.create(); f.attach(); f.detachFrom("node-2"); f.stage() }},
	"a stage after an attach to another node": {
		run:  func(f *fixture) { f.create(); f.attachTo("node-2"); f.stage() },
		want: []string{"stage-before-attach: it is not attached to node node-1"},
	},
	"a stage where nothing attaches": {
		disabled: []string{"PUBLISH_UNPUBLISH_VOLUME"},
		run: func(f *fixture) {
			f.create()
			f.call(&csi.NodeStageVolumeRequest{VolumeId: f.id, StagingTargetPath: staging, VolumeContext: volumeContext()}, &csi.NodeStageVolumeResponse{})
		},
	},
	"a publication of a volume attached to another node": {
		disabled: []string{"STAGE_UNSTAGE_VOLUME"},
		run:      func(f *fixture) { f.create(); f.attachTo("node-2"); f.publish() },
		want:     []string{"publish-before-attach: it is not attached to node node-1"},
	},
	"a publication at another staging path": {
		run: func(f *fixture) {
			f.create()
			f.attach()
			f.stage()

			request := f.publishRequest()
			request.StagingTargetPath = "/other"
			f.call(request, &csi.NodePublishVolumeResponse{})
		},
		want: []string{"second-staging-path: it is staged at /staging"},
	},
	"an unstage at another path ends no staging": {
		run:  func(f *fixture) { f.create(); f.attach(); f.stage(); f.unstageFrom("/other"); f.detach() },
		want: []string{"detach-while-staged: it is staged at /staging"},
	},
	"a second unstage keeps the path": {
		run: func(f *fixture) {
			f.create()
			f.attach()
			f.stage()
			f.unstage()
			f.unstageFrom("/other")
			f.publish()
		},
		want: []string{"publish-after-unstage: it was unstaged from /staging"},
	},
	"an unstage of a volume of the run before": {
		run:  func(f *fixture) { f.attach(); f.unstage(); f.publish() },
		want: []string{"publish-after-unstage: it was unstaged from /staging"},
	},
	"the context marks no ephemeral volume": {
		run: func(f *fixture) {
			f.create()
			f.attach()

			request := f.publishRequest()
			request.VolumeContext["csi.storage.k8s.io/ephemeral"] = "false"
			f.call(request, &csi.NodePublishVolumeResponse{})
		},
		want: []string{"publish-before-stage: it is not staged"},
	},
	"other contexts at each call": {
		run: func(f *fixture) {
			f.create()
			f.call(&csi.ValidateVolumeCapabilitiesRequest{VolumeId: f.id}, &csi.ValidateVolumeCapabilitiesResponse{})
			f.attach()
			f.stage()

			request := f.publishRequest()
			request.VolumeContext["more"] = "1"
			request.PublishContext["more"] = "1"
			f.call(request, &csi.NodePublishVolumeResponse{})
		},
		want: []string{
			"volume-context-changed: volume_context is not that of CreateVolume",
			"publish-context-changed: publish_context is not that of ControllerPublishVolume for node node-1",
		},
	},
	"any publish_context where the attachment is unknown": {run: func(f *fixture) { f.stage(); f.publish() }},
	"the volume moves to the target path of another": {
		run: func(f *fixture) {
			f.up()

			first := f.id
			f.id = "other"
			f.publish()
			f.id = first
			f.unstage()
		},
		want: []string{"target-path-shared: volume ID is published at its target_path"},
	},
	"a target path of a removed volume is free": {
		run: func(f *fixture) {
			f.up()
			f.deleteVolume()

			request := f.publishRequest()
			request.VolumeId = "other"
			f.call(request, &csi.NodePublishVolumeResponse{})
		},
		want: []string{"delete-while-in-use: it is attached to node node-1"},
	},
	"a target path that is free again": {
		run: func(f *fixture) {
			f.up()
			f.unpublish()

			request := f.publishRequest()
			request.VolumeId = "other"
			f.call(request, &csi.NodePublishVolumeResponse{})
		},
	},
	"a removal while published": {
		disabled: []string{"PUBLISH_UNPUBLISH_VOLUME"},
		run: func(f *fixture) {
			f.publishAt("/b")
			f.publishAt("/a")
			f.deleteVolume()
		},
		want: []string{"delete-while-in-use: it is published at /a"},
	},
	"a removal while staged": {
		run:  func(f *fixture) { f.stage(); f.deleteVolume() },
		want: []string{"delete-while-in-use: it is staged at /staging"},
	},
	"an expansion of a volume that is not in use": {
		disabled: []string{"ONLINE"},
		run: func(f *fixture) {
			f.create()
			f.call(&csi.ControllerExpandVolumeRequest{VolumeId: f.id}, &csi.ControllerExpandVolumeResponse{CapacityBytes: 200})
		},
	},
	"a larger expansion than the controller's": {
		run: func(f *fixture) {
			f.up()
			f.call(expand(f, 100), &csi.NodeExpandVolumeResponse{})
			f.call(expand(f, 101), &csi.NodeExpandVolumeResponse{})
		},
		want: []string{"expand-without-controller: 101 bytes are required; the controller has returned 100"},
	},
	"a larger expansion where the controller does not expand": {
		disabled: []string{"controller:EXPAND_VOLUME"},
		run:      func(f *fixture) { f.up(); f.call(expand(f, 200), &csi.NodeExpandVolumeResponse{}) },
	},
	"a repeated creation shrinks no volume": {
		run: func(f *fixture) {
			f.up()
			f.call(&csi.ControllerExpandVolumeRequest{VolumeId: f.id}, &csi.ControllerExpandVolumeResponse{CapacityBytes: 200})
			f.create()
			f.call(expand(f, 200), &csi.NodeExpandVolumeResponse{})
		},
	},
	"an expansion of a volume whose capacity is unknown": {run: func(f *fixture) { f.stage(); f.call(expand(f, 200), &csi.NodeExpandVolumeResponse{}) }},
	"an expansion without a controller": {
		disabled: []string{"CONTROLLER_SERVICE"},
		run: func(f *fixture) {
			f.create()
			f.call(&csi.NodeStageVolumeRequest{VolumeId: f.id, VolumeContext: volumeContext()}, &csi.NodeStageVolumeResponse{})
			f.call(expand(f, 200), &csi.NodeExpandVolumeResponse{})
		},
		want: []string{"call-not-advertised: CONTROLLER_SERVICE is not advertised"},
	},
	"an expansion of a published volume where nothing stages": {
		disabled: []string{"STAGE_UNSTAGE_VOLUME"},
		run: func(f *fixture) {
			f.create()
			f.attach()
			f.publish()
			f.call(expand(f, 100), &csi.NodeExpandVolumeResponse{})
		},
	},
	"an expansion before the publication where nothing stages": {
		disabled: []string{"STAGE_UNSTAGE_VOLUME"},
		run:      func(f *fixture) { f.create(); f.attach(); f.call(expand(f, 100), &csi.NodeExpandVolumeResponse{}) },
		want:     []string{"expand-before-stage: it is not staged or published"},
	},
	"an expansion of a volume of the run before where nothing stages": {
		disabled: []string{"STAGE_UNSTAGE_VOLUME"},
		run:      func(f *fixture) { f.attach(); f.call(expand(f, 100), &csi.NodeExpandVolumeResponse{}) },
	},
	"a creation of a volume that is known already": {run: func(f *fixture) { f.attach(); f.create(); f.publish() }},
	"a volume with an id of another form":          {run: func(f *fixture) { f.id = "mine"; f.create(); f.publish() }},
	"a volume with a random id": {
		run: func(f *fixture) { f.id = "3e0c0f5e-8f5a-4b57-9b7e-6d7c3b8b6a11"; f.create(); f.publish() },
	},
	"a name that another volume has now": {
		run: func(f *fixture) {
			f.create()
			first := f.id

			f.id = "other"
			f.create()
			f.id = first
			f.deleteVolume()

			request := f.createRequest()
			request.Parameters = nil
			f.call(request, &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "other"}})
		},
		want: []string{"create-changed: volume other has that name and was created by another request"},
	},
	"a name that its volume has no more": {
		run: func(f *fixture) {
			f.create()

			request := f.createRequest()
			request.Name = "renamed"
			f.call(request, &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: f.id}})

			request = f.createRequest()
			request.Parameters = nil
			f.call(request, &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "new"}})
		},
	},
	"the last publication ends, and the rest of an old volume is known": {
		run: func(f *fixture) {
			f.stage()
			f.publish()
			f.unpublish()
			f.detach()
		},
		want: []string{"detach-while-staged: it is staged at /staging"},
	},
	"the last publication ends, and the attachment of an old volume is known": {
		run: func(f *fixture) {
			f.attach()
			f.publish()
			f.unpublish()
			f.deleteVolume()
		},
		want: []string{"delete-while-in-use: it is attached to node node-1"},
	},
	"the last publication ends, and the context of an old volume is known": {
		run: func(f *fixture) {
			f.id = "old"
			f.create()
			f.publish()
			f.unpublish()

			request := f.attachRequest()
			request.VolumeContext = nil
			f.call(request, &csi.ControllerPublishVolumeResponse{})
		},
		want: []string{"volume-context-changed: volume_context is not that of CreateVolume"},
	},
	"one of two publications of an old volume ends": {
		run: func(f *fixture) {
			f.publish()
			f.publishAt("/second")
			f.unpublish()
			f.unstage()
		},
		want: []string{"unstage-while-published: it is published at /second"},
	},
}

// TestWhatTheOrderOfCallsViolates compares all violations of each sequence of calls.
func TestWhatTheOrderOfCallsViolates(t *testing.T) {
	t.Parallel()

	for name, test := range orders {
		f := newFixture(t, strict.Observe, test.disabled...)
		id := f.id
		test.run(f)

		got := []string{}
		for _, each := range f.List() {
			got = append(got, each.ID+": "+replaceID(each.Detail, id))
		}

		require.Equal(t, append([]string{}, test.want...), got, "want: the violations of: %s", name)
	}
}

func replaceID(text, id string) string {
	if at := len("volume "); len(text) >= at+len(id) && text[at:at+len(id)] == id {
		return text[:at] + "ID" + text[at+len(id):]
	}

	return text
}

func (f *fixture) attachTo(on string) {
	f.t.Helper()
	f.call(&csi.ControllerPublishVolumeRequest{VolumeId: f.id, NodeId: on, VolumeContext: volumeContext()},
		&csi.ControllerPublishVolumeResponse{PublishContext: publishContext()})
}

func (f *fixture) detachFrom(on string) {
	f.t.Helper()
	f.call(&csi.ControllerUnpublishVolumeRequest{VolumeId: f.id, NodeId: on}, &csi.ControllerUnpublishVolumeResponse{})
}

func (f *fixture) unstageFrom(path string) {
	f.t.Helper()
	f.call(&csi.NodeUnstageVolumeRequest{VolumeId: f.id, StagingTargetPath: path}, &csi.NodeUnstageVolumeResponse{})
}

func (f *fixture) publishAt(path string) {
	f.t.Helper()
	f.call(&csi.NodePublishVolumeRequest{VolumeId: f.id, StagingTargetPath: staging, TargetPath: path}, &csi.NodePublishVolumeResponse{})
}

// TestVolumesSinceTheStartAreKnownFromTheirBeginning, to the millisecond that their ids have.
func TestVolumesSinceTheStartAreKnownFromTheirBeginning(t *testing.T) {
	t.Parallel()

	for offset, want := range map[time.Duration]int{-time.Millisecond: 0, 0: 1, time.Millisecond: 1} {
		f := newFixture(t, strict.Observe)

		made, err := uuid.NewV7()
		require.NoError(t, err)

		var stamp [8]byte

		binary.BigEndian.PutUint64(stamp[:], uint64(f.now.Add(offset).UnixMilli()))
		copy(made[:6], stamp[2:])

		f.id = made.String()
		f.create()
		f.stage()
		require.Len(t, f.List(), want, "want: a volume made %v after the start is known or not", offset)
	}
}

// TestMembersAreKnownUntilTheirGroupIsRemoved: each response with a member makes it known, and the removal of its group ends that.
func TestMembersAreKnownUntilTheirGroupIsRemoved(t *testing.T) {
	t.Parallel()

	member, alone := &csi.Snapshot{SnapshotId: "s", GroupSnapshotId: "g"}, &csi.Snapshot{SnapshotId: "s"}

	for _, test := range []struct {
		request, response proto.Message
		want              int
	}{
		{&csi.CreateSnapshotRequest{Name: "s"}, &csi.CreateSnapshotResponse{Snapshot: member}, 1},
		{&csi.CreateSnapshotRequest{Name: "s"}, &csi.CreateSnapshotResponse{Snapshot: alone}, 0},
		{&csi.GetSnapshotRequest{SnapshotId: "s"}, &csi.GetSnapshotResponse{Snapshot: member}, 1},
		{&csi.ListSnapshotsRequest{}, &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: member}}}, 1},
		{&csi.CreateVolumeGroupSnapshotRequest{Name: "g"}, &csi.CreateVolumeGroupSnapshotResponse{
			GroupSnapshot: &csi.VolumeGroupSnapshot{Snapshots: []*csi.Snapshot{member}},
		}, 1},
		{&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g"}, &csi.GetVolumeGroupSnapshotResponse{
			GroupSnapshot: &csi.VolumeGroupSnapshot{Snapshots: []*csi.Snapshot{member}},
		}, 1},
	} {
		f := newFixture(t, strict.Observe)
		f.call(test.request, test.response)
		f.call(&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "another"}, &csi.DeleteVolumeGroupSnapshotResponse{})
		f.begin(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "s"})(nil, errFailed)
		require.Len(t, f.List(), test.want, "want: %T makes a member known or not", test.response)

		if test.want > 0 {
			require.Equal(t, "it is a member of the group snapshot g", f.List()[0].Detail, "want: the group of the member by %T", test.response)
		}

		f.call(&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g"}, &csi.DeleteVolumeGroupSnapshotResponse{})
		f.Clear()
		f.call(&csi.DeleteSnapshotRequest{SnapshotId: "s"}, &csi.DeleteSnapshotResponse{})
		require.Empty(t, f.List(), "want: the members of a removed group are none, by %T", test.response)
	}
}

package strict_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

// legitimate are patterns of kubelet and sidecars that are no violations.
var legitimate = map[string]func(f *fixture){
	"a lifecycle": func(f *fixture) { f.up(); f.down() },
	"twice the same name": func(f *fixture) {
		f.up()
		f.down()
		f.id = volume.NewID()
		f.up()
		f.down()
	},
	"each call twice": func(f *fixture) {
		for _, step := range []func(){
			f.create, f.attach, f.stage, f.publish, f.unpublish, f.unstage, f.detach, f.deleteVolume,
		} {
			step()
			step()
		}
	},
	"unpublish, unstage, detach and delete of what is not there": func(f *fixture) { f.down() },
	"unstage of a volume that was never staged":                  func(f *fixture) { f.create(); f.attach(); f.unpublish(); f.unstage(); f.detach() },
	"staged again after the unstaging": func(f *fixture) {
		f.up()
		f.unpublish()
		f.unstage()
		f.stage()
		f.publish()
		f.down()
	},
	"a failed stage is undone": func(f *fixture) {
		f.create()
		f.attach()
		f.fail(f.stageRequest(), codes.Internal)
		f.unstage()
		f.detach()
		f.deleteVolume()
	},
	"retries with backoff": func(f *fixture) {
		for _, delay := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second} {
			f.fail(f.createRequest(), codes.Internal)
			f.now = f.now.Add(delay)
		}
	},
	"a retry after a timeout, while the first runs": func(f *fixture) {
		ctx, cancel := context.WithCancel(f.t.Context())
		end := f.begin(ctx, f.createRequest())
		cancel()
		f.create()
		end(nil, status.Error(codes.Canceled, "the caller has gone"))
	},
	"unstage after a stage that was given up": func(f *fixture) {
		f.create()
		f.attach()

		ctx, cancel := context.WithCancel(f.t.Context())
		end := f.begin(ctx, f.stageRequest())
		cancel()
		f.unstage()
		end(nil, status.Error(codes.Canceled, "the caller has gone"))
	},
	"publications of several pods at once": func(f *fixture) {
		f.create()
		f.attach()
		f.stage()

		second := f.publishRequest()
		second.TargetPath = "/second"
		end := f.begin(f.t.Context(), second)
		f.publish()
		end(&csi.NodePublishVolumeResponse{}, nil)
	},
	"attachments to several nodes at once": func(f *fixture) {
		f.create()

		second := f.attachRequest()
		second.NodeId = "node-2"
		end := f.begin(f.t.Context(), second)
		f.attach()
		end(&csi.ControllerPublishVolumeResponse{}, nil)
	},
	"keys that Kubernetes adds": func(f *fixture) {
		f.create()
		f.attach()

		request := f.stageRequest()
		request.VolumeContext["storage.kubernetes.io/csiProvisionerIdentity"] = "provisioner"
		f.call(request, &csi.NodeStageVolumeResponse{})

		published := f.publishRequest()
		published.VolumeContext["csi.storage.k8s.io/pod.name"] = "pod"
		published.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "token"
		f.call(published, &csi.NodePublishVolumeResponse{})
	},
	"an inline ephemeral volume": func(f *fixture) {
		request := f.publishRequest()
		request.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
		request.PublishContext, request.StagingTargetPath = nil, ""
		f.call(request, &csi.NodePublishVolumeResponse{})
		f.unpublish()
		f.call(request, &csi.NodePublishVolumeResponse{})
		f.unpublish()
	},
	"after a restart, of a volume of the run before": func(f *fixture) {
		f.publish()
		f.unpublish()
		f.unstage()
		f.detach()
		f.deleteVolume()
	},
	"a repeated creation of a volume that is in use, after a restart": func(f *fixture) {
		f.now = f.now.Add(time.Hour)
		f.id = "01890a5d-ac96-774b-bcce-b302099a8057" // of 2023
		f.create()
		f.publish()
		f.unpublish()
		f.unstage()
	},
	"an expansion": func(f *fixture) {
		f.up()
		f.call(&csi.ControllerExpandVolumeRequest{VolumeId: f.id}, &csi.ControllerExpandVolumeResponse{CapacityBytes: 200})
		f.call(expand(f, 200), &csi.NodeExpandVolumeResponse{})
		f.down()
	},
	"a list page by page, repeated where it failed": func(f *fixture) {
		f.call(&csi.ListVolumesRequest{MaxEntries: 1}, &csi.ListVolumesResponse{NextToken: "t"})
		f.fail(&csi.ListVolumesRequest{MaxEntries: 1, StartingToken: "t"}, codes.Unavailable)

		ctx, cancel := context.WithCancel(f.t.Context())
		end := f.begin(ctx, &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: "t"})
		cancel()
		end(&csi.ListVolumesResponse{NextToken: "u"}, nil) // the CO has not got it
		f.call(&csi.ListVolumesRequest{MaxEntries: 1, StartingToken: "t"}, &csi.ListVolumesResponse{NextToken: "u"})
		f.call(&csi.ListVolumesRequest{MaxEntries: 1, StartingToken: "u"}, &csi.ListVolumesResponse{})
	},
	"a token of the run before": func(f *fixture) {
		f.call(&csi.ListVolumesRequest{StartingToken: f.id}, &csi.ListVolumesResponse{})
	},
	"two lists at once": func(f *fixture) {
		for range 2 {
			f.call(&csi.ListVolumesRequest{MaxEntries: 1}, &csi.ListVolumesResponse{NextToken: "t"})
		}

		for range 2 {
			f.call(&csi.ListVolumesRequest{MaxEntries: 1, StartingToken: "t"}, &csi.ListVolumesResponse{})
		}
	},
	"a group, deleted as a whole": func(f *fixture) {
		f.call(&csi.CreateVolumeGroupSnapshotRequest{Name: "g"}, &csi.CreateVolumeGroupSnapshotResponse{
			GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: "g1", Snapshots: []*csi.Snapshot{{SnapshotId: "s1", GroupSnapshotId: "g1"}}},
		})
		f.call(&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g1"}, &csi.DeleteVolumeGroupSnapshotResponse{})
		f.call(&csi.DeleteSnapshotRequest{SnapshotId: "s1"}, &csi.DeleteSnapshotResponse{})
	},
	"polling of Probe": func(f *fixture) {
		for range 10 {
			f.fail(&csi.ProbeRequest{}, codes.FailedPrecondition)
		}
	},
	"another topology after RESOURCE_EXHAUSTED": func(f *fixture) {
		f.fail(f.createRequest(), codes.ResourceExhausted)

		request := f.createRequest()
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{}}}
		f.call(request, &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: f.id, VolumeContext: volumeContext()}})
	},
}

func TestLegitimatePatternsAreNoViolations(t *testing.T) {
	t.Parallel()

	for name, run := range legitimate {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, strict.Observe)
			run(f)
			require.Empty(t, f.List(), "want: a legitimate pattern is no violation")
			require.Empty(t, f.log.String(), "want: a legitimate pattern is not logged")
		})
	}
}

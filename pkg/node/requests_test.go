package node_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// unknownID is the id of a volume that no other request names.
const unknownID = "01890000-0000-7000-8000-000000000099"

// badRequests are requests that fail, of a volume that is staged and published.
func (n *onceNode) badRequests() map[string]struct {
	call func(ctx context.Context) error
	want answer
} {
	type bad = struct {
		call func(ctx context.Context) error
		want answer
	}

	invalid := func(says string) answer { return answer{codes.InvalidArgument, says} }
	refused := func(says string) answer { return answer{codes.FailedPrecondition, says} }
	stage := func(want answer, change func(r *csi.NodeStageVolumeRequest)) bad {
		return bad{func(ctx context.Context) error {
			r := n.stageRequest()
			r.VolumeContext, r.VolumeCapability = map[string]string{}, proto.CloneOf(n.kind.capability)
			change(r)

			_, err := n.NodeStageVolume(ctx, r)

			return err
		}, want}
	}
	publish := func(want answer, change func(r *csi.NodePublishVolumeRequest)) bad {
		return bad{func(ctx context.Context) error {
			r := &csi.NodePublishVolumeRequest{
				VolumeId: n.kind.id(), StagingTargetPath: n.in("kubelet/staging"), TargetPath: n.in("kubelet/target"), VolumeCapability: proto.CloneOf(n.kind.capability),
			}
			change(r)

			_, err := n.NodePublishVolume(ctx, r)

			return err
		}, want}
	}
	ending := func(id, path string, want answer) (unstage, unpublish bad) {
		unstage = bad{func(ctx context.Context) error {
			_, err := n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})

			return err
		}, want}
		unpublish = bad{func(ctx context.Context) error {
			_, err := n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})

			return err
		}, want}

		return unstage, unpublish
	}
	asked := func(want answer, stats *csi.NodeGetVolumeStatsRequest) bad {
		return bad{func(ctx context.Context) error {
			_, err := n.NodeGetVolumeStats(ctx, stats)

			return err
		}, want}
	}
	health := func(want answer, request *csi.NodeGetVolumeHealthRequest) bad {
		return bad{func(ctx context.Context) error {
			_, err := n.NodeGetVolumeHealth(ctx, request)

			return err
		}, want}
	}

	id, target := n.kind.id(), n.in("kubelet/target")
	all := map[string]bad{
		"stage without an id":      stage(invalid("volume_id"), func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }),
		"stage at no path":         stage(invalid("staging_target_path is missing"), func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }),
		"stage outside":            stage(invalid("staging_target_path: "), func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "/elsewhere" }),
		"stage at a relative path": stage(invalid("staging_target_path: "), func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "staging" }),
		"stage elsewhere":          stage(refused("it is staged at "), func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = n.in("kubelet/other") }),
		"stage for nothing":        stage(invalid("volume_capability: "), func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability = nil }),
		"stage for another mode": stage(answer{codes.AlreadyExists, "access mode"}, func(r *csi.NodeStageVolumeRequest) {
			r.VolumeCapability = withGroup(csiclient.MountCapability(writer, "ext4"))
		}),
		"stage for a guest":         stage(answer{codes.AlreadyExists, volume.KeyDirectAssign}, func(r *csi.NodeStageVolumeRequest) { r.VolumeContext[volume.KeyDirectAssign] = "true" }),
		"stage with a flag":         stage(invalid("volume_capability: "), func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"bind"} }),
		"stage in a context":        stage(invalid("volume_context: "), func(r *csi.NodeStageVolumeRequest) { r.VolumeContext[volume.KeyBacking] = "tape" }),
		"stage another's id":        stage(answer{codes.NotFound, "does not exist"}, func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "vol-1" }),
		"stage what is missing":     stage(answer{codes.NotFound, missingID}, func(r *csi.NodeStageVolumeRequest) { r.VolumeId = missingID }),
		"stage at a slot of a word": stage(invalid("publish_context: "), func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{volume.KeySlot: "first"} }),
		"stage at a slot below":     stage(invalid("publish_context: "), func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{volume.KeySlot: "-1"} }),
		"stage beneath nothing": stage(refused("the CO must make the staging directory"), func(r *csi.NodeStageVolumeRequest) {
			r.VolumeId, r.StagingTargetPath = missingID, n.in("kubelet/missing/staging")
		}),
		"publish without an id": publish(invalid("volume_id"), func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }),
		"publish at no path":    publish(invalid("target_path is missing"), func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }),
		"publish inline, without an id": publish(invalid("volume_id is missing"), func(r *csi.NodePublishVolumeRequest) {
			r.VolumeId, r.VolumeContext = "", map[string]string{volume.KeyEphemeral: "true"}
		}),
		"publish inline, at no path": publish(invalid("target_path is missing"), func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath, r.VolumeContext = "", map[string]string{volume.KeyEphemeral: "true"}
		}),
		"publish outside":            publish(invalid("target_path: "), func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "/elsewhere" }),
		"publish for nothing":        publish(invalid("volume_capability: "), func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }),
		"publish with a flag":        publish(invalid("volume_capability: "), func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"bind"} }),
		"publish another's id":       publish(answer{codes.NotFound, "does not exist"}, func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "vol-1" }),
		"publish what is missing":    publish(answer{codes.NotFound, "does not exist"}, func(r *csi.NodePublishVolumeRequest) { r.VolumeId = missingID }),
		"publish from no path":       publish(refused("staging_target_path is missing"), func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }),
		"publish from another path":  publish(refused("it is staged at "), func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = n.in("kubelet/other") }),
		"publish where it is staged": publish(invalid("is where the volume is staged"), func(r *csi.NodePublishVolumeRequest) { r.TargetPath = n.in("kubelet/staging") }),
		"publish as block": publish(refused("access type"), func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath, r.VolumeCapability = n.in("kubelet/other"), csiclient.BlockCapability(multiWriter)
		}),
		"publish another filesystem": publish(refused("volume_capability: "), func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath, r.VolumeCapability = n.in("kubelet/other"), csiclient.MountCapability(multiWriter, "xfs")
		}),
		"publish for one target": publish(refused("it is published at "), func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath, r.VolumeCapability = n.in("kubelet/other"), csiclient.MountCapability(writer, "ext4")
		}),
		"publish beneath nothing": publish(refused("the CO must make the target's parent directory"), func(r *csi.NodePublishVolumeRequest) { r.TargetPath = n.in("kubelet/missing/target") }),
		"publish for reading":     publish(answer{codes.AlreadyExists, "readonly false, not true"}, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true }),

		"statistics without an id":         asked(invalid("volume_id"), &csi.NodeGetVolumeStatsRequest{VolumePath: target}),
		"statistics at no path":            asked(invalid("volume_path is missing"), &csi.NodeGetVolumeStatsRequest{VolumeId: id}),
		"statistics at another path":       asked(answer{codes.NotFound, "is not at"}, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: n.in("kubelet/other")}),
		"statistics from a relative path":  asked(invalid("staging_target_path"), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target, StagingTargetPath: "staging"}),
		"statistics of what is not in use": asked(answer{codes.NotFound, "is not in use"}, &csi.NodeGetVolumeStatsRequest{VolumeId: missingID, VolumePath: target}),
		"health without an id":             health(invalid("volume_id"), &csi.NodeGetVolumeHealthRequest{}),
		"health at a relative path":        health(invalid("volume_publish_path"), &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: "target"}),
		"health from a relative path":      health(invalid("staging_target_path"), &csi.NodeGetVolumeHealthRequest{VolumeId: id, StagingTargetPath: "staging"}),
		"expand a missing one for nothing": {func(ctx context.Context) error {
			_, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: unknownID, VolumePath: target, VolumeCapability: &csi.VolumeCapability{}})

			return err
		}, invalid("volume_capability: ")},
		"health of a volume that does not exist": health(answer{codes.NotFound, "is not in a pool"}, &csi.NodeGetVolumeHealthRequest{VolumeId: unknownID}),
	}

	all["unstage without an id"], all["unpublish without an id"] = ending("", target, invalid("volume_id"))
	all["unstage from no path"], _ = ending(id, "", invalid("staging_target_path is missing"))
	_, all["unpublish from no path"] = ending(id, "", invalid("target_path is missing"))
	all["unstage from outside"], all["unpublish from outside"] = ending(id, "/elsewhere", invalid("/elsewhere"))
	all["unstage a missing one from outside"], all["unpublish a missing one from outside"] = ending(missingID, "/elsewhere", invalid("/elsewhere"))
	all["unstage what is published"], _ = ending(id, n.in("kubelet/staging"), refused("it is published at "+target))
	all["unstage from another path"], all["unpublish from another path"] = ending(id, n.in("kubelet/other"), answer{})
	all["unstage from beneath nothing"], all["unpublish from beneath nothing"] = ending(id, n.in("kubelet/missing/other"), answer{})
	all["unstage a missing one"], all["unpublish a missing one"] = ending(missingID, n.in("kubelet/other"), answer{})
	all["unstage another's"], all["unpublish another's"] = ending(missingID, target, answer{})
	_, all["unpublish from where it is staged"] = ending(id, n.in("kubelet/staging"), answer{})

	return all
}

// TestRefusedRequestsChangeNothing of a volume that is staged and published.
func TestRefusedRequestsChangeNothing(t *testing.T) {
	n := newNode(t, "image")
	require.NoError(t, os.Mkdir(n.in("kubelet/other"), 0o700))
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.publish(t.Context()))

	for name, each := range n.badRequests() {
		each.want.require(t, each.call(t.Context()), name)
		require.NoError(t, n.mounted("staging", "target"), name)
		require.NoError(t, n.statsAt(t.Context(), "target"), name)
		require.DirExists(t, n.in("kubelet/other"), name)
	}

	require.NoError(t, n.unpublish(t.Context()))
	require.NoError(t, n.unstage(t.Context()))
}

// TestPublishNeedsAStaging that the CO has made.
func TestPublishNeedsAStaging(t *testing.T) {
	n := newNode(t, "image")
	answer{codes.FailedPrecondition, "it is not staged; call NodeStageVolume first"}.require(t, n.publish(t.Context()), "before the staging")
	require.NoError(t, n.mounted())
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.unstage(t.Context()))
	answer{codes.FailedPrecondition, "it is not staged; call NodeStageVolume first"}.require(t, n.publish(t.Context()), "after the staging")
}

// TestCallsFailAtTheirPoints has each call fail once at each of its points; the next attempt succeeds.
func TestCallsFailAtTheirPoints(t *testing.T) {
	for _, kind := range []string{"image", "block", "directory"} {
		t.Run(kind, func(t *testing.T) {
			var failing operation.Point

			n := newNode(t, kind)
			require.NoError(t, n.close())
			n.point = func(_ context.Context, point operation.Point, objects ...string) error {
				if point != failing || !slices.Contains(objects, n.kind.id()) {
					return nil
				}

				failing = ""

				return errdefs.New(errdefs.ErrAborted, "on command")
			}
			require.NoError(t, n.open(t.Context()))

			for _, step := range []struct {
				call    func(ctx context.Context) error
				points  []operation.Point
				mounted []string
			}{
				{n.stage, []operation.Point{operation.StagingRecorded, operation.VolumeStaged}, []string{"staging"}},
				{n.publish, []operation.Point{operation.PublicationRecorded, operation.VolumePublished}, []string{"staging", "target"}},
				{n.unpublish, nil, []string{"staging"}},
				{n.unstage, []operation.Point{operation.VolumeUnstaged}, nil},
			} {
				for _, failing = range step.points {
					answer{codes.Aborted, "on command"}.require(t, step.call(t.Context()), string(failing))
				}

				require.NoError(t, step.call(t.Context()))
				require.NoError(t, n.mounted(step.mounted...))
			}
		})
	}
}

// TestFailedStagingAwaitsItsDevice has another program open the device of a staging that fails, as a child
// of the driver does between its fork and its exec.
func TestFailedStagingAwaitsItsDevice(t *testing.T) {
	n := newNode(t, "image")
	require.NoError(t, n.close())
	n.point = func(_ context.Context, point operation.Point, objects ...string) error {
		if point != operation.DeviceAttached || !slices.Contains(objects, n.kind.id()) {
			return nil
		}

		opened, err := os.Open(fmt.Sprintf("/dev/loop%d", n.deviceOf(t)))
		require.NoError(t, err)
		time.AfterFunc(200*time.Millisecond, func() { opened.Close() })

		return errdefs.New(errdefs.ErrAborted, "on command")
	}
	require.NoError(t, n.open(t.Context()))
	answer{codes.Aborted, "on command"}.require(t, n.stage(t.Context()), "the staging")

	_, used, err := n.Local().InUse(n.kind.id())
	require.NoError(t, err)
	require.False(t, used, "want: no record of a staging that failed is left")
}

// TestAPublicationIsRefusedBeforeItsStaging where the CO does not stage.
func TestAPublicationIsRefusedBeforeItsStaging(t *testing.T) {
	n := newNode(t, "unstaged")
	request := &csi.NodePublishVolumeRequest{
		VolumeId: n.kind.id(), TargetPath: n.in("kubelet/target"), VolumeCapability: n.kind.capability,
		VolumeContext: map[string]string{volume.KeyBacking: "tape"},
	}

	_, err := n.NodePublishVolume(t.Context(), request)
	answer{codes.InvalidArgument, "volume_context: "}.require(t, err, "an unknown backing")
	require.NoDirExists(t, n.in("kubelet/own"), "want: nothing is made for a request that is refused")

	request.VolumeContext = nil
	request.TargetPath = n.in("kubelet/missing/target")
	_, err = n.NodePublishVolume(t.Context(), request)
	answer{codes.FailedPrecondition, "the CO must make the target's parent directory"}.require(t, err, "no parent directory")
	require.NoError(t, n.mounted())

	_, used, err := n.Local().InUse(n.kind.id())
	require.NoError(t, err)
	require.False(t, used, "want: the staging ends with the publication that failed")
}

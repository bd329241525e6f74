package faults_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// examples is the directory of the examples.
const examples = "../../../examples/faults"

// gives requires the codes of an RPC's calls, one after the other.
func gives(rpc string, change func(proto.Message), want ...codes.Code) func(*testing.T, *faulty, *world) {
	return func(t *testing.T, f *faulty, w *world) {
		for i, code := range want {
			request := w.request(rpc)
			if change != nil {
				change(request)
			}

			_, err := f.call(t.Context(), methodNamed(rpc), request)
			rpccode.Require(t, err, code, "call %d", i+1)
		}
	}
}

func methodNamed(name string) method {
	for _, each := range allMethods() {
		if each.name == name {
			return each
		}
	}

	panic(name)
}

func times(count int, code codes.Code, then ...codes.Code) []codes.Code {
	var all []codes.Code
	for range count {
		all = append(all, code)
	}

	return append(all, then...)
}

// sized asks for an expansion to that size.
func sized(bytes int64) func(proto.Message) {
	return func(request proto.Message) {
		switch request := request.(type) {
		case *csi.ControllerExpandVolumeRequest:
			request.CapacityRange = harness.RequiredBytes(bytes)
		case *csi.NodeExpandVolumeRequest:
			request.CapacityRange = harness.RequiredBytes(bytes)
		}
	}
}

// both runs two checks.
func both(checks ...func(*testing.T, *faulty, *world)) func(*testing.T, *faulty, *world) {
	return func(t *testing.T, f *faulty, w *world) {
		for _, check := range checks {
			check(t, f, w)
		}
	}
}

// exampleChecks show that each example acts.
var exampleChecks = map[string]func(*testing.T, *faulty, *world){
	"stage-final-error":       gives("NodeStageVolume", nil, times(3, codes.InvalidArgument, codes.OK)...),
	"stage-transient-error":   gives("NodeStageVolume", nil, times(3, codes.DeadlineExceeded, codes.OK)...),
	"stage-always-transient":  gives("NodeStageVolume", nil, times(10, codes.DeadlineExceeded)...),
	"stage-always-final":      gives("NodeStageVolume", nil, times(10, codes.InvalidArgument)...),
	"unstage-final-error":     gives("NodeUnstageVolume", nil, times(5, codes.InvalidArgument)...),
	"unstage-transient-error": gives("NodeUnstageVolume", nil, times(5, codes.DeadlineExceeded)...),
	"snapshot-retried":        gives("CreateSnapshot", nil, times(7, codes.DeadlineExceeded, codes.OK)...),
	"capacity-exhausted":      gives("CreateVolume", nil, codes.ResourceExhausted, codes.OK, codes.ResourceExhausted, codes.OK),
	"expand-without-staging-path": both(gives("NodeExpandVolume", nil, codes.OK), gives("NodeExpandVolume", func(request proto.Message) {
		request.(*csi.NodeExpandVolumeRequest).StagingTargetPath = ""
	}, codes.InvalidArgument)),
	"expand-controller-infeasible": both(gives("ControllerExpandVolume", sized(10*harness.GiB+1), codes.InvalidArgument),
		gives("ControllerExpandVolume", sized(64*harness.MiB), codes.OK)),
	"expand-controller-final": both(gives("ControllerExpandVolume", sized(10*harness.GiB+1), codes.PermissionDenied),
		gives("ControllerExpandVolume", sized(64*harness.MiB), codes.OK)),
	"expand-node-infeasible": both(gives("NodeExpandVolume", sized(8*harness.GiB+1), codes.InvalidArgument),
		gives("NodeExpandVolume", sized(64*harness.MiB), codes.OK)),
	"expand-node-final": both(gives("NodeExpandVolume", sized(8*harness.GiB+1), codes.PermissionDenied),
		gives("NodeExpandVolume", sized(64*harness.MiB), codes.OK)),
	"abnormal-volume": func(t *testing.T, f *faulty, w *world) {
		f.awaitReason(t, w, "OnCommand")
		f.clear(t)
		f.awaitReason(t, w, "")
	},
	"attach-limit-changes": func(t *testing.T, f *faulty, _ *world) {
		for _, want := range []int64{5, 8, 8} {
			info, err := f.co.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
			require.NoError(t, err)
			require.Equal(t, want, info.GetMaxVolumesPerNode(), "want: NodeGetInfo has the limit of the rule")
		}
	},
	"attach-limit-exceeded": func(t *testing.T, f *faulty, w *world) {
		harness.RequireCode(t, f.co.Attach(t.Context(), w.other), codes.ResourceExhausted)

		found, err := f.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: w.other.VolumeID})
		require.NoError(t, err)
		require.Equal(t, []string{harness.NodeID}, found.GetStatus().GetPublishedNodeIds(), "it is attached all the same")
		require.NoError(t, f.Detach(t.Context(), w.other))
	},
	"code-on-each-rpc":  gives("DeleteVolume", nil, codes.Unavailable, codes.OK),
	"provisioner-final": gives("CreateVolume", nil, times(3, codes.InvalidArgument, codes.OK)...),
	"provisioner-not-final": gives("CreateVolume", nil,
		codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.OK),
	"resizer-infeasible": gives("ControllerExpandVolume", nil, codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.OK),
	"resizer-not-final":  gives("ControllerExpandVolume", nil, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.OK),
	"slow-attach": func(t *testing.T, f *faulty, w *world) {
		began := time.Now()

		gives("ControllerPublishVolume", nil, codes.OK)(t, f, w)
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond, "want: the attachment is delayed")
	},
	"lost-response": func(t *testing.T, f *faulty, _ *world) {
		request := &csi.CreateVolumeRequest{
			Name: "lost", Parameters: harness.DirectoryBacked(), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
		}

		for _, want := range []codes.Code{codes.Unavailable, codes.Unavailable, codes.DeadlineExceeded, codes.OK} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.co.CreateVolume(ctx, request)

			cancel()
			harness.RequireCode(t, err, want)
		}

		listed, err := f.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		require.NoError(t, err)
		require.Len(t, listed.GetEntries(), 3, "one volume, and two of the test's")
	},
	"snapshot-never-ready": func(t *testing.T, f *faulty, w *world) {
		made, err := f.co.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: w.snapshot})
		require.NoError(t, err)
		require.False(t, made.GetSnapshot().GetReadyToUse(), "a snapshot is ready")

		listed, err := f.co.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
		require.NoError(t, err)

		for _, each := range listed.GetEntries() {
			require.False(t, each.GetSnapshot().GetReadyToUse(), "a snapshot is ready")
		}
	},
}

// awaitReason waits until the volume in use and the one that is not have that reason in both views, or
// none for "".
func (f *faulty) awaitReason(t *testing.T, w *world, reason string) {
	t.Helper()

	has := func(of *csi.VolumeHealth) bool {
		if reason == "" {
			return len(of.GetHealthStatuses()) == 0
		}

		return len(of.GetHealthStatuses()) == 1 && of.GetHealthStatuses()[0].GetReason() == reason
	}

	require.Eventually(t, func() bool {
		for _, id := range []string{w.claim.VolumeID, w.other.VolumeID} {
			node, err := f.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
			require.NoError(t, err)

			controller, err := f.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
			require.NoError(t, err)

			if !has(node.GetVolumeHealth()) || !has(controller.GetVolumeHealth()) {
				return false
			}
		}

		return true
	}, 10*time.Second, 5*time.Millisecond, "want: the condition of the rule is reported")
}

func TestExamplesTakeEffect(t *testing.T) {
	namespace.NeedRoot(t)

	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, len(exampleChecks), "an example without a check, or a check without an example")

	f := start(t)
	w := newWorld(t, f)

	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")

		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Contains(t, exampleChecks, name)
			f.add(t, string(text))
			exampleChecks[name](t, f, w)
		})
	}
}

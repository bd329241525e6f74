package hostpath_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	ours     = "topology.touchstone.dev/node"
	upstream = "topology.hostpath.csi/node"
	writer   = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
)

func segments(key string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{key: "n"}}
}

// translate returns what a driver behind the dialect of the flags gets, and what the CO gets of the response.
func translate(t *testing.T, flags string, request, response proto.Message) (got, answer proto.Message, err error) {
	t.Helper()

	parsed, err := parse(t, "-nodeid=n "+flags)
	require.NoError(t, err)

	before := proto.Clone(request)
	result, err := parsed.Dialect(nil).Translate(t.Context(), request, &grpc.UnaryServerInfo{}, func(_ context.Context, request any) (any, error) {
		got = request.(proto.Message)

		return response, nil
	})
	requireEqual(t, before, request, "the request of the CO")

	answer, _ = result.(proto.Message)

	return got, answer, err
}

func requireEqual(t *testing.T, want, got proto.Message, what string) {
	t.Helper()
	require.True(t, proto.Equal(want, got), "%s: want %v, got %v", what, want, got)
}

// TestRequestsAreTranslated into those that the driver knows.
func TestRequestsAreTranslated(t *testing.T) {
	t.Parallel()

	mount, block := csiclient.MountCapability(writer, ""), csiclient.BlockCapability(writer)
	create := func(capability *csi.VolumeCapability, parameters map[string]string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{capability}, Parameters: parameters}
	}
	publish := func(context map[string]string) *csi.NodePublishVolumeRequest {
		return &csi.NodePublishVolumeRequest{VolumeId: "a", VolumeCapability: mount, VolumeContext: context}
	}

	clone := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "b"}}}

	for name, test := range map[string]struct {
		flags          string
		request, wants proto.Message
	}{
		"mounted volumes are directories": {"", create(mount, nil), create(mount, map[string]string{"backing": "directory"})},
		"block volumes are images":        {"", create(block, nil), create(block, nil)},
		"a backing is kept": {
			"", create(mount, map[string]string{"backing": "image"}), create(mount, map[string]string{"backing": "image"}),
		},
		"unknown parameters are left out": {
			"", create(block, map[string]string{"color": "red", "csi.storage.k8s.io/fstype": "xfs"}),
			create(block, map[string]string{"csi.storage.k8s.io/fstype": "xfs"}),
		},
		"a kind is a pool": {
			"--capacity=fast=1Gi", create(block, map[string]string{"kind": "fast"}), create(block, map[string]string{"pool": "fast"}),
		},
		"segments": {
			"", &csi.CreateVolumeRequest{
				Name:                      "a",
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{segments(upstream)}, Preferred: []*csi.Topology{segments(upstream)}},
			},
			&csi.CreateVolumeRequest{
				Name: "a", Parameters: map[string]string{"backing": "directory"},
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{segments(ours)}, Preferred: []*csi.Topology{segments(ours)}},
			},
		},
		"opaque mutable parameters": {
			"--enable-controller-modify-volume", &csi.ControllerModifyVolumeRequest{VolumeId: "a", MutableParameters: map[string]string{"e2eVacTest": "x", "readAheadKiB": "64"}},
			&csi.ControllerModifyVolumeRequest{VolumeId: "a", MutableParameters: map[string]string{"opaque/e2eVacTest": "x", "readAheadKiB": "64"}},
		},
		"opaque mutable parameters of a new volume": {
			"--enable-controller-modify-volume", &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{block}, MutableParameters: map[string]string{"e2eVacTest": "x"},
			},
			&csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{block}, MutableParameters: map[string]string{"opaque/e2eVacTest": "x"}},
		},
		"parameters to confirm": {
			"", &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: "a", Parameters: map[string]string{"kind": "fast", "csi.storage.k8s.io/fstype": "xfs"}, MutableParameters: map[string]string{"e2eVacTest": "x"},
			},
			&csi.ValidateVolumeCapabilitiesRequest{VolumeId: "a", MutableParameters: map[string]string{"opaque/e2eVacTest": "x"}},
		},
		"parameters of a snapshot": {
			"", &csi.CreateSnapshotRequest{Name: "s", Parameters: map[string]string{"ignoreFailedRead": "true", "consistency": "filesystem"}},
			&csi.CreateSnapshotRequest{Name: "s", Parameters: map[string]string{"consistency": "filesystem"}},
		},
		"a snapshot is taken of a volume in use": {
			"", &csi.CreateSnapshotRequest{Name: "s"}, &csi.CreateSnapshotRequest{Name: "s", Parameters: map[string]string{"consistency": "none"}},
		},
		"so is a group": {
			"", &csi.CreateVolumeGroupSnapshotRequest{Name: "g"},
			&csi.CreateVolumeGroupSnapshotRequest{Name: "g", Parameters: map[string]string{"consistency": "none"}},
		},
		"so is a clone": {
			"", &csi.CreateVolumeRequest{Name: "a", VolumeContentSource: clone},
			&csi.CreateVolumeRequest{Name: "a", VolumeContentSource: clone, Parameters: map[string]string{"backing": "directory", "consistency": "none"}},
		},
		"capacity of a kind": {
			"--capacity=fast=1Gi", &csi.GetCapacityRequest{Parameters: map[string]string{"kind": "fast"}, AccessibleTopology: segments(upstream)},
			&csi.GetCapacityRequest{Parameters: map[string]string{"pool": "fast", "backing": "directory"}, AccessibleTopology: segments(ours)},
		},
		"an inline volume": {
			"", publish(map[string]string{"csi.storage.k8s.io/ephemeral": "true", "color": "red"}),
			publish(map[string]string{"csi.storage.k8s.io/ephemeral": "true", "backing": "directory", "size": "100Mi"}),
		},
		"an inline volume with a size": {
			"", publish(map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "5Mi"}),
			publish(map[string]string{"csi.storage.k8s.io/ephemeral": "true", "backing": "directory", "size": "5Mi"}),
		},
		"each volume is inline": {
			"--ephemeral", publish(nil), publish(map[string]string{"csi.storage.k8s.io/ephemeral": "true", "backing": "directory", "size": "100Mi"}),
		},
		"a volume that is not inline": {
			"--ephemeral", publish(map[string]string{"csi.storage.k8s.io/ephemeral": "false", "color": "red"}),
			publish(map[string]string{"csi.storage.k8s.io/ephemeral": "false", "color": "red"}),
		},
		"an expansion on the node": {
			"--max-volume-size=100", &csi.NodeExpandVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 100}},
			&csi.NodeExpandVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 100}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, _, err := translate(t, test.flags, test.request, &csi.CreateVolumeResponse{Volume: &csi.Volume{}})
			require.NoError(t, err)
			requireEqual(t, test.wants, got, "what the driver gets")
		})
	}
}

// TestResponsesAreTranslated back.
func TestResponsesAreTranslated(t *testing.T) {
	t.Parallel()

	volume := func(key string, context map[string]string) *csi.Volume {
		return &csi.Volume{VolumeId: "a", VolumeContext: context, AccessibleTopology: []*csi.Topology{segments(key)}}
	}

	for name, test := range map[string]struct{ request, response, wants proto.Message }{
		"a volume": {
			&csi.CreateVolumeRequest{Parameters: map[string]string{"color": "red", "pool": "a"}},
			&csi.CreateVolumeResponse{Volume: volume(ours, map[string]string{"pool": "b"})},
			&csi.CreateVolumeResponse{Volume: volume(upstream, map[string]string{"pool": "b", "color": "red"})},
		},
		"a node": {
			&csi.NodeGetInfoRequest{}, &csi.NodeGetInfoResponse{AccessibleTopology: segments(ours)},
			&csi.NodeGetInfoResponse{AccessibleTopology: segments(upstream)},
		},
		"volumes": {
			&csi.ListVolumesRequest{}, &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: volume(ours, nil)}}},
			&csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: volume(upstream, nil)}}},
		},
		"a snapshot": {
			&csi.CreateSnapshotRequest{}, &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{AccessibleTopology: []*csi.Topology{segments(ours)}}},
			&csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{AccessibleTopology: []*csi.Topology{segments(upstream)}}},
		},
		"the capacity": {
			&csi.GetCapacityRequest{}, &csi.GetCapacityResponse{AvailableCapacity: 1 << 50}, &csi.GetCapacityResponse{AvailableCapacity: 1 << 40},
		},
		"confirmed parameters": {
			&csi.ValidateVolumeCapabilitiesRequest{Parameters: map[string]string{"color": "red"}, MutableParameters: map[string]string{"a": "b"}},
			&csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
				VolumeContext: map[string]string{"c": "d"}, MutableParameters: map[string]string{"opaque/a": "b"},
			}},
			&csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
				VolumeContext: map[string]string{"c": "d"}, Parameters: map[string]string{"color": "red"}, MutableParameters: map[string]string{"a": "b"},
			}},
		},
		"what is not confirmed": {
			&csi.ValidateVolumeCapabilitiesRequest{Parameters: map[string]string{"color": "red"}},
			&csi.ValidateVolumeCapabilitiesResponse{Message: "no"}, &csi.ValidateVolumeCapabilitiesResponse{Message: "no"},
		},
		"an expansion": {
			&csi.ControllerExpandVolumeRequest{}, &csi.ControllerExpandVolumeResponse{CapacityBytes: 1},
			&csi.ControllerExpandVolumeResponse{CapacityBytes: 1, NodeExpansionRequired: true},
		},
		"one volume": {
			&csi.ControllerGetVolumeRequest{}, &csi.ControllerGetVolumeResponse{Volume: volume(ours, nil)},
			&csi.ControllerGetVolumeResponse{Volume: volume(upstream, nil)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			before := proto.Clone(test.response)
			_, answer, err := translate(t, "", test.request, test.response)
			require.NoError(t, err)
			requireEqual(t, test.wants, answer, "what the CO gets")
			requireEqual(t, before, test.response, "the driver's message")
		})
	}

	_, answer, err := translate(t, "--capacity=fast=1Gi", &csi.GetCapacityRequest{}, nil)
	require.NoError(t, err)
	requireEqual(t, &csi.GetCapacityResponse{}, answer, "capacity without a kind")

	_, answer, err = translate(t, "--disable-node-expansion", &csi.ControllerExpandVolumeRequest{}, &csi.ControllerExpandVolumeResponse{})
	require.NoError(t, err)
	requireEqual(t, &csi.ControllerExpandVolumeResponse{}, answer, "an expansion that no node completes")
}

// TestALimitMayBeRandom is between 1 and 10 then, another one for each call.
func TestALimitMayBeRandom(t *testing.T) {
	t.Parallel()

	seen := map[int64]bool{}

	for range 1000 {
		_, answer, err := translate(t, "--attach-limit=-1", &csi.NodeGetInfoRequest{}, &csi.NodeGetInfoResponse{})
		require.NoError(t, err)

		seen[answer.(*csi.NodeGetInfoResponse).GetMaxVolumesPerNode()] = true
	}

	require.Len(t, seen, 10, "want: ten limits")
	require.True(t, seen[1] && seen[10], "want: 1 to 10: %v", seen)
}

func TestWhatCannotBeTranslatedIsRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		flags   string
		request proto.Message
		code    codes.Code
		says    string
	}{
		"a kind without kinds": {"", &csi.CreateVolumeRequest{Parameters: map[string]string{"kind": "fast"}}, codes.InvalidArgument, "-capacity"},
		"a mutable parameter": {
			"--enable-controller-modify-volume --accepted-mutable-parameter-names=a,b", &csi.ControllerModifyVolumeRequest{MutableParameters: map[string]string{"a": "1", "c": "2"}},
			codes.InvalidArgument, `"c"`,
		},
		"a mutable parameter of a new volume": {
			"--enable-controller-modify-volume --accepted-mutable-parameter-names=a,b", &csi.CreateVolumeRequest{MutableParameters: map[string]string{"c": "2"}}, codes.InvalidArgument, `"c"`,
		},
		"a large expansion on the node": {
			"--max-volume-size-node=100", &csi.NodeExpandVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 101}}, codes.OutOfRange, "101",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, _, err := translate(t, test.flags, test.request, nil)
			require.Nil(t, got, "want: the driver is not called")
			require.Equal(t, test.code, status.Code(err))
			errtext.Require(t, err, test.says)
		})
	}
}

// TestAVolumeInUseIsDeletedAfterwards, if its use ends soon and the lifecycle of volumes is not checked.
func TestAVolumeInUseIsDeletedAfterwards(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		flags string
		inUse time.Duration
		other error
		waits time.Duration
		code  codes.Code
	}{
		"not in use":    {},
		"unstaged soon": {inUse: 3 * time.Second, waits: 3 * time.Second},
		"it stays":      {inUse: time.Hour, waits: 5 * time.Second, code: codes.FailedPrecondition},
		"with the flag": {flags: "--check-volume-lifecycle", inUse: time.Second, code: codes.FailedPrecondition},
		"another error": {other: status.Error(codes.Internal, "it fails"), code: codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			flags, err := parse(t, "-nodeid=n "+test.flags)
			require.NoError(t, err)
			require.Equal(t, test.flags == "", flags.DetachesInUse(), "want: a volume is detached in use without the flag")
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, err := flags.Dialect(nil).Translate(t.Context(), &csi.DeleteVolumeRequest{}, nil, func(context.Context, any) (any, error) {
					if time.Since(began) < test.inUse {
						return nil, status.Error(codes.FailedPrecondition, "it is staged")
					}

					return nil, test.other
				})
				require.Equal(t, test.code, status.Code(err))
				require.Equal(t, test.waits, time.Since(began), "want: it waits no longer than it must")
			})
		})
	}
}

// TestAVolumeOfNoKindIsMadeWhereItFits and found there by a second call.
func TestAVolumeOfNoKindIsMadeWhereItFits(t *testing.T) {
	t.Parallel()

	flags, err := parse(t, "-nodeid=n --capacity=a=1Gi --capacity=b=1Gi --capacity=c=1Gi")
	require.NoError(t, err)

	for name, test := range map[string]struct {
		answers map[string]codes.Code
		tried   string
		code    codes.Code
	}{
		"the first":     {map[string]codes.Code{}, "a", codes.OK},
		"one is full":   {map[string]codes.Code{"a": codes.ResourceExhausted}, "a b", codes.OK},
		"made in b":     {map[string]codes.Code{"a": codes.AlreadyExists}, "a b", codes.OK},
		"all are full":  {map[string]codes.Code{"a": codes.ResourceExhausted, "b": codes.ResourceExhausted, "c": codes.ResourceExhausted}, "a b c", codes.ResourceExhausted},
		"another error": {map[string]codes.Code{"a": codes.ResourceExhausted, "b": codes.Internal}, "a b", codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var tried []string

			_, err := flags.Dialect(nil).Translate(t.Context(), &csi.CreateVolumeRequest{}, nil, func(_ context.Context, request any) (any, error) {
				pool := request.(*csi.CreateVolumeRequest).GetParameters()["pool"]
				tried = append(tried, pool)

				return &csi.CreateVolumeResponse{Volume: &csi.Volume{}}, status.Error(test.answers[pool], "of the driver")
			})
			require.Equal(t, test.code, status.Code(err))
			require.Equal(t, test.tried, strings.Join(tried, " "))
		})
	}
}

// TestCallsAreLoggedAsCSIMockParsesThem from -v=5 on.
func TestCallsAreLoggedAsCSIMockParsesThem(t *testing.T) {
	t.Parallel()

	failure := status.Error(codes.NotFound, "there is none")

	for name, test := range map[string]struct {
		flags, method string
		err           error
		want          string
	}{
		"a call": {
			"-v=5", csi.Node_NodePublishVolume_FullMethodName, nil,
			`{"Method":"/csi.v1.Node/NodePublishVolume","Request":{"volume_id":"a","secrets":{"key":"value"}},"Response":{},"Error":"","FullError":null}`,
		},
		"a call that fails": {
			"-v=6", csi.Node_NodePublishVolume_FullMethodName, failure,
			`{"Method":"/csi.v1.Node/NodePublishVolume","Request":{"volume_id":"a","secrets":{"key":"value"}},"Response":null,` +
				`"Error":"rpc error: code = NotFound desc = there is none","FullError":{"code":5,"message":"there is none"}}`,
		},
		"not asked for":   {"-v=4", csi.Node_NodePublishVolume_FullMethodName, nil, ""},
		"another service": {"-v=5", "/touchstone.v1.Health/Report", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			flags, err := parse(t, "-nodeid=n "+test.flags)
			require.NoError(t, err)

			var log bytes.Buffer

			request := &csi.NodePublishVolumeRequest{VolumeId: "a", Secrets: map[string]string{"key": "value"}}
			_, err = flags.Dialect(&log).Log(t.Context(), request, &grpc.UnaryServerInfo{FullMethod: test.method},
				func(context.Context, any) (any, error) { return &csi.NodePublishVolumeResponse{}, test.err })
			require.Equal(t, test.err, err, "want: the answer is passed on")

			if test.want == "" {
				require.Empty(t, log.String(), "want: no line")

				return
			}

			line, isCall := strings.CutPrefix(log.String(), "gRPCCall: ")
			require.True(t, isCall && json.Valid([]byte(line)), "want: a line with a call: %s", log.String())
			require.JSONEq(t, test.want, line)
			require.True(t, strings.HasSuffix(line, "}\n"), "want: the line ends")
		})
	}
}

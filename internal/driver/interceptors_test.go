package driver_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)

	return ctx, cancel
}

func TestEveryFieldOfEveryRequestIsLimited(t *testing.T) {
	t.Parallel()

	checked := 0

	for _, method := range conformance.Methods() {
		for _, field := range conformance.FieldsOf(method.Input()) {
			if !field.IsText() {
				continue
			}

			checked++

			longest := field.Limit()
			if field.IsMap() {
				longest-- // the key
			}

			with := func(value string) error {
				fresh, err := conformance.NewMessage(method.Input())
				require.NoError(t, err)
				field.SetText(fresh, "k", value)

				return driver.CheckLimits(fresh)
			}
			what := fmt.Sprintf("%s %s", method.Name(), field.Path)

			require.NoError(t, with(strings.Repeat("x", longest)), what)

			err := with(strings.Repeat("x", longest+1))
			rpccode.Require(t, err, codes.InvalidArgument, what)
			errtext.Require(t, err, field.Path+" has ", what)
			errtext.Require(t, err, strconv.Itoa(field.Limit()), what)
			require.Less(t, len(err.Error()), 300, "the value is not repeated")

			err = with("xa\x00b")
			if field.IsSecret() {
				require.NoError(t, err, what)
			} else {
				rpccode.Require(t, err, codes.InvalidArgument, what)
				errtext.Require(t, err, field.Path, what)
				errtext.Require(t, err, "NUL", what)
			}
		}
	}

	require.Greater(t, checked, 80, "want: the fields of all requests are checked")
}

// TestLimitsOfFieldsBehindOthers: neither a field that is good ends the check, nor a message or a list.
func TestLimitsOfFieldsBehindOthers(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 4097)
	mount := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}}}

	for path, request := range map[string]proto.Message{
		"volume_path":           &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: long},
		"parameters":            &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: []*csi.VolumeCapability{mount}, Parameters: map[string]string{"k": long}},
		"staging_target_path":   &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/v", StagingTargetPath: long},
		"accessible_topology":   &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{Segments: map[string]string{"k": long}}},
		"volume_capabilities[1": &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{mount, {AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: long}}}}},
	} {
		err := driver.CheckLimits(request)
		rpccode.Require(t, err, codes.InvalidArgument, path)
		errtext.Require(t, err, path)
	}

	filter, err := structpb.NewStruct(map[string]any{"jq": long})
	require.NoError(t, err)
	require.NoError(t, driver.CheckLimits(filter), "want: messages in a map, which none of CSI is, have no limits")
}

func TestLimitsCountMountFlagsTogetherAndListsEach(t *testing.T) {
	t.Parallel()

	flags := func(each, count int) error {
		request := &csi.NodeStageVolumeRequest{VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}}
		for range count {
			mount := request.GetVolumeCapability().GetMount()
			mount.MountFlags = append(mount.MountFlags, strings.Repeat("f", each))
		}

		return driver.CheckLimits(request)
	}

	require.NoError(t, flags(1024, 4))
	errtext.Require(t, flags(1024, 5), "volume_capability.mount.mount_flags", "5 flags of 1024 bytes, of which 4096 are allowed")
	require.NoError(t, driver.CheckLimits(&csi.CreateVolumeGroupSnapshotRequest{
		SourceVolumeIds: []string{strings.Repeat("a", 128), strings.Repeat("b", 128), strings.Repeat("c", 128)},
	}))
}

func TestOversizedIDGetsACleanAnswerThroughTheSocket(t *testing.T) {
	t.Parallel()

	r := start(t, nil)
	_, err := csi.NewControllerClient(r.conn).DeleteVolume(t.Context(),
		&csi.DeleteVolumeRequest{VolumeId: strings.Repeat("x", 1<<20)})
	rpccode.Require(t, err, codes.InvalidArgument)
	errtext.Require(t, err, "volume_id has 1048576 bytes")
}

// rawCodec sends bytes as they are, as a client in another language might.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func TestInvalidUTF8IsTheCallersError(t *testing.T) {
	t.Parallel()

	r := start(t, nil)

	for name, test := range map[string]struct {
		method string
		wire   []byte
		want   string
	}{
		"not UTF-8": {csi.Controller_DeleteVolume_FullMethodName, []byte{0x0a, 0x02, 0xff, 0xfe}, "volume_id is not valid UTF-8"},
		"in a list": {
			csi.Controller_CreateVolume_FullMethodName,
			[]byte{0x0a, 1, 'x', 0x1a, 5, 0x12, 3, 0x0a, 1, 0xff},
			"volume_capabilities.mount.fs_type is not valid UTF-8",
		},
		"cut short": {csi.Controller_DeleteVolume_FullMethodName, []byte{0x0a, 0x7f, 'x'}, "cannot be read"},
	} {
		err := r.conn.Invoke(t.Context(), test.method, test.wire, new([]byte), grpc.ForceCodec(rawCodec{}))
		rpccode.Require(t, err, codes.InvalidArgument, "%s", name)
		errtext.Require(t, err, test.want, name)
	}

	require.Contains(t, r.log.String(), "volume_id is not valid UTF-8")
}

func TestSecretsAndMountFlagsNeverReachTheLog(t *testing.T) {
	t.Parallel()

	const secret = "hunter2-hunter2"

	r := start(t, withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
		return &csi.NodeStageVolumeResponse{}, nil
	}))

	requests := secretive(t, secret)
	require.Greater(t, len(requests), 8, "want: each request with secrets is sent")

	for method, request := range requests {
		require.Contains(t, fmt.Sprint(request), secret, "%s: the request must hold the secret", method.Name())

		// Served or not: what is logged before a service is asked counts too.
		err := conformance.Call(t.Context(), r.conn, method, request)
		require.NotContains(t, fmt.Sprint(err), secret, "%s: the secret is in the error", method.Name())
	}

	log := r.log.String()
	require.Contains(t, log, "visible-id", "requests are logged at this level")

	for line := range strings.Lines(log) {
		require.NotContains(t, line, secret, "the secret is in the log")
	}

	for method, request := range requests {
		logged := regexp.MustCompile(`call begins.*\*\*\*stripped\*\*\*.*method=` + conformance.PathOf(method) + `\b`)
		require.True(t, logged.MatchString(log), "%s: its request is not in the log", method.Name())

		for _, name := range []string{"secrets", "mount_flags"} {
			if strings.Contains(fmt.Sprint(request), name+":") {
				conformance.Shows(t, string(method.Name()), name+" given", "not in the log")
			}
		}
	}
}

// The kubelet hands a pod's tokens over in the volume context, which the spec
// does not mark as secret.
func TestTokensOfPodsNeverReachTheLog(t *testing.T) {
	t.Parallel()

	r := start(t, withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
		return &csi.NodeStageVolumeResponse{}, nil
	}))

	_, err := csi.NewNodeClient(r.conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeContext: map[string]string{
		"csi.storage.k8s.io/serviceAccount.tokens": `{"audience":{"token":"hunter2-hunter2"}}`, "pool": "visible-pool",
	}})
	require.NoError(t, err)
	require.Contains(t, r.log.String(), "visible-pool", "requests are logged at this level")
	require.NotContains(t, r.log.String(), "hunter2-hunter2")
}

// secretive returns each request that can hold something secret, holding it.
func secretive(t *testing.T, secret string) map[protoreflect.MethodDescriptor]proto.Message {
	t.Helper()

	found := map[protoreflect.MethodDescriptor]proto.Message{}

	for _, method := range conformance.Methods() {
		message, err := conformance.NewMessage(method.Input())
		require.NoError(t, err)

		for _, field := range conformance.FieldsOf(method.Input()) {
			switch {
			case field.IsSecret() || field.Name() == "mount_flags":
				found[method] = message

				field.SetText(message, "k", secret)
			case strings.HasSuffix(string(field.Name()), "_id") || field.Name() == "name":
				field.SetText(message, "", "visible-id")
			}
		}
	}

	return found
}

func TestLogLinesNameTheirCall(t *testing.T) {
	t.Parallel()

	r := start(t, nil)
	_, err := csi.NewControllerClient(r.conn).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{})
	require.Error(t, err, "DeleteVolume without a volume")

	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "msg=call ") {
			require.Contains(t, line, "method=/csi.v1.Controller/DeleteVolume")
			require.Contains(t, line, "code=InvalidArgument")
			require.Contains(t, line, "call=1")

			return
		}
	}

	require.Fail(t, "the call is not in the log", r.log.String())
}

// TestACallIsLoggedWithItsSubject: without it a person finds no volume's calls.
func TestACallIsLoggedWithItsSubject(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		method  string
		request proto.Message
		want    []string
	}{
		"stage": {
			csi.Node_NodeStageVolume_FullMethodName,
			&csi.NodeStageVolumeRequest{VolumeId: "the-volume", StagingTargetPath: "/the/staging", Secrets: map[string]string{"a": "hunter2"}},
			[]string{"volume=the-volume", "stagingPath=/the/staging"},
		},
		"publish": {
			csi.Node_NodePublishVolume_FullMethodName,
			&csi.NodePublishVolumeRequest{VolumeId: "the-volume", TargetPath: "/the/target"},
			[]string{"volume=the-volume", "target=/the/target"},
		},
		"attach": {
			csi.Controller_ControllerPublishVolume_FullMethodName,
			&csi.ControllerPublishVolumeRequest{VolumeId: "the-volume", NodeId: "the-node"},
			[]string{"volume=the-volume", "node=the-node"},
		},
		"snapshot": {
			csi.Controller_CreateSnapshot_FullMethodName,
			&csi.CreateSnapshotRequest{Name: "the-name", SourceVolumeId: "the-source"},
			[]string{"name=the-name", "source=the-source"},
		},
		"group": {
			csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName,
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "the-group", SnapshotIds: []string{"one", "two"}},
			[]string{"group=the-group", "snapshots=one,two"},
		},
		"strange": {
			csi.Controller_DeleteVolume_FullMethodName,
			&csi.DeleteVolumeRequest{VolumeId: "a\nb" + strings.Repeat("c", 1<<20)},
			[]string{`volume="a\nbc`, "c…\""},
		},
	} {
		r := start(t, withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
			return &csi.NodeStageVolumeResponse{}, nil
		}))
		// Its line is in the log before its answer, whatever that is.
		_ = r.conn.Invoke(t.Context(), test.method, test.request, &csi.DeleteVolumeResponse{})

		line := ""

		for each := range strings.Lines(r.log.String()) {
			if strings.Contains(each, "msg=call ") {
				line = each
			}
		}

		for _, want := range test.want {
			require.Contains(t, line, want, name)
		}

		require.Less(t, len(line), 2000, name)
		require.NotContains(t, line, "hunter2", name)
	}
}

// TestLogNamesCreatedObjects: its request could not name it.
func TestLogNamesCreatedObjects(t *testing.T) {
	t.Parallel()

	r := start(t, nil)
	made, err := csi.NewControllerClient(r.conn).CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "the-name", VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	})
	require.NoError(t, err)
	require.Contains(t, r.log.String(), "name=the-name volume="+made.GetVolume().GetVolumeId())

	stream, err := csi.NewSnapshotMetadataClient(r.conn).GetMetadataAllocated(t.Context(),
		&csi.GetMetadataAllocatedRequest{SnapshotId: "the-snapshot"})
	require.NoError(t, err)

	_, err = stream.Recv()
	require.Error(t, err, "GetMetadataAllocated of a snapshot that is not there")
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), " snapshot=the-snapshot") }, time.Minute, time.Millisecond, "want: the log of the stream has the snapshot")
}

func BenchmarkLimits(b *testing.B) {
	request := &csi.NodePublishVolumeRequest{
		VolumeId: "0195f3c4-7d6e-7000-8000-000000000000", TargetPath: "/var/lib/kubelet/pods/x/volumes/y/mount",
		StagingTargetPath: "/var/lib/kubelet/plugins/z/globalmount",
		VolumeContext:     map[string]string{"pool": "default", "backing": "image"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		},
	}

	b.ReportAllocs()

	for b.Loop() {
		if err := driver.CheckLimits(request); err != nil {
			b.Fatal(err)
		}
	}
}

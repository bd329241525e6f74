package csiclient_test

import (
	"context"
	"maps"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// driver answers calls, by their names, with messages or statuses, and keeps the requests.
type driver struct {
	answers  map[string]any
	requests map[string]proto.Message
}

func (d *driver) call(_ context.Context, method string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
	name := path.Base(method)
	d.requests[name] = request.(proto.Message)

	switch answer := d.answers[name].(type) {
	case proto.Message:
		proto.Merge(reply.(proto.Message), answer)
	case codes.Code:
		return status.Error(answer, "as asked")
	}

	return nil
}

// connectTo returns a client of a driver without a socket.
func connectTo(t *testing.T, answers map[string]any) (*csiclient.Client, *driver) {
	t.Helper()

	d := &driver{answers: answers, requests: map[string]proto.Message{}}
	client, _ := connect(t, grpc.WithChainUnaryInterceptor(d.call))

	return client, d
}

func requireRequests(t *testing.T, want, got map[string]proto.Message) {
	t.Helper()
	require.Len(t, got, len(want), "the calls: %v", got)

	for name, each := range want {
		require.True(t, proto.Equal(each, got[name]), "want: %s of %v, not of %v", name, each, got[name])
	}
}

// TestRequestsOfAPublicationAreComplete, and the directories of the CO are made.
func TestRequestsOfAPublicationAreComplete(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	attributes, published := map[string]string{"pool": "a"}, map[string]string{"image": "7"}
	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs", "noatime")
	publication := &csiclient.Publication{
		VolumeID: "v", VolumeContext: attributes, Capability: capability, NodeID: "n", ReadOnly: true,
		StagingPath: filepath.Join(dir, "staging", "v"), TargetPath: filepath.Join(dir, "pods", "p", "mount"),
	}
	client, d := connectTo(t, map[string]any{"ControllerPublishVolume": &csi.ControllerPublishVolumeResponse{PublishContext: published}})

	for _, call := range []func(context.Context, *csiclient.Publication) error{
		client.Attach, client.Stage, client.Publish, client.Unpublish, client.Unstage, client.Detach,
	} {
		require.NoError(t, call(t.Context(), publication))
	}

	require.Equal(t, published, publication.PublishContext, "want: the publish context is kept")
	requireRequests(t, map[string]proto.Message{
		"ControllerPublishVolume": &csi.ControllerPublishVolumeRequest{
			VolumeId: "v", NodeId: "n", VolumeCapability: capability, VolumeContext: attributes, Readonly: true,
		},
		"NodeStageVolume": &csi.NodeStageVolumeRequest{
			VolumeId: "v", PublishContext: published, StagingTargetPath: publication.StagingPath, VolumeCapability: capability,
			VolumeContext: attributes,
		},
		"NodePublishVolume": &csi.NodePublishVolumeRequest{
			VolumeId: "v", PublishContext: published, StagingTargetPath: publication.StagingPath, TargetPath: publication.TargetPath,
			VolumeCapability: capability, Readonly: true, VolumeContext: attributes,
		},
		"NodeUnpublishVolume":       &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: publication.TargetPath},
		"NodeUnstageVolume":         &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: publication.StagingPath},
		"ControllerUnpublishVolume": &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: "n"},
	}, d.requests)

	require.NoDirExists(t, publication.TargetPath, "want: the driver makes the target path")

	for _, made := range []string{publication.StagingPath, filepath.Dir(publication.TargetPath)} {
		info, err := os.Stat(made)
		require.NoError(t, err)
		require.EqualValues(t, 0o750, info.Mode().Perm(), "the mode of %s", made)
	}
}

// TestFailuresOfAPublication are those of the call, and no call is made without the directories.
func TestFailuresOfAPublication(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	answers := map[string]any{}
	for _, name := range []string{
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
	} {
		answers[name] = codes.Aborted
	}

	client, d := connectTo(t, answers)
	dir := t.TempDir()
	before := map[string]string{"image": "7"}
	publication := &csiclient.Publication{
		VolumeID: "v", PublishContext: before, StagingPath: filepath.Join(dir, "s"), TargetPath: filepath.Join(dir, "t"),
	}

	for name, call := range map[string]func(context.Context, *csiclient.Publication) error{
		"ControllerPublishVolume": client.Attach, "NodeStageVolume": client.Stage, "NodePublishVolume": client.Publish,
		"NodeUnpublishVolume": client.Unpublish, "NodeUnstageVolume": client.Unstage, "ControllerUnpublishVolume": client.Detach,
	} {
		err := call(t.Context(), publication)
		rpccode.Require(t, err, codes.Aborted)
		errtext.Require(t, err, name)
	}

	require.Equal(t, before, publication.PublishContext, "want: a failed call changes nothing")

	clear(d.requests)

	beneath := &csiclient.Publication{StagingPath: filepath.Join(file, "s"), TargetPath: filepath.Join(file, "t", "mount")}
	errtext.Require(t, client.Stage(t.Context(), beneath), "make the staging directory")
	errtext.Require(t, client.Publish(t.Context(), beneath), "make the parent of the target path")
	require.Empty(t, d.requests, "want: no call without its directory")
}

// TestCapabilitiesOfServices are joined, and what is not served has none.
func TestCapabilitiesOfServices(t *testing.T) {
	t.Parallel()

	plugin := []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}}
	controller := []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
		Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_GET_SNAPSHOT},
	}}}
	groups := []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
		Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT},
	}}}
	node := []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME},
	}}}
	all := map[string]any{
		"GetPluginCapabilities":          &csi.GetPluginCapabilitiesResponse{Capabilities: plugin},
		"ControllerGetCapabilities":      &csi.ControllerGetCapabilitiesResponse{Capabilities: controller},
		"GroupControllerGetCapabilities": &csi.GroupControllerGetCapabilitiesResponse{Capabilities: groups},
		"NodeGetCapabilities":            &csi.NodeGetCapabilitiesResponse{Capabilities: node},
	}

	for name, test := range map[string]struct {
		answers map[string]any
		want    [4]int
		// serves are the controller service and the node service.
		serves [2]bool
		code   codes.Code
	}{
		"all":           {nil, [4]int{1, 1, 1, 1}, [2]bool{true, true}, codes.OK},
		"no plugin":     {map[string]any{"GetPluginCapabilities": codes.Unimplemented}, [4]int{}, [2]bool{}, codes.Unimplemented},
		"no controller": {map[string]any{"ControllerGetCapabilities": codes.Unimplemented}, [4]int{1, 0, 1, 1}, [2]bool{false, true}, codes.OK},
		"no groups":     {map[string]any{"GroupControllerGetCapabilities": codes.Unimplemented}, [4]int{1, 1, 0, 1}, [2]bool{true, true}, codes.OK},
		"no node":       {map[string]any{"NodeGetCapabilities": codes.Unimplemented}, [4]int{1, 1, 1, 0}, [2]bool{true, false}, codes.OK},
		"lost plugin":   {map[string]any{"GetPluginCapabilities": codes.Unavailable}, [4]int{}, [2]bool{}, codes.Unavailable},
		"lost control":  {map[string]any{"ControllerGetCapabilities": codes.Unavailable}, [4]int{}, [2]bool{}, codes.Unavailable},
		"lost groups":   {map[string]any{"GroupControllerGetCapabilities": codes.Unavailable}, [4]int{}, [2]bool{}, codes.Unavailable},
		"lost node":     {map[string]any{"NodeGetCapabilities": codes.Unavailable}, [4]int{}, [2]bool{}, codes.Unavailable},
	} {
		answers := maps.Clone(all)
		maps.Copy(answers, test.answers)

		client, _ := connectTo(t, answers)
		got, err := client.Capabilities(t.Context())
		rpccode.Require(t, err, test.code)
		require.Equal(t, test.want, [4]int{len(got.Plugin), len(got.Controller), len(got.GroupController), len(got.Node)}, "the capabilities of %s", name)

		services := [2]bool{got.HasController, got.HasNode}
		require.Equal(t, test.serves, services, "the services of %s", name)

		// Each capability is another one's neighbor.
		require.Equal(t, test.want[1] == 1, got.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_SNAPSHOT), "GET_SNAPSHOT of %s", name)
		require.False(t, got.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_VOLUME), "GET_VOLUME of %s", name)
		require.Equal(t, test.want[3] == 1, got.HasNodeRPC(csi.NodeServiceCapability_RPC_EXPAND_VOLUME), "EXPAND_VOLUME of %s", name)
		require.False(t, got.HasNodeRPC(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), "STAGE_UNSTAGE_VOLUME of %s", name)
	}
}

func TestAnAbsentReadyIsAYes(t *testing.T) {
	t.Parallel()

	for name, answer := range map[string]*csi.ProbeResponse{"absent": {}, "yes": {Ready: wrapperspb.Bool(true)}} {
		client, _ := connectTo(t, map[string]any{"Probe": answer})
		require.NoError(t, client.WaitReady(t.Context()), name)
	}

	for name, test := range map[string]struct {
		answer any
		want   error
	}{
		"no": {&csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, csiclient.ErrNotReady}, "an error": {codes.FailedPrecondition, nil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		client, _ := connectTo(t, map[string]any{"Probe": test.answer})
		err := client.WaitReady(ctx)
		require.ErrorIs(t, err, context.Canceled, name)

		if test.want != nil {
			require.ErrorIs(t, err, test.want, name)

			continue
		}

		var call *csiclient.CallError
		require.ErrorAs(t, err, &call, name)
		require.Equal(t, "Probe", call.RPC, "the call that has failed")
		require.Equal(t, codes.FailedPrecondition, call.GRPCStatus().Code(), "the status of the call")
	}
}

// TestCapabilitiesAndSourcesOfVolumes are as the spec has them.
func TestCapabilitiesAndSourcesOfVolumes(t *testing.T) {
	t.Parallel()

	const mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY

	for want, got := range map[proto.Message]proto.Message{
		&csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"ro"}}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		}: csiclient.MountCapability(mode, "ext4", "ro"),
		&csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		}: csiclient.BlockCapability(mode),
		&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"},
		}}: csiclient.FromSnapshot("s"),
		&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"},
		}}: csiclient.FromVolume("v"),
	} {
		require.True(t, proto.Equal(want, got), "want: %v, not %v", want, got)
	}
}

package csiclient_test

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slow is a controller-only driver that is ready at the third Probe and whose
// pages never end.
type slow struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	probes atomic.Int32
}

func (s *slow) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	const waitLimit = 3

	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.probes.Add(1) >= waitLimit)}, nil
}

func (*slow) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
	}}, nil
}

func (*slow) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

func (*slow) ListVolumes(context.Context, *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	return &csi.ListVolumesResponse{
		Entries:   []*csi.ListVolumesResponse_Entry{{Volume: &csi.Volume{VolumeId: "v"}}},
		NextToken: "again",
	}, nil
}

func serve(t *testing.T, socket string, driver *slow) {
	t.Helper()

	serveAt(t, socket, func(server grpc.ServiceRegistrar) {
		csi.RegisterIdentityServer(server, driver)
		csi.RegisterControllerServer(server, driver)
	})
}

func serveAt(t *testing.T, socket string, register func(grpc.ServiceRegistrar)) {
	t.Helper()

	server := grpc.NewServer()
	register(server)

	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", socket)
	require.NoError(t, err)

	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()

	t.Cleanup(func() {
		server.Stop()
		await.Receive(t, done, "the server to end")
	})
}

func connect(t *testing.T, opts ...grpc.DialOption) (*csiclient.Client, string) {
	t.Helper()

	socket := filepath.Join(t.TempDir(), "csi.sock")
	co, err := csiclient.Connect("unix://"+socket, append(awaitcall.Options(t), opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, co.Close()) })

	return co, socket
}

func TestWaitReadyWaitsForTheSocketAndThenForTheDriver(t *testing.T) {
	co, socket := connect(t)

	waited := make(chan error, 1)
	go func() { waited <- co.WaitReady(t.Context()) }()

	driver := &slow{}
	serve(t, socket, driver)
	require.NoError(t, await.Receive(t, waited, "WaitReady to return"))
	require.EqualValues(t, 3, driver.probes.Load(), "want: WaitReady probes again until the driver is ready")
}

func TestWaitReadyGivesUpWithItsContext(t *testing.T) {
	co, _ := connect(t)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, co.WaitReady(ctx), context.Canceled)
}

func TestControllerAloneCannotPublish(t *testing.T) {
	co, socket := connect(t)
	serve(t, socket, &slow{})

	caps, err := co.Capabilities(t.Context())
	require.NoError(t, err)
	require.True(t, caps.HasController, "want: the driver has a controller service")
	require.False(t, caps.HasNode, "want: the driver has no node service")

	_, err = co.PublishSteps(caps, &csiclient.Publication{TargetPath: "/t"})
	require.ErrorIs(t, err, csiclient.ErrNoNodeService)
}

func TestStepsFollowTheCapabilities(t *testing.T) {
	co, _ := connect(t)
	attach := []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		}},
	}}
	stage := []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
			Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		}},
	}}
	claim := csiclient.Publication{NodeID: "n", StagingPath: "/s", TargetPath: "/t"}

	for name, test := range map[string]struct {
		caps     csiclient.Capabilities
		claim    csiclient.Publication
		up, down []string
		want     error
	}{
		"all": {
			csiclient.Capabilities{Controller: attach, Node: stage, HasNode: true},
			claim,
			[]string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"},
			[]string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"},
			nil,
		},
		"neither attach nor stage": {
			csiclient.Capabilities{HasNode: true},
			csiclient.Publication{TargetPath: "/t"},
			[]string{"NodePublishVolume"},
			[]string{"NodeUnpublishVolume"},
			nil,
		},
		"no node id": {
			caps: csiclient.Capabilities{Controller: attach, HasNode: true}, claim: csiclient.Publication{TargetPath: "/t"},
			want: csiclient.ErrNodeIDRequired,
		},
		"no staging path": {
			caps: csiclient.Capabilities{Node: stage, HasNode: true}, claim: csiclient.Publication{TargetPath: "/t"},
			want: csiclient.ErrStagingPathRequired,
		},
		"no target path": {
			caps: csiclient.Capabilities{HasNode: true}, want: csiclient.ErrTargetPathRequired,
		},
	} {
		t.Run(name, func(t *testing.T) {
			up, err := co.PublishSteps(test.caps, &test.claim)
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.up, names(up))

			down, err := co.UnpublishSteps(test.caps, &test.claim)
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.down, names(down))
		})
	}
}

func names(steps []csiclient.Step) []string {
	var all []string
	for _, step := range steps {
		all = append(all, step.RPC)
	}

	return all
}

func TestSlowPagesEnd(t *testing.T) {
	co, socket := connect(t)
	serve(t, socket, &slow{})

	var (
		last  error
		found int
	)

	for entry, err := range co.Volumes(t.Context(), 0) {
		if err != nil {
			last = err
		} else if entry.GetVolume().GetVolumeId() == "v" {
			found++
		}
	}

	require.ErrorIs(t, last, csiclient.ErrTokenRepeated)
	require.Equal(t, 2, found, "want: each volume is listed once before the repeated token")
}

func TestFailedCallNamesItsRPC(t *testing.T) {
	co, socket := connect(t)
	serve(t, socket, &slow{})

	err := co.Detach(t.Context(), &csiclient.Publication{VolumeID: "v"})

	var call *csiclient.CallError
	require.ErrorAs(t, err, &call)
	require.Equal(t, "ControllerUnpublishVolume", call.RPC)
	rpccode.Require(t, err, codes.Unimplemented)
	errtext.Require(t, err, "ControllerUnpublishVolume: UNIMPLEMENTED: ")
}

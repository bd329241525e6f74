package ctl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/test/await"
)

const (
	mebi = 1 << 20
	gibi = 1 << 30

	// refused is the message of a call that has to fail.
	refused = "the disk has a bad sector"
)

// fake is a CSI driver with two volumes and fixed answers, which records its requests.
type fake struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedSnapshotMetadataServer

	tasks *progress.Registry

	mu    sync.Mutex
	asked []proto.Message
	// called are the names of all calls, in order. The one with the number failing, from 1, fails.
	called  []string
	failing int

	// beginning delays the answer to a progress request until a copy has started.
	beginning sync.RWMutex
	// release, if it is not nil, ends slow copies when it is closed.
	release chan struct{}
}

func newFake() *fake { return &fake{tasks: progress.NewRegistry(slog.New(slog.DiscardHandler))} }

// startFake serves and returns the endpoint. Also registers further services.
func startFake(t *testing.T, also ...func(grpc.ServiceRegistrar)) (*fake, string) {
	t.Helper()

	driver := newFake()

	return driver, serveFake(t, driver, driver, also...)
}

// services contains the servers of a fake.
type services interface {
	csi.IdentityServer
	csi.ControllerServer
	csi.NodeServer
	csi.GroupControllerServer
	csi.SnapshotMetadataServer
}

// serveFake serves the given services instead of the recording fake.
func serveFake(t *testing.T, driver *fake, answers services, also ...func(grpc.ServiceRegistrar)) string {
	t.Helper()

	return serveFakeAt(t, filepath.Join(t.TempDir(), "csi.sock"), driver, answers, also...)
}

func serveFakeAt(t *testing.T, socket string, driver *fake, answers services, also ...func(grpc.ServiceRegistrar)) string {
	t.Helper()

	server := grpc.NewServer(grpc.UnaryInterceptor(driver.remember), grpc.StreamInterceptor(
		func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := driver.admit(info.FullMethod); err != nil {
				return err
			}

			return next(service, stream)
		}))
	csi.RegisterGroupControllerServer(server, answers)
	csi.RegisterSnapshotMetadataServer(server, answers)
	driver.tasks.Register(server)
	csi.RegisterIdentityServer(server, answers)
	csi.RegisterControllerServer(server, answers)
	csi.RegisterNodeServer(server, answers)

	for _, register := range also {
		register(server)
	}

	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", socket)
	require.NoError(t, err)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	t.Cleanup(func() {
		server.Stop()

		if err := await.Receive(t, served, "the fake driver to end"); !errors.Is(err, grpc.ErrServerStopped) {
			require.NoError(t, err)
		}
	})

	return "unix://" + socket
}

// admit fails the call that has to fail.
func (f *fake) admit(method string) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.called = append(f.called, path.Base(method)); len(f.called) == f.failing {
		return status.Error(codes.Internal, refused)
	}

	return nil
}

func (f *fake) remember(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := f.admit(info.FullMethod); err != nil {
		return nil, err
	}

	if _, ok := req.(*emptypb.Empty); ok {
		f.beginning.RLock()
		defer f.beginning.RUnlock()
	}

	if message, ok := req.(proto.Message); ok {
		f.keep(message)
	}

	return next(ctx, req)
}

func (f *fake) keep(message proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.asked = append(f.asked, proto.Clone(message))
}

// requests returns the recorded requests of type T, in order.
func requests[T proto.Message](f *fake) []T {
	f.mu.Lock()
	defer f.mu.Unlock()

	var found []T

	for _, one := range f.asked {
		if message, ok := one.(T); ok {
			found = append(found, message)
		}
	}

	return found
}

func entry(number int) *csi.ListVolumesResponse_Entry {
	entry := &csi.ListVolumesResponse_Entry{
		Volume: &csi.Volume{
			VolumeId:      fmt.Sprintf("volume-%d", number),
			CapacityBytes: int64(number) * gibi,
			VolumeContext: map[string]string{"pool": "default", "backing": "image"},
			AccessibleTopology: []*csi.Topology{
				{Segments: map[string]string{"zone": "a"}},
				{Segments: map[string]string{"zone": "b", "rack": "1"}},
			},
		},
		Status: &csi.ListVolumesResponse_VolumeStatus{},
	}
	if number == 1 {
		entry.Status.PublishedNodeIds = []string{"node-a", "node-b"}
	}

	return entry
}

func (*fake) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "fake.example.org", VendorVersion: "1.2.3"}, nil
}

func (*fake) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
}

func (*fake) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

func (*fake) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
		})
	}

	return answer, nil
}

func (*fake) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
			Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		}}},
	}}, nil
}

func (f *fake) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if req.GetName() == "taken" {
		return nil, status.Error(codes.AlreadyExists, "volume taken has another size")
	}

	if req.GetName() == "slow" {
		if err := f.copySlowly(ctx, "volume slow"); err != nil {
			return nil, err
		}
	}

	return &csi.CreateVolumeResponse{Volume: entry(1).GetVolume()}, nil
}

func (*fake) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if req.GetVolumeId() == "busy" {
		return nil, status.Error(codes.FailedPrecondition, "it is attached to node-a")
	}

	return &csi.DeleteVolumeResponse{}, nil
}

// ListVolumes gives one volume a page.
func (*fake) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	const volumes = 2

	number := 1
	if token := req.GetStartingToken(); token != "" {
		var err error
		if number, err = strconv.Atoi(token); err != nil {
			return nil, status.Error(codes.Aborted, "bad token")
		}
	}

	answer := &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{entry(number)}}
	if number < volumes {
		answer.NextToken = strconv.Itoa(number + 1)
	}

	return answer, nil
}

func (*fake) ControllerGetVolume(
	_ context.Context, req *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	if req.GetVolumeId() != "volume-1" {
		return nil, status.Errorf(codes.NotFound, "no volume %s", req.GetVolumeId())
	}

	return &csi.ControllerGetVolumeResponse{
		Volume: entry(1).GetVolume(),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: []string{"node-a"}},
	}, nil
}

func (*fake) ControllerExpandVolume(
	_ context.Context, req *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes:         req.GetCapacityRange().GetRequiredBytes(),
		NodeExpansionRequired: true,
	}, nil
}

func (*fake) ControllerModifyVolume(
	_ context.Context, req *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	if req.GetMutableParameters()["readIOPS"] != "500" {
		return nil, status.Error(codes.InvalidArgument, "mutable_parameters: readIOPS is not 500")
	}

	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (*fake) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: 5 * gibi, MinimumVolumeSize: wrapperspb.Int64(mebi)}, nil
}

func (*fake) ControllerPublishVolume(
	context.Context, *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"slot": "7"}}, nil
}

func (*fake) ControllerUnpublishVolume(
	context.Context, *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (*fake) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId:             "node-a",
		MaxVolumesPerNode:  16,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a"}},
	}, nil
}

func (*fake) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, nil
}

func (*fake) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (*fake) NodePublishVolume(context.Context, *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, nil
}

func (*fake) NodeUnpublishVolume(
	context.Context, *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (*fake) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}, nil
}

func (*fake) NodeGetVolumeStats(
	context.Context, *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: 64 * mebi, Used: 16 * mebi, Available: 48 * mebi},
		{Unit: csi.VolumeUsage_INODES, Total: 16384, Used: 12, Available: 16372},
	}}, nil
}

package strict_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

const (
	node    = "node-1"
	staging = "/staging"
	target  = "/target"
)

// fixture is a monitor with a clock of its own.
type fixture struct {
	*strict.Monitor

	t      *testing.T
	now    time.Time
	number uint64
	log    bytes.Buffer
	// registry has the monitor's metric.
	registry *prometheus.Registry
	// id is the id of the volume "data".
	id string
}

func newFixture(t *testing.T, mode strict.Mode, disabled ...string) *fixture {
	t.Helper()

	capabilities, err := capability.Without(disabled...)
	require.NoError(t, err)

	f := &fixture{t: t, now: time.Now(), registry: prometheus.NewRegistry()}
	f.Monitor, err = strict.New(strict.Config{
		Mode: mode, NodeID: node, Capabilities: capabilities, Now: func() time.Time { return f.now },
		Log: slog.New(slog.NewTextHandler(&f.log, nil)),
	}, f.registry)
	require.NoError(t, err)

	f.id = volume.NewID()

	return f
}

// methodOf is the full name of the RPC with this request.
func methodOf(t *testing.T, request proto.Message) string {
	t.Helper()

	services := csi.File_csi_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if methods.Get(j).Input() == request.ProtoReflect().Descriptor() {
				return "/" + string(services.Get(i).FullName()) + "/" + string(methods.Get(j).Name())
			}
		}
	}

	require.Fail(t, "no method", "%T", request)

	return ""
}

// begin begins a call.
func (f *fixture) begin(ctx context.Context, request proto.Message) func(response any, err error) {
	f.t.Helper()
	f.number++

	end, err := f.Begin(ctx, f.number, methodOf(f.t, request), request)
	require.NoError(f.t, err)

	return end
}

// call makes a call; between two calls is a minute.
func (f *fixture) call(request, response proto.Message) {
	f.t.Helper()
	f.begin(f.t.Context(), request)(response, nil)
	f.now = f.now.Add(time.Minute)
}

// fail makes a call that fails.
func (f *fixture) fail(request proto.Message, code codes.Code) {
	f.t.Helper()
	f.begin(f.t.Context(), request)(nil, status.Error(code, "it fails"))
}

// ids are the ids of the violations.
func (f *fixture) ids() []string {
	ids := []string{}
	for _, each := range f.List() {
		ids = append(ids, each.ID)
	}

	return ids
}

// volumeContext and publishContext are what the responses have.
func volumeContext() map[string]string  { return map[string]string{"pool": "default"} }
func publishContext() map[string]string { return map[string]string{"slot": "1"} }

func (f *fixture) createRequest() *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: "data", CapacityRange: &csi.CapacityRange{RequiredBytes: 100}, Parameters: map[string]string{"pool": "default"},
	}
}

func (f *fixture) create() {
	f.t.Helper()
	f.call(f.createRequest(), &csi.CreateVolumeResponse{
		Volume: &csi.Volume{VolumeId: f.id, VolumeContext: volumeContext(), CapacityBytes: 100},
	})
}

func (f *fixture) attachRequest() *csi.ControllerPublishVolumeRequest {
	return &csi.ControllerPublishVolumeRequest{VolumeId: f.id, NodeId: node, VolumeContext: volumeContext()}
}

func (f *fixture) attach() {
	f.t.Helper()
	f.call(f.attachRequest(), &csi.ControllerPublishVolumeResponse{PublishContext: publishContext()})
}

func (f *fixture) detach() {
	f.t.Helper()
	f.call(&csi.ControllerUnpublishVolumeRequest{VolumeId: f.id, NodeId: node}, &csi.ControllerUnpublishVolumeResponse{})
}

func (f *fixture) stageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: f.id, StagingTargetPath: staging, VolumeContext: volumeContext(), PublishContext: publishContext(),
	}
}

func (f *fixture) stage() {
	f.t.Helper()
	f.call(f.stageRequest(), &csi.NodeStageVolumeResponse{})
}

func (f *fixture) unstage() {
	f.t.Helper()
	f.call(&csi.NodeUnstageVolumeRequest{VolumeId: f.id, StagingTargetPath: staging}, &csi.NodeUnstageVolumeResponse{})
}

func (f *fixture) publishRequest() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: f.id, StagingTargetPath: staging, TargetPath: target, VolumeContext: volumeContext(), PublishContext: publishContext(),
	}
}

func (f *fixture) publish() {
	f.t.Helper()
	f.call(f.publishRequest(), &csi.NodePublishVolumeResponse{})
}

func (f *fixture) unpublish() {
	f.t.Helper()
	f.call(&csi.NodeUnpublishVolumeRequest{VolumeId: f.id, TargetPath: target}, &csi.NodeUnpublishVolumeResponse{})
}

func (f *fixture) deleteVolume() {
	f.t.Helper()
	f.call(&csi.DeleteVolumeRequest{VolumeId: f.id}, &csi.DeleteVolumeResponse{})
}

func (f *fixture) up() {
	f.t.Helper()
	f.create()
	f.attach()
	f.stage()
	f.publish()
}

func (f *fixture) down() {
	f.t.Helper()
	f.unpublish()
	f.unstage()
	f.detach()
	f.deleteVolume()
}

func expand(f *fixture, bytes int64) *csi.NodeExpandVolumeRequest {
	return &csi.NodeExpandVolumeRequest{VolumeId: f.id, VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}}
}

package ctl_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// reporting is a fake with Touchstone's health service.
type reporting struct {
	report health.Report
	// found are the verdicts by volume, refused the errors, asked what was asked.
	found   map[string]health.CheckReport
	refused map[string]error
	asked   []string
	// release, if it is not nil, ends checks when it is closed.
	release chan struct{}
}

func (r *reporting) register(to grpc.ServiceRegistrar) {
	service := &health.Service{Report: func(context.Context) (health.Report, error) { return r.report, nil }, Check: r.check}
	service.Register(to)
}

func (r *reporting) check(ctx context.Context, id, how string) (health.CheckReport, error) {
	r.asked = append(r.asked, id+" "+how)

	if r.release != nil {
		select {
		case <-r.release:
		case <-ctx.Done():
			return health.CheckReport{}, ctx.Err()
		}
	}

	if err := r.refused[id]; err != nil {
		return health.CheckReport{}, err
	}

	found := r.found[id]
	found.How = how

	return found, nil
}

// startReporting serves a driver with three volumes, of which volume-2 is unhealthy.
func startReporting(t *testing.T) (*reporting, string) {
	t.Helper()

	since := time.Now().Add(-125 * time.Minute)
	driver := &reporting{
		report: health.Report{
			Driver: "fake.example.org", Version: "1.2.3", Node: "node-a", Mode: "all", At: since.UTC(),
			Sources: map[string][]health.SourceStatus{"node": {{Name: "mounts", Connected: true}}},
			Storage: []health.StorageReport{{Name: "default", Kind: "pool", Path: "/pool", Conditions: []health.ConditionReport{}}},
			Volumes: []health.VolumeReport{
				{ID: "volume-1", Conditions: []health.ConditionReport{}, Check: &health.CheckReport{
					At: since, Verdict: "clean", How: "online", CleanAt: since,
				}},
				{ID: "volume-2", Conditions: []health.ConditionReport{
					{Entry: health.NewEntry(health.DiskFailure, "its root can't be read"), View: "node", Since: since},
					{Entry: health.NewEntry(health.IOErrors, "requests failed"), View: "node", Since: since},
				}, Check: &health.CheckReport{At: since, Verdict: "damaged", How: "stage"}},
				{ID: "volume-3", Conditions: []health.ConditionReport{}},
			},
			Changes: []health.Change{},
		},
		found: map[string]health.CheckReport{
			"volume-1": {Verdict: "clean", Took: 84 * time.Millisecond},
			"volume-2": {Verdict: "damaged", Took: time.Second, Detail: "bad block bitmap"},
		},
		refused: map[string]error{"volume-3": status.Error(codes.FailedPrecondition, "check volume volume-3: it is raw block")},
	}

	_, endpoint := startFake(t, driver.register)

	return driver, endpoint
}

// foreign answers the calls of CSI v1.13 as another driver may, as far as its
// capabilities say.
type foreign struct {
	*fake

	controls []csi.ControllerServiceCapability_RPC_Type
	nodes    []csi.NodeServiceCapability_RPC_Type
}

func startForeign(
	t *testing.T, controls []csi.ControllerServiceCapability_RPC_Type, nodes []csi.NodeServiceCapability_RPC_Type,
) string {
	t.Helper()

	driver := &foreign{fake: newFake(), controls: controls, nodes: nodes}

	return serveFake(t, driver.fake, driver)
}

func (f *foreign) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, each := range f.controls {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: each}},
		})
	}

	return answer, nil
}

func (f *foreign) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, each := range f.nodes {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: each}},
		})
	}

	return answer, nil
}

func degraded(id string) *csi.VolumeHealth {
	told := &csi.VolumeHealth{VolumeId: id}
	if id == "volume-2" {
		told.HealthStatuses = []*csi.VolumeHealth_VolumeHealthEntry{
			{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "SlowPath", Message: "one path is left"},
			{Status: 4711, Reason: "FromTheFuture"},
		}
	}

	return told
}

func (f *foreign) ControllerGetVolumeHealth(
	_ context.Context, request *csi.ControllerGetVolumeHealthRequest,
) (*csi.ControllerGetVolumeHealthResponse, error) {
	if id := request.GetVolumeId(); id != "volume-1" && id != "volume-2" {
		return nil, status.Errorf(codes.NotFound, "no volume %s", id)
	}

	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: degraded(request.GetVolumeId())}, nil
}

func (f *foreign) ControllerListVolumeHealth(
	_ context.Context, request *csi.ControllerListVolumeHealthRequest,
) (*csi.ControllerListVolumeHealthResponse, error) {
	if request.GetStartingToken() == "" {
		return &csi.ControllerListVolumeHealthResponse{NextToken: "more"}, nil
	}

	return &csi.ControllerListVolumeHealthResponse{Entries: []*csi.VolumeHealth{degraded("volume-2")}}, nil
}

func (f *foreign) NodeGetVolumeHealth(
	_ context.Context, request *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	if request.GetVolumeId() != "volume-1" {
		return nil, status.Error(codes.NotFound, "not on this node")
	}

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{
		VolumeId: "volume-1", HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
			{Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: "NoDevice"},
		},
	}}, nil
}

func (f *foreign) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	answer := &csi.NodeGetStorageHealthResponse{}
	if len(f.nodes) > 0 {
		answer.BackendHealth = []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "PoolNearlyFull", Message: "little is left"},
		}
	}

	return answer, nil
}

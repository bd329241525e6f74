package controller

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// snapshotRequest is a valid CreateSnapshotRequest.
type snapshotRequest struct {
	name, sourceID string
	consistency    volume.Consistency
	topology       *csi.TopologyRequirement
}

func (p *parser) parseSnapshot(request *csi.CreateSnapshotRequest) (*snapshotRequest, error) {
	if err := checkName(request.GetName()); err != nil {
		return nil, err
	}

	if err := rpc.CheckID("source_volume_id", request.GetSourceVolumeId()); err != nil {
		return nil, err
	}

	advertised := p.hasTopology() && p.has(capability.SnapshotConstraints)
	if err := record.CheckTopologyRequirement(request.GetAccessibilityRequirements(), advertised); err != nil {
		return nil, err
	}

	consistency, err := volume.ParseSnapshotParameters(request.GetParameters())
	if err != nil {
		return nil, rpc.Invalid("parameters: %w", err)
	}

	return &snapshotRequest{
		name: request.GetName(), sourceID: request.GetSourceVolumeId(), consistency: consistency,
		topology: request.GetAccessibilityRequirements(),
	}, nil
}

// groupRequest is a valid CreateVolumeGroupSnapshotRequest.
type groupRequest struct {
	name string
	// sourceIDs are sorted.
	sourceIDs   []string
	consistency volume.Consistency
}

func parseGroup(request *csi.CreateVolumeGroupSnapshotRequest) (*groupRequest, error) {
	if err := checkName(request.GetName()); err != nil {
		return nil, err
	}

	if len(request.GetSourceVolumeIds()) == 0 {
		return nil, rpc.Invalid("source_volume_ids are missing")
	}

	for _, id := range request.GetSourceVolumeIds() {
		if err := rpc.CheckVolumeID(id); err != nil {
			return nil, rpc.Invalid("source_volume_ids: %w", err)
		}
	}

	ids := slices.Sorted(slices.Values(request.GetSourceVolumeIds()))
	if len(slices.Compact(slices.Clone(ids))) != len(ids) {
		return nil, rpc.Invalid("source_volume_ids name a volume twice")
	}

	consistency, err := volume.ParseSnapshotParameters(request.GetParameters())
	if err != nil {
		return nil, rpc.Invalid("parameters: %w", err)
	}

	return &groupRequest{name: request.GetName(), sourceIDs: ids, consistency: consistency}, nil
}

package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Groups is the CSI GroupController service (CSI v1.13, Group Controller Service
// RPCs), of a controller whose volumes and snapshots it shares. It is safe for
// concurrent use.
type Groups struct {
	csi.UnimplementedGroupControllerServer

	service *Service
}

// NewGroups returns the service of the controller.
func NewGroups(of *Service) *Groups { return &Groups{service: of} }

// GroupControllerGetCapabilities answers with what is not disabled (CSI v1.13,
// GroupControllerGetCapabilities).
func (g *Groups) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: g.service.config.Capabilities.GroupController()}, nil
}

// CreateVolumeGroupSnapshot takes a point-in-time snapshot of all volumes,
// or returns the group of that name if it is of these volumes (CSI v1.13,
// CreateVolumeGroupSnapshot). There are all of them or none.
func (g *Groups) CreateVolumeGroupSnapshot(
	ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	s := g.service

	wanted, err := parseGroup(request)
	if err != nil {
		return nil, err
	}

	call := operation.Call{Key: "group " + wanted.name, Method: "CreateVolumeGroupSnapshot", Request: request}

	return operation.DoLogged(ctx, s.config.Log, s.ops, call, func(ctx context.Context) (*csi.CreateVolumeGroupSnapshotResponse, error) {
		made, err := g.ensureGroup(ctx, wanted)
		if err != nil {
			return nil, fmt.Errorf("create group snapshot %q: %w", wanted.name, err)
		}

		described, err := g.describeGroup(made)

		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: described}, err
	})
}

func (g *Groups) ensureGroup(ctx context.Context, wanted *groupRequest) (*record.Group, error) {
	if _, existing, ok := g.service.catalog.Groups.Lookup(record.NameIndex, wanted.name); ok && existing.Phase == record.PhaseReady {
		return existing, checkSameGroup(existing, wanted)
	}

	// What is missing need not wait for the volumes that are there.
	for _, id := range wanted.sourceIDs {
		if _, err := g.service.catalog.FindVolume(id); err != nil {
			return nil, err
		}
	}

	fresh := &record.Group{
		ID: volume.NewID(), Name: wanted.name, SourceVolumeIDs: wanted.sourceIDs, Consistency: wanted.consistency, Phase: record.PhaseCreating,
	}

	return g.service.copies.TakeGroup(ctx, fresh)
}

// checkSameGroup returns ALREADY_EXISTS unless the group is what is wanted.
func checkSameGroup(g *record.Group, wanted *groupRequest) error {
	exists := func(what string, has, asked any) error {
		return rpc.Errorf(codes.AlreadyExists, "it exists as %s with %s %v, not %v; choose another name or delete it",
			g.ID, what, has, asked)
	}

	switch {
	case !slices.Equal(g.SourceVolumeIDs, wanted.sourceIDs):
		return exists("source volumes", g.SourceVolumeIDs, wanted.sourceIDs)
	case g.Consistency != wanted.consistency:
		return exists(volume.KeyConsistency, g.Consistency, wanted.consistency)
	default:
		return nil
	}
}

func (g *Groups) describeGroup(found *record.Group) (*csi.VolumeGroupSnapshot, error) {
	described := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: found.ID, CreationTime: timestamppb.New(found.CreatedAt), ReadyToUse: true,
	}

	for _, id := range found.SnapshotIDs {
		member, err := g.service.catalog.FindSnapshot(id)
		if err != nil {
			return nil, err
		}

		described.Snapshots = append(described.GetSnapshots(), g.service.describeSnapshot(member))
	}

	return described, nil
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

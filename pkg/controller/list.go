package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ListVolumes lists all volumes in the order of their ids, which is that of
// their creation (CSI v1.13, ListVolumes). The token is the last id that was
// returned; it stays valid when that volume is deleted.
func (s *Service) ListVolumes(ctx context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	listed, err := newPage[*csi.ListVolumesResponse_Entry]("ListVolumes", request)
	if err != nil {
		return nil, err
	}

	token := request.GetStartingToken()

	status, err := s.statusesBehind(ctx, token)
	if err != nil {
		return nil, err
	}

	encoded := encodedContexts{}

	for v := range s.catalog.ReadyVolumes(token) {
		shown := s.advertised(v)
		if !listed.add(v.ID, &csi.ListVolumesResponse_Entry{Volume: encoded.describe(v.Properties, shown), Status: status.of(shown)}) {
			break
		}
	}

	return &csi.ListVolumesResponse{Entries: listed.entries, NextToken: listed.nextToken}, nil
}

// statuses returns the statuses of volumes ordered by id.
type statuses struct {
	// unhealthy are the records of the unhealthy volumes that follow.
	unhealthy []*health.Record
	// healthy are the statuses of the healthy volumes, by the one node that they are
	// published on, or "".
	healthy map[string]*csi.ListVolumesResponse_VolumeStatus
	// conditions: the answer contains conditions.
	conditions bool
}

func (s *Service) statusesBehind(ctx context.Context, id string) (*statuses, error) {
	listed := &statuses{healthy: map[string]*csi.ListVolumesResponse_VolumeStatus{}, conditions: s.has(capability.VolumeCondition)}
	if !listed.conditions {
		return listed, nil
	}

	err := s.health.Monitor.AwaitRelist(ctx)
	listed.unhealthy = s.health.reportedUnhealthy(id)

	return listed, err
}

func (t *statuses) of(v *record.Volume) *csi.ListVolumesResponse_VolumeStatus {
	condition := t.conditionOf(v)
	if condition != nil || len(v.Attachments) > 1 {
		return t.make(v, condition)
	}

	node := ""
	if len(v.Attachments) > 0 {
		node = v.Attachments[0].NodeID
	}

	shared, ok := t.healthy[node]
	if !ok {
		shared = t.make(v, nil)
		t.healthy[node] = shared
	}

	return shared
}

func (t *statuses) conditionOf(v *record.Volume) *health.Record {
	for len(t.unhealthy) > 0 && t.unhealthy[0].ID < v.ID {
		t.unhealthy = t.unhealthy[1:]
	}

	if len(t.unhealthy) == 0 || t.unhealthy[0].ID != v.ID {
		return nil
	}

	return t.unhealthy[0]
}

func (t *statuses) make(v *record.Volume, condition *health.Record) *csi.ListVolumesResponse_VolumeStatus {
	made := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.NodeIDs()}
	if t.conditions {
		health.PutCondition(made, condition)
	}

	return made
}

// encodedContexts caches the encoded volume_context and topology, which volumes of the same
// parameters share. Encoding these maps again for each volume would take most of the time of a
// list.
type encodedContexts map[contextKey][]byte

type contextKey struct {
	properties *record.Properties
	copied     bool
	sizeLimit  volume.SizeLimit
}

// describe returns what is the same on the wire as the result of the function describe. The
// properties are those of the volume's record, which volumes share. The encoded fields are set as
// unknown fields, which a message appends to its own as they are; so only the wire shows them.
func (c encodedContexts) describe(properties *record.Properties, v *record.Volume) *csi.Volume {
	key := contextKey{properties, !v.Source.IsZero(), v.SizeLimit}

	encoded, ok := c[key]
	if !ok {
		// Only a text that is not UTF-8 fails, which no request has.
		encoded, _ = proto.Marshal(&csi.Volume{VolumeContext: v.Context(), AccessibleTopology: v.Segments.AccessibleTopology()})
		c[key] = encoded
	}

	described := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.CapacityBytes, ContentSource: v.Source.ContentSource()}
	described.ProtoReflect().SetUnknown(encoded)

	return described
}

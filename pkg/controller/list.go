package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
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

// ControllerGetVolume describes one volume (CSI v1.13, ControllerGetVolume).
func (s *Service) ControllerGetVolume(
	ctx context.Context, request *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	found = s.advertised(found)
	status := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.NodeIDs()}

	if s.has(capability.VolumeCondition) {
		if err := s.health.Monitor.AwaitRelist(ctx); err != nil {
			return nil, err
		}

		health.PutCondition(status, s.health.reported(found.ID))
	}

	return &csi.ControllerGetVolumeResponse{Volume: describe(found), Status: status}, nil
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

func describe(v *record.Volume) *csi.Volume {
	return &csi.Volume{
		VolumeId:           v.ID,
		CapacityBytes:      v.CapacityBytes,
		VolumeContext:      v.Context(),
		ContentSource:      v.Source.ContentSource(),
		AccessibleTopology: v.Segments.AccessibleTopology(),
	}
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

// ListSnapshots lists snapshots in the order of their ids, which is that of
// their creation (CSI v1.13, ListSnapshots). The token is the last id that was
// returned; it stays valid when that snapshot is deleted. An unknown id is no
// error here.
func (s *Service) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	listed, err := newPage[*csi.ListSnapshotsResponse_Entry]("ListSnapshots", request)
	if err != nil {
		return nil, err
	}

	token, sourceID := request.GetStartingToken(), request.GetSourceVolumeId()

	snapshots := s.catalog.VisibleSnapshots(sourceID, token)
	if id := request.GetSnapshotId(); id != "" {
		var one []*record.Snapshot
		if found, err := s.catalog.FindSnapshot(id); err == nil && id > token && (sourceID == "" || found.SourceVolumeID == sourceID) {
			one = append(one, found)
		}

		snapshots = slices.Values(one)
	}

	for found := range snapshots {
		if !listed.add(found.ID, &csi.ListSnapshotsResponse_Entry{Snapshot: s.describeSnapshot(found)}) {
			break
		}
	}

	return &csi.ListSnapshotsResponse{Entries: listed.entries, NextToken: listed.nextToken}, nil
}

// maxResponseBytes keeps a page below the 4 MiB that a gRPC client accepts unless
// configured otherwise, with space for the framing.
const maxResponseBytes = 7 << 19

// page collects the entries of one page of a list that is ordered by id. Its token is the id
// of the page's last entry; it stays valid when that object is deleted.
type page[E proto.Message] struct {
	maxEntries int
	bytes      int
	entries    []E
	lastID     string
	// nextToken is empty at the end of the list.
	nextToken string
}

// listRequest is what the requests of all lists have in common.
type listRequest interface {
	GetMaxEntries() int32
	GetStartingToken() string
}

// newPage returns an empty page. Errors: INVALID_ARGUMENT, ABORTED for a token that no page
// of the method has had.
func newPage[E proto.Message](method string, request listRequest) (*page[E], error) {
	if request.GetMaxEntries() < 0 {
		return nil, rpc.Invalid("max_entries is %d; it must not be negative", request.GetMaxEntries())
	}

	if token := request.GetStartingToken(); token != "" && !volume.IsID(token) {
		return nil, rpc.Errorf(codes.Aborted, "starting_token %q is none that %s gave; list from the start", token, method)
	}

	return &page[E]{maxEntries: int(request.GetMaxEntries())}, nil
}

// add appends the entry, or returns false if the page is full.
func (p *page[E]) add(id string, entry E) bool {
	const tagAndLength = 6

	full := p.maxEntries > 0 && len(p.entries) == p.maxEntries
	if p.bytes += proto.Size(entry) + tagAndLength; full || p.bytes > maxResponseBytes {
		p.nextToken = p.lastID

		return false
	}

	p.entries, p.lastID = append(p.entries, entry), id

	return true
}

package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// maxResponseBytes keeps a page below the 4 MiB that a gRPC client takes unless
// configured otherwise, with space for the framing.
const maxResponseBytes = 7 << 19

// ListVolumes lists all volumes in the order of their ids, which is that of
// their creation (CSI v1.13, ListVolumes). The token is the last id that was
// returned; it stays good when that volume is deleted.
func (s *Service) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if request.GetMaxEntries() < 0 {
		return nil, rpc.Invalid("max_entries is %d; it must not be negative", request.GetMaxEntries())
	}

	token := request.GetStartingToken()
	if token != "" && !volume.IsID(token) {
		return nil, rpc.Errorf(codes.Aborted, "starting_token %q is none that ListVolumes gave; list from the start", token)
	}

	response, size := &csi.ListVolumesResponse{}, 0
	alike, status := commons{}, s.statusesBehind(token)

	s.volumes.Ascend(token, func(_ string, v *record.Volume) bool {
		if v.Phase != record.PhaseReady {
			return true
		}

		v = s.advertised(v)
		entry := &csi.ListVolumesResponse_Entry{
			Volume: alike.describe(v),
			Status: status.of(v),
		}

		full := request.GetMaxEntries() > 0 && len(response.GetEntries()) == int(request.GetMaxEntries())
		if size += entrySize(entry); full || size > maxResponseBytes {
			last := response.GetEntries()[len(response.GetEntries())-1]
			response.NextToken = last.GetVolume().GetVolumeId()

			return false
		}

		response.Entries = append(response.GetEntries(), entry)

		return true
	})

	return response, nil
}

// ControllerGetVolume describes one volume (CSI v1.13, ControllerGetVolume).
func (s *Service) ControllerGetVolume(
	_ context.Context, request *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	found, err := s.find(request.GetVolumeId())
	if err != nil {
		return nil, rpc.Status(err)
	}

	found = s.advertised(found)
	status := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.NodeIDs()}

	if s.has(capability.VolumeCondition) {
		health.PutCondition(status, s.conditionOf(found.ID))
	}

	return &csi.ControllerGetVolumeResponse{Volume: describe(found), Status: status}, nil
}

// statuses returns the statuses of volumes ordered by id.
type statuses struct {
	// unhealthy are the records of the unhealthy volumes that follow.
	unhealthy []*health.Record
	// well are the statuses of volumes that are, by the one node that they are
	// published on, or "".
	well map[string]*csi.ListVolumesResponse_VolumeStatus
	// conditions: the answer contains conditions.
	conditions bool
}

func (s *Service) statusesBehind(id string) *statuses {
	listed := &statuses{well: map[string]*csi.ListVolumesResponse_VolumeStatus{}, conditions: s.has(capability.VolumeCondition)}
	if listed.conditions {
		listed.unhealthy = s.monitor.Abnormal(id)
	}

	return listed
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

	shared, ok := t.well[node]
	if !ok {
		shared = t.make(v, nil)
		t.well[node] = shared
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

// commons holds, already encoded, what volumes that were asked for alike have
// in common: context and topology. Encoding these maps again for each volume
// would take most of the time of a list.
type commons map[common][]byte

type common struct {
	parameters volume.Parameters
	segments   record.Segments
	copied     bool
}

// describe is the same on the wire as the function of that name gives. A
// message puts behind its own fields, as they are, the bytes of those that it
// does not know; so nothing but the wire shows the common part.
func (c commons) describe(v *record.Volume) *csi.Volume {
	key := common{v.Parameters, v.Segments, !v.Source.IsZero()}

	encoded, ok := c[key]
	if !ok {
		var err error
		if encoded, err = proto.Marshal(&csi.Volume{
			VolumeContext: v.Context(), AccessibleTopology: v.Segments.AccessibleTopology(),
		}); err != nil {
			return describe(v)
		}

		c[key] = encoded
	}

	described := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.CapacityBytes, ContentSource: v.Source.ContentSource()}
	described.ProtoReflect().SetUnknown(encoded)

	return described
}

// entrySize is what the entry adds to a response, in bytes.
func entrySize(entry proto.Message) int {
	const tagAndLength = 6

	return proto.Size(entry) + tagAndLength
}

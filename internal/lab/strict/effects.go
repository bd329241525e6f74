package strict

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
)

// maxMembers bounds the known members of group snapshots. The oldest ones are forgotten first.
const maxMembers = 10000

// apply remembers what a successful call has done. A call that failed has done nothing that the CO
// may rely on, and has ended nothing.
func (m *Monitor) apply(request, response any) {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		if answer, ok := response.(*csi.CreateVolumeResponse); ok {
			m.created(request, answer.GetVolume())
		}
	case *csi.DeleteVolumeRequest:
		if known := m.volumes.byID[request.GetVolumeId()]; known != nil {
			m.volumes.forget(known)
		}
	case *csi.ControllerPublishVolumeRequest:
		if answer, ok := response.(*csi.ControllerPublishVolumeResponse); ok {
			m.volumes.get(request.GetVolumeId()).attachments[request.GetNodeId()] = attachment{yes, answer.GetPublishContext()}
		}
	case *csi.ControllerUnpublishVolumeRequest:
		m.detached(request)
	case *csi.ControllerExpandVolumeRequest:
		if answer, ok := response.(*csi.ControllerExpandVolumeResponse); ok {
			m.volumes.get(request.GetVolumeId()).capacity = answer.GetCapacityBytes()
		}
	case *csi.NodeStageVolumeRequest:
		known := m.volumes.get(request.GetVolumeId())
		known.staging, known.stagingPath = yes, request.GetStagingTargetPath()
	case *csi.NodeUnstageVolumeRequest:
		m.unstaged(request)
	case *csi.NodePublishVolumeRequest:
		m.volumes.publish(m.volumes.get(request.GetVolumeId()), request.GetTargetPath())
	case *csi.NodeUnpublishVolumeRequest:
		m.unpublished(request)
	}
}

func (m *Monitor) created(request *csi.CreateVolumeRequest, made *csi.Volume) {
	known := m.volumes.byID[made.GetVolumeId()]
	if known == nil {
		known = m.volumes.get(made.GetVolumeId())
		known.fresh = createdSince(known.id, m.started)

		if known.fresh {
			known.staging = no
		}
	}

	known.created, known.context, known.hasContext = createFingerprint(request), made.GetVolumeContext(), true
	known.capacity = max(known.capacity, made.GetCapacityBytes())
	m.volumes.name(known, request.GetName())
}

func (m *Monitor) detached(request *csi.ControllerUnpublishVolumeRequest) {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return // idempotent, or before the start
	}

	if request.GetNodeId() != "" {
		known.attachments[request.GetNodeId()] = attachment{state: no}

		return
	}

	for node := range known.attachments {
		known.attachments[node] = attachment{state: no}
	}
}

func (m *Monitor) unstaged(request *csi.NodeUnstageVolumeRequest) {
	known := m.volumes.byID[request.GetVolumeId()]

	switch {
	case known == nil: // idempotent, or before the start
	case known.staging == yes && known.stagingPath != request.GetStagingTargetPath(): // another path, at which it is not staged
	case known.staging == no: // idempotent
	default:
		known.staging, known.stagingPath = no, request.GetStagingTargetPath()
	}
}

func (m *Monitor) unpublished(request *csi.NodeUnpublishVolumeRequest) {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return
	}

	m.volumes.unpublish(known, request.GetTargetPath())

	// An inline ephemeral volume has ended with its publication.
	if !known.hasContext && known.staging == unknown && len(known.targets) == 0 && len(known.attachments) == 0 {
		m.volumes.forget(known)
	}
}

// learnMembers remembers which snapshots are members of groups.
func (m *Monitor) learnMembers(request, response any) {
	var snapshots []*csi.Snapshot

	switch answer := response.(type) {
	case *csi.CreateSnapshotResponse:
		snapshots = []*csi.Snapshot{answer.GetSnapshot()}
	case *csi.GetSnapshotResponse:
		snapshots = []*csi.Snapshot{answer.GetSnapshot()}
	case *csi.ListSnapshotsResponse:
		for _, entry := range answer.GetEntries() {
			snapshots = append(snapshots, entry.GetSnapshot())
		}
	case *csi.CreateVolumeGroupSnapshotResponse:
		snapshots = answer.GetGroupSnapshot().GetSnapshots()
	case *csi.GetVolumeGroupSnapshotResponse:
		snapshots = answer.GetGroupSnapshot().GetSnapshots()
	case *csi.DeleteVolumeGroupSnapshotResponse:
		m.forgetMembers(request)
	}

	for _, each := range snapshots {
		if each.GetGroupSnapshotId() != "" {
			m.members.Put(each.GetSnapshotId(), each.GetGroupSnapshotId())
		}
	}
}

func (m *Monitor) forgetMembers(request any) {
	if deleted, ok := request.(*csi.DeleteVolumeGroupSnapshotRequest); ok {
		m.members.DeleteValues(func(group string) bool { return group == deleted.GetGroupSnapshotId() })
	}
}

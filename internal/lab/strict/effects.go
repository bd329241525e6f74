package strict

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
)

// maxMembers bounds the known members of group snapshots. The oldest ones are forgotten first.
const maxMembers = 10000

// apply remembers what a successful call has done. A call that failed has done nothing that the CO
// may rely on, and has ended nothing.
func (l *lifecycle) apply(request, response any) {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		if answer, ok := response.(*csi.CreateVolumeResponse); ok {
			l.created(request, answer.GetVolume())
		}
	case *csi.DeleteVolumeRequest:
		if known := l.volumes.byID[request.GetVolumeId()]; known != nil {
			l.volumes.forget(known)
		}
	case *csi.ControllerPublishVolumeRequest:
		if answer, ok := response.(*csi.ControllerPublishVolumeResponse); ok {
			l.volumes.get(request.GetVolumeId()).attachments[request.GetNodeId()] = attachment{yes, answer.GetPublishContext()}
		}
	case *csi.ControllerUnpublishVolumeRequest:
		l.detached(request)
	case *csi.ControllerExpandVolumeRequest:
		if answer, ok := response.(*csi.ControllerExpandVolumeResponse); ok {
			l.volumes.get(request.GetVolumeId()).capacity = answer.GetCapacityBytes()
		}
	case *csi.NodeStageVolumeRequest:
		known := l.volumes.get(request.GetVolumeId())
		known.staging, known.stagingPath = yes, request.GetStagingTargetPath()
	case *csi.NodeUnstageVolumeRequest:
		l.unstaged(request)
	case *csi.NodePublishVolumeRequest:
		l.volumes.publish(l.volumes.get(request.GetVolumeId()), request.GetTargetPath())
	case *csi.NodeUnpublishVolumeRequest:
		l.unpublished(request)
	}
}

func (l *lifecycle) created(request *csi.CreateVolumeRequest, made *csi.Volume) {
	known := l.volumes.byID[made.GetVolumeId()]
	if known == nil {
		known = l.volumes.get(made.GetVolumeId())
		known.fresh = createdSince(known.id, l.started)

		if known.fresh {
			known.staging = no
		}
	}

	known.created, known.context, known.hasContext = createFingerprint(request), made.GetVolumeContext(), true
	known.capacity = max(known.capacity, made.GetCapacityBytes())
	l.volumes.name(known, request.GetName())
}

func (l *lifecycle) detached(request *csi.ControllerUnpublishVolumeRequest) {
	known := l.volumes.byID[request.GetVolumeId()]
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

func (l *lifecycle) unstaged(request *csi.NodeUnstageVolumeRequest) {
	known := l.volumes.byID[request.GetVolumeId()]

	switch {
	case known == nil: // idempotent, or before the start
	case known.staging == yes && known.stagingPath != request.GetStagingTargetPath(): // another path, at which it is not staged
	case known.staging == no: // idempotent
	default:
		known.staging, known.stagingPath = no, request.GetStagingTargetPath()
	}
}

func (l *lifecycle) unpublished(request *csi.NodeUnpublishVolumeRequest) {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return
	}

	l.volumes.unpublish(known, request.GetTargetPath())

	// An inline ephemeral volume has ended with its publication.
	if !known.hasContext && known.staging == unknown && len(known.targets) == 0 && len(known.attachments) == 0 {
		l.volumes.forget(known)
	}
}

// learnMembers remembers which snapshots are members of groups.
func (l *lifecycle) learnMembers(request, response any) {
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
		l.forgetMembers(request)
	}

	for _, each := range snapshots {
		if each.GetGroupSnapshotId() != "" {
			l.members.Put(each.GetSnapshotId(), each.GetGroupSnapshotId())
		}
	}
}

func (l *lifecycle) forgetMembers(request any) {
	if deleted, ok := request.(*csi.DeleteVolumeGroupSnapshotRequest); ok {
		l.members.DeleteValues(func(group string) bool { return group == deleted.GetGroupSnapshotId() })
	}
}

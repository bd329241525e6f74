package strict

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
)

// keyEphemeral marks a NodePublishVolume of an inline ephemeral volume, which has no other calls
// but NodeUnpublishVolume.
const keyEphemeral = "csi.storage.k8s.io/ephemeral"

// checkOrder compares a request with what the calls before it have shown.
func (m *Monitor) checkOrder(request any) []finding {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		return m.checkCreate(request)
	case *csi.DeleteVolumeRequest:
		return m.checkDelete(request)
	case *csi.DeleteSnapshotRequest:
		if group := m.members.Get(request.GetSnapshotId()); group != "" {
			return []finding{{groupMemberDeleted, request.GetSnapshotId(), "it is a member of the group snapshot " + group}}
		}
	case *csi.ValidateVolumeCapabilitiesRequest:
		return m.checkContext(request)
	case *csi.ControllerPublishVolumeRequest:
		return m.checkContext(request)
	case *csi.ControllerUnpublishVolumeRequest:
		return m.checkDetach(request)
	case *csi.ControllerExpandVolumeRequest:
		return m.checkExpand(request)
	case *csi.NodeStageVolumeRequest:
		return m.checkStage(request)
	case *csi.NodeUnstageVolumeRequest:
		return m.checkUnstage(request)
	case *csi.NodePublishVolumeRequest:
		return m.checkPublish(request)
	case *csi.NodeExpandVolumeRequest:
		return m.checkNodeExpand(request)
	}

	return nil
}

func (m *Monitor) checkCreate(request *csi.CreateVolumeRequest) []finding {
	known := m.volumes.byName[request.GetName()]
	if known == nil || known.created == createFingerprint(request) {
		return nil
	}

	return []finding{{createChanged, request.GetName(), "volume " + known.id + " has that name and was created by another request"}}
}

// createFingerprint is the fingerprint of what has to be the same when CreateVolume is repeated. A CO may
// change the topology, after RESOURCE_EXHAUSTED, and secrets.
func createFingerprint(request *csi.CreateVolumeRequest) fingerprint {
	return fingerprintOf("", &csi.CreateVolumeRequest{
		Name: request.GetName(), CapacityRange: request.GetCapacityRange(), VolumeCapabilities: request.GetVolumeCapabilities(),
		Parameters: request.GetParameters(), VolumeContentSource: request.GetVolumeContentSource(),
	})
}

func (m *Monitor) checkDelete(request *csi.DeleteVolumeRequest) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil || known.inUse() == "" {
		return nil
	}

	return []finding{{deleteWhileInUse, request.GetVolumeId(), known.inUse()}}
}

func (m *Monitor) checkExpand(request *csi.ControllerExpandVolumeRequest) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil || m.has(capability.Online) || known.inUse() == "" {
		return nil
	}

	return []finding{{expandWhileInUse, request.GetVolumeId(), known.inUse()}}
}

// withContext is a request with a volume_context.
type withContext interface {
	GetVolumeId() string
	GetVolumeContext() map[string]string
}

func (m *Monitor) checkContext(request withContext) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil || !known.hasContext || sameContext(known.context, request.GetVolumeContext()) {
		return nil
	}

	return []finding{{volumeContextChanged, request.GetVolumeId(), "volume_context is not that of CreateVolume"}}
}

func (m *Monitor) checkPublishContext(known *volume, given map[string]string) []finding {
	attached := known.attachments[m.config.NodeID]
	if !m.attaches() || attached.state != yes || sameContext(attached.context, given) {
		return nil
	}

	return []finding{{publishContextChanged, known.id, "publish_context is not that of ControllerPublishVolume for node " + m.config.NodeID}}
}

func (m *Monitor) checkDetach(request *csi.ControllerUnpublishVolumeRequest) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil || request.GetNodeId() != "" && request.GetNodeId() != m.config.NodeID {
		return nil
	}

	var found []finding

	if known.staging == yes {
		found = append(found, finding{detachWhileStaged, known.id, "it is staged at " + known.stagingPath})
	}

	if target := known.anyTarget(); target != "" {
		found = append(found, finding{detachWhilePublished, known.id, "it is published at " + target})
	}

	return found
}

func (v *volume) anyTarget() string {
	for target := range v.targets {
		return target
	}

	return ""
}

func (m *Monitor) checkStage(request *csi.NodeStageVolumeRequest) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return nil
	}

	found := append(m.checkContext(request), m.checkPublishContext(known, request.GetPublishContext())...)

	if m.attaches() && known.attachedTo(m.config.NodeID) == no {
		found = append(found, finding{stageBeforeAttach, known.id, "it is not attached to node " + m.config.NodeID})
	}

	if known.staging == yes && known.stagingPath != request.GetStagingTargetPath() {
		found = append(found, finding{secondStagingPath, known.id, "it is staged at " + known.stagingPath})
	}

	return found
}

func (m *Monitor) checkUnstage(request *csi.NodeUnstageVolumeRequest) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return nil
	}

	if target := known.anyTarget(); target != "" {
		return []finding{{unstageWhilePublished, known.id, "it is published at " + target}}
	}

	return nil
}

func (m *Monitor) checkPublish(request *csi.NodePublishVolumeRequest) []finding {
	var found []finding

	if other := m.volumes.targets[request.GetTargetPath()]; other != nil && other.id != request.GetVolumeId() {
		found = append(found, finding{targetPathShared, request.GetVolumeId(), "volume " + other.id + " is published at its target_path"})
	}

	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil || request.GetVolumeContext()[keyEphemeral] == "true" {
		return found
	}

	found = append(found, m.checkContext(request)...)
	found = append(found, m.checkPublishContext(known, request.GetPublishContext())...)

	if m.attaches() && known.attachedTo(m.config.NodeID) == no {
		found = append(found, finding{publishBeforeAttach, known.id, "it is not attached to node " + m.config.NodeID})
	}

	if !m.has(capability.StageUnstageVolume) {
		return found
	}

	switch path := request.GetStagingTargetPath(); {
	case known.staging == yes && known.stagingPath != path:
		found = append(found, finding{secondStagingPath, known.id, "it is staged at " + known.stagingPath})
	case known.staging == no && known.stagingPath != "":
		found = append(found, finding{publishAfterUnstage, known.id, "it was unstaged from " + known.stagingPath})
	case known.staging == no:
		found = append(found, finding{publishBeforeStage, known.id, "it is not staged"})
	}

	return found
}

func (m *Monitor) checkNodeExpand(request *csi.NodeExpandVolumeRequest) []finding {
	known := m.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return nil
	}

	var found []finding

	staged := m.has(capability.StageUnstageVolume)
	if staged && known.staging == no || !staged && known.fresh && len(known.targets) == 0 {
		found = append(found, finding{expandBeforeStage, known.id, "it is not staged or published"})
	}

	wanted := request.GetCapacityRange().GetRequiredBytes()
	if known.capacity > 0 && wanted > known.capacity && m.has(capability.ControllerService) {
		found = append(found, finding{
			expandWithoutController, known.id, fmt.Sprintf("%d bytes are required; the controller has returned %d", wanted, known.capacity),
		})
	}

	return found
}

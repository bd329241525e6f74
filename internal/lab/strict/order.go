package strict

import (
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/recent"
)

// keyEphemeral marks a NodePublishVolume of an inline ephemeral volume, which has no other calls
// but NodeUnpublishVolume.
const keyEphemeral = "csi.storage.k8s.io/ephemeral"

// lifecycle is what calls have shown of volumes and group snapshots.
type lifecycle struct {
	nodeID     string
	advertised advertised
	started    time.Time
	volumes    volumes
	// members maps a snapshot to its group.
	members *recent.Map[string, string]
}

// check compares a request with what the calls before it have shown.
func (l *lifecycle) check(request any) []finding {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		return l.checkCreate(request)
	case *csi.DeleteVolumeRequest:
		return l.checkDelete(request)
	case *csi.DeleteSnapshotRequest:
		if group := l.members.Get(request.GetSnapshotId()); group != "" {
			return []finding{{groupMemberDeleted, request.GetSnapshotId(), "it is a member of the group snapshot " + group}}
		}
	case *csi.ValidateVolumeCapabilitiesRequest:
		return l.checkContext(request)
	case *csi.ControllerPublishVolumeRequest:
		return l.checkContext(request)
	case *csi.ControllerUnpublishVolumeRequest:
		return l.checkDetach(request)
	case *csi.ControllerExpandVolumeRequest:
		return l.checkExpand(request)
	case *csi.NodeStageVolumeRequest:
		return l.checkStage(request)
	case *csi.NodeUnstageVolumeRequest:
		return l.checkUnstage(request)
	case *csi.NodePublishVolumeRequest:
		return l.checkPublish(request)
	case *csi.NodeExpandVolumeRequest:
		return l.checkNodeExpand(request)
	}

	return nil
}

func (l *lifecycle) checkCreate(request *csi.CreateVolumeRequest) []finding {
	known := l.volumes.byName[request.GetName()]
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

func (l *lifecycle) checkDelete(request *csi.DeleteVolumeRequest) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil || known.inUse() == "" {
		return nil
	}

	return []finding{{deleteWhileInUse, request.GetVolumeId(), known.inUse()}}
}

func (l *lifecycle) checkExpand(request *csi.ControllerExpandVolumeRequest) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil || l.advertised.Has(capability.Online) || known.inUse() == "" {
		return nil
	}

	return []finding{{expandWhileInUse, request.GetVolumeId(), known.inUse()}}
}

// withContext is a request with a volume_context.
type withContext interface {
	GetVolumeId() string
	GetVolumeContext() map[string]string
}

func (l *lifecycle) checkContext(request withContext) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil || !known.hasContext || sameContext(known.context, request.GetVolumeContext()) {
		return nil
	}

	return []finding{{volumeContextChanged, request.GetVolumeId(), "volume_context is not that of CreateVolume"}}
}

func (l *lifecycle) checkPublishContext(known *volume, given map[string]string) []finding {
	attached := known.attachments[l.nodeID]
	if !l.advertised.attaches() || attached.state != yes || sameContext(attached.context, given) {
		return nil
	}

	return []finding{{publishContextChanged, known.id, "publish_context is not that of ControllerPublishVolume for node " + l.nodeID}}
}

func (l *lifecycle) checkDetach(request *csi.ControllerUnpublishVolumeRequest) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil || request.GetNodeId() != "" && request.GetNodeId() != l.nodeID {
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

func (l *lifecycle) checkStage(request *csi.NodeStageVolumeRequest) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return nil
	}

	found := append(l.checkContext(request), l.checkPublishContext(known, request.GetPublishContext())...)

	if l.advertised.attaches() && known.attachedTo(l.nodeID) == no {
		found = append(found, finding{stageBeforeAttach, known.id, "it is not attached to node " + l.nodeID})
	}

	if known.staging == yes && known.stagingPath != request.GetStagingTargetPath() {
		found = append(found, finding{secondStagingPath, known.id, "it is staged at " + known.stagingPath})
	}

	return found
}

func (l *lifecycle) checkUnstage(request *csi.NodeUnstageVolumeRequest) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return nil
	}

	if target := known.anyTarget(); target != "" {
		return []finding{{unstageWhilePublished, known.id, "it is published at " + target}}
	}

	return nil
}

func (l *lifecycle) checkPublish(request *csi.NodePublishVolumeRequest) []finding {
	var found []finding

	if other := l.volumes.targets[request.GetTargetPath()]; other != nil && other.id != request.GetVolumeId() {
		found = append(found, finding{targetPathShared, request.GetVolumeId(), "volume " + other.id + " is published at its target_path"})
	}

	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil || request.GetVolumeContext()[keyEphemeral] == "true" {
		return found
	}

	found = slices.Concat(found, l.checkContext(request), l.checkPublishContext(known, request.GetPublishContext()))

	if l.advertised.attaches() && known.attachedTo(l.nodeID) == no {
		found = append(found, finding{publishBeforeAttach, known.id, "it is not attached to node " + l.nodeID})
	}

	if !l.advertised.Has(capability.StageUnstageVolume) {
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

func (l *lifecycle) checkNodeExpand(request *csi.NodeExpandVolumeRequest) []finding {
	known := l.volumes.byID[request.GetVolumeId()]
	if known == nil {
		return nil
	}

	var found []finding

	staged := l.advertised.Has(capability.StageUnstageVolume)
	if staged && known.staging == no || !staged && known.fresh && len(known.targets) == 0 {
		found = append(found, finding{expandBeforeStage, known.id, "it is not staged or published"})
	}

	wanted := request.GetCapacityRange().GetRequiredBytes()
	// A controller that does not expand leaves it to the node alone.
	byController := l.advertised.Has(capability.ControllerService) && l.advertised.HasController(capability.ExpandVolume)
	if known.capacity > 0 && wanted > known.capacity && byController {
		found = append(found, finding{
			expandWithoutController, known.id, fmt.Sprintf("%d bytes are required; the controller has returned %d", wanted, known.capacity),
		})
	}

	return found
}

package strict

import (
	"regexp"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
)

// advertised are the capabilities that the driver advertises.
type advertised struct{ capability.Set }

// attaches reports whether a controller attaches volumes.
func (a advertised) attaches() bool {
	return a.Has(capability.ControllerService) && a.Has(capability.PublishUnpublishVolume)
}

func (a advertised) checkCall(c *call) []finding {
	lacking, unserved := a.DisabledBy(c.method)
	if !unserved {
		return nil
	}

	return []finding{{callNotAdvertised, c.rpc(), string(lacking) + " is not advertised"}}
}

// checkFields finds fields that only a capability which is not advertised allows.
func (a advertised) checkFields(request any) []finding {
	var found []finding

	if with, ok := request.(interface{ GetVolumeCapability() *csi.VolumeCapability }); ok {
		found = a.checkCapability(request, with.GetVolumeCapability())
	}

	if with, ok := request.(interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}); ok {
		for _, each := range with.GetVolumeCapabilities() {
			found = append(found, a.checkCapability(request, each)...)
		}
	}

	if with, ok := request.(interface{ GetPublishContext() map[string]string }); ok && !a.attaches() && len(with.GetPublishContext()) > 0 {
		found = append(found, finding{contextNotAdvertised, objectOf(request), "publish_context is not empty"})
	}

	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		found = append(found, a.checkCreateFields(request)...)
	case *csi.CreateSnapshotRequest:
		if request.GetAccessibilityRequirements() != nil && !a.Has(capability.SnapshotConstraints) {
			found = append(found, finding{topologyNotAdvertised, request.GetName(), "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not advertised"})
		}
	case *csi.ControllerPublishVolumeRequest:
		if request.GetReadonly() && !a.Has(capability.PublishReadonly) {
			found = append(found, finding{readonlyNotAdvertised, request.GetVolumeId(), "readonly is true"})
		}
	}

	return found
}

func (a advertised) checkCreateFields(request *csi.CreateVolumeRequest) []finding {
	var found []finding

	if request.GetAccessibilityRequirements() != nil && !a.Has(capability.VolumeAccessibilityConstraints) {
		found = append(found, finding{topologyNotAdvertised, request.GetName(), "VOLUME_ACCESSIBILITY_CONSTRAINTS is not advertised"})
	}

	if len(request.GetMutableParameters()) > 0 && !a.Has(capability.ModifyVolume) {
		found = append(found, finding{mutableNotAdvertised, request.GetName(), "mutable_parameters is not empty"})
	}

	source := request.GetVolumeContentSource()
	if source.GetVolume() != nil && !a.Has(capability.CloneVolume) {
		found = append(found, finding{sourceNotAdvertised, request.GetName(), "the source is a volume; CLONE_VOLUME is not advertised"})
	}

	if source.GetSnapshot() != nil && !a.Has(capability.CreateDeleteSnapshot) {
		found = append(found, finding{
			sourceNotAdvertised, request.GetName(), "the source is a snapshot; CREATE_DELETE_SNAPSHOT is not advertised",
		})
	}

	return found
}

func (a advertised) checkCapability(request any, given *csi.VolumeCapability) []finding {
	var found []finding

	if given.GetMount().GetVolumeMountGroup() != "" && !a.Has(capability.VolumeMountGroup) {
		found = append(found, finding{groupIDNotAdvertised, objectOf(request), "volume_mount_group is set"})
	}

	switch mode := given.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		if !a.Has(capability.SingleNodeMultiWriter) {
			found = append(found, finding{modeNotAdvertised, objectOf(request), "the access mode is " + mode.String()})
		}
	default:
	}

	return found
}

// secretKey is the spec's rule for keys of secrets.
var secretKey = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// checkSecrets does not repeat a key: it may be a misplaced value.
func checkSecrets(c *call) []finding {
	with, ok := c.request.(interface{ GetSecrets() map[string]string })
	if !ok {
		return nil
	}

	for key := range with.GetSecrets() {
		if !secretKey.MatchString(key) {
			return []finding{{secretKeyMalformed, objectOf(c.request), "a key of secrets has another character, or none"}}
		}
	}

	return nil
}

// objectOf returns the id or name of the object that a request is about, "" for none.
func objectOf(request any) string {
	switch request := request.(type) {
	case interface{ GetVolumeId() string }:
		return request.GetVolumeId()
	case interface{ GetSnapshotId() string }:
		return request.GetSnapshotId()
	case interface{ GetGroupSnapshotId() string }:
		return request.GetGroupSnapshotId()
	case interface{ GetName() string }:
		return request.GetName()
	default:
		return ""
	}
}

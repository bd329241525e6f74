package conformance

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// leastPath is the length of paths that a plugin must accept at least.
const leastPath = 128

// uses returns what a request asks for:
//
//	F of at least 128 bytes     a path
//	SINGLE_NODE_WRITER given     one of the access modes of its capabilities
func uses(request proto.Message) []string {
	var found []string

	request.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if strings.HasSuffix(string(field.Name()), "_path") && len(value.String()) >= leastPath {
			found = append(found, string(field.Name())+" of at least 128 bytes")
		}

		return true
	})

	for _, each := range capabilitiesOf(request) {
		found = append(found, each.GetAccessMode().GetMode().String()+" given")
	}

	return found
}

// capabilitiesOf returns the capabilities that a request has for a volume.
func capabilitiesOf(request proto.Message) []*csi.VolumeCapability {
	switch asked := request.(type) {
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		return asked.GetVolumeCapabilities()
	case interface{ GetVolumeCapability() *csi.VolumeCapability }:
		if asked.GetVolumeCapability() != nil {
			return []*csi.VolumeCapability{asked.GetVolumeCapability()}
		}
	}

	return nil
}

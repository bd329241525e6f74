package harness

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// UnknownVolume is a valid id of no volume.
const UnknownVolume = "01890a5d-ac96-774b-bcce-b302099a8057"

// NodeSegment is the key of the topology segment that names a node.
const NodeSegment = "topology.touchstone.dev/node"

// UpTo is a capacity range without a lower bound.
func UpTo(limit int64) *csi.CapacityRange { return &csi.CapacityRange{LimitBytes: limit} }

// Between is a capacity range with both bounds.
func Between(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

// Topology requires that a volume is accessible in one segment.
func Topology(key, value string) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{key: value}}}}
}

// AskFor changes a request so that it has this capability alone.
func AskFor(capability *csi.VolumeCapability) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{capability} }
}

// WithParameter changes a request so that it has this parameter alone.
func WithParameter(key, value string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{key: value} }
}

// MountRequest asks for a volume of that size with the filesystem.
func MountRequest(fsType string, size int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		CapacityRange: RequiredBytes(size), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(Writer, fsType)},
	}
}

// Formatted asks for a volume with the filesystem, mounted with the flags.
func Formatted(fsType string, flags ...string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(Writer, fsType, flags...)},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: SizeFor(fsType)},
	}
}

// SizeFor is the size at which Kinds has volumes with the filesystem.
func SizeFor(fsType string) int64 {
	for _, k := range Kinds() {
		if k.Name == fsType {
			return k.Bytes
		}
	}

	return 64 * MiB
}

// KindRequests asks, in the access mode, for a volume of each kind that the driver recognizes
// again, or makes read-only, in its own way.
func KindRequests(mode csi.VolumeCapability_AccessMode_Mode) map[string]*csi.CreateVolumeRequest {
	ask := func(bytes int64, parameters map[string]string, capability *csi.VolumeCapability) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			CapacityRange: RequiredBytes(bytes), Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
		}
	}

	return map[string]*csi.CreateVolumeRequest{
		"ext4":      ask(64*MiB, nil, csiclient.MountCapability(mode, "ext4")),
		"xfs":       ask(300*MiB, nil, csiclient.MountCapability(mode, "xfs")),
		"btrfs":     ask(256*MiB, nil, csiclient.MountCapability(mode, "btrfs")),
		"block":     ask(64*MiB, nil, csiclient.BlockCapability(mode)),
		"directory": ask(64*MiB, DirectoryBacked(), csiclient.MountCapability(mode, "")),
	}
}

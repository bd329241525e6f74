package fuzz_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// What stands in a corpus for what differs from run to run. Each has the length
// of what it stands for, so that it can be replaced within encoded bytes.
const (
	idle      = "00000000-0000-7000-8000-000000000001"
	formatted = "00000000-0000-7000-8000-000000000002"
	device    = "00000000-0000-7000-8000-000000000003"
	directory = "00000000-0000-7000-8000-000000000004"
	stagedOne = "00000000-0000-7000-8000-000000000005"

	// Two snapshots of the formatted volume, one of the directory, and a group of
	// the formatted and the raw one.
	older     = "00000000-0000-7000-8000-00000000000a"
	newer     = "00000000-0000-7000-8000-00000000000b"
	files     = "00000000-0000-7000-8000-00000000000c"
	group     = "00000000-0000-7000-8000-00000000000d"
	memberOne = "00000000-0000-7000-8000-00000000000e"
	memberTwo = "00000000-0000-7000-8000-00000000000f"

	nobody = "0198c0de-0000-7000-8000-00000000dead"

	base    = "/tmp/touchstone-fuzz-0000000000"
	kubelet = base + "/kubelet"
	outside = base + "/outside"
)

// method is an RPC.
type method struct {
	name  string // /csi.v1.Node/NodeStageVolume
	input protoreflect.MessageType
	// streams says that it answers with any number of messages.
	streams bool
}

// methods are those of one service, or of all when none is named, in the order
// of the spec.
func methods(tb testing.TB, service string) []method {
	tb.Helper()

	var all []method

	services := (&csi.ProbeRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for _, name := range []protoreflect.Name{"Identity", "Controller", "GroupController", "SnapshotMetadata", "Node"} {
		if service != "" && service != string(name) {
			continue
		}

		described := services.ByName(name).Methods()
		for i := range described.Len() {
			each := described.Get(i)
			input, err := protoregistry.GlobalTypes.FindMessageByName(each.Input().FullName())
			require.NoError(tb, err)

			all = append(all, method{
				name: "/csi.v1." + string(name) + "/" + string(each.Name()), input: input, streams: each.IsStreamingServer(),
			})
		}
	}

	return all
}

// valid are requests of the method that the driver accepts, or the empty one
// for a method that it does not have.
func (m method) valid() []proto.Message {
	if known := examples()[m.name]; len(known) > 0 {
		return known
	}

	return []proto.Message{m.input.New().Interface()}
}

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

func staging(id string) string { return kubelet + "/staging/" + id }
func pod(id string) string     { return kubelet + "/pods/" + id + "/mount" }

func examples() map[string][]proto.Message {
	all := volumeExamples()

	for name, requests := range copyExamples() {
		all[name] = append(all[name], requests...)
	}

	return all
}

func volumeExamples() map[string][]proto.Message {
	ext4, block := csiclient.MountCapability(writer, "ext4", "noatime"), csiclient.BlockCapability(writer)
	attached := map[string]string{"slot": "7", "readonly": "false"}
	size := &csi.CapacityRange{RequiredBytes: 8 << 20, LimitBytes: 16 << 20}
	here := &csi.Topology{Segments: map[string]string{"topology.touchstone.dev/node": harness.NodeID}}

	return map[string][]proto.Message{
		"/csi.v1.Controller/CreateVolume": {
			&csi.CreateVolumeRequest{
				Name: "fuzz", CapacityRange: size, VolumeCapabilities: []*csi.VolumeCapability{ext4},
				Parameters: map[string]string{
					"pool": "default", "backing": "image", "provisioning": "thick", "csi.storage.k8s.io/fstype": "ext4",
					"blockSize": "4096", "mkfsOptions": "-L fuzz",
				},
				Secrets:                   map[string]string{"token": "secret"},
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{here}, Preferred: []*csi.Topology{here}},
			},
			&csi.CreateVolumeRequest{Name: "raw", CapacityRange: size, VolumeCapabilities: []*csi.VolumeCapability{block}},
		},
		"/csi.v1.Controller/DeleteVolume": {&csi.DeleteVolumeRequest{VolumeId: idle}},
		"/csi.v1.Controller/ControllerPublishVolume": {&csi.ControllerPublishVolumeRequest{
			VolumeId: idle, NodeId: harness.NodeID, VolumeCapability: ext4, VolumeContext: map[string]string{"backing": "image"},
		}},
		"/csi.v1.Controller/ControllerUnpublishVolume": {
			&csi.ControllerUnpublishVolumeRequest{VolumeId: idle, NodeId: harness.NodeID},
		},
		"/csi.v1.Controller/ValidateVolumeCapabilities": {&csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: idle, VolumeCapabilities: []*csi.VolumeCapability{ext4, block},
			VolumeContext: map[string]string{"pool": "default"}, Parameters: map[string]string{"backing": "image"},
		}},
		"/csi.v1.Controller/ListVolumes": {&csi.ListVolumesRequest{MaxEntries: 2, StartingToken: idle}},
		"/csi.v1.Controller/GetCapacity": {&csi.GetCapacityRequest{
			VolumeCapabilities: []*csi.VolumeCapability{ext4}, Parameters: map[string]string{"pool": "default"}, AccessibleTopology: here,
		}},
		"/csi.v1.Controller/ControllerGetVolume": {&csi.ControllerGetVolumeRequest{VolumeId: directory}},
		"/csi.v1.Controller/ControllerExpandVolume": {
			&csi.ControllerExpandVolumeRequest{VolumeId: device, CapacityRange: size, VolumeCapability: block},
			&csi.ControllerExpandVolumeRequest{VolumeId: idle, CapacityRange: size},
		},
		"/csi.v1.Node/NodeStageVolume": {
			&csi.NodeStageVolumeRequest{
				VolumeId: idle, StagingTargetPath: staging(idle), VolumeCapability: ext4, PublishContext: attached,
				VolumeContext: map[string]string{"pool": "default", "backing": "image", "mkfsOptions": "-L fuzz"},
				Secrets:       map[string]string{"token": "secret"},
			},
			&csi.NodeStageVolumeRequest{VolumeId: idle, StagingTargetPath: staging(idle), VolumeCapability: block},
			&csi.NodeStageVolumeRequest{
				VolumeId: directory, StagingTargetPath: staging(directory), VolumeCapability: csiclient.MountCapability(writer, ""),
				VolumeContext: map[string]string{"backing": "directory"},
			},
		},
		"/csi.v1.Node/NodeUnstageVolume": {
			&csi.NodeUnstageVolumeRequest{VolumeId: stagedOne, StagingTargetPath: staging(stagedOne)},
		},
		"/csi.v1.Node/NodePublishVolume": {
			&csi.NodePublishVolumeRequest{
				VolumeId: stagedOne, StagingTargetPath: staging(stagedOne), TargetPath: pod(stagedOne), VolumeCapability: ext4,
				PublishContext: attached, Readonly: true, VolumeContext: map[string]string{"pool": "default"},
			},
			&csi.NodePublishVolumeRequest{
				VolumeId: device, StagingTargetPath: staging(device), TargetPath: pod(device), VolumeCapability: block,
			},
		},
		"/csi.v1.Node/NodeUnpublishVolume": {
			&csi.NodeUnpublishVolumeRequest{VolumeId: formatted, TargetPath: pod(formatted)},
			&csi.NodeUnpublishVolumeRequest{VolumeId: device, TargetPath: pod(device)},
		},
		"/csi.v1.Node/NodeGetVolumeStats": {
			&csi.NodeGetVolumeStatsRequest{VolumeId: formatted, VolumePath: pod(formatted), StagingTargetPath: staging(formatted)},
			&csi.NodeGetVolumeStatsRequest{VolumeId: device, VolumePath: pod(device)},
		},
		"/csi.v1.Node/NodeExpandVolume": {
			&csi.NodeExpandVolumeRequest{
				VolumeId: device, VolumePath: pod(device), StagingTargetPath: staging(device), CapacityRange: size, VolumeCapability: block,
			},
			&csi.NodeExpandVolumeRequest{VolumeId: formatted, VolumePath: pod(formatted)},
		},
	}
}

package capability

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Name is a capability's name in the spec. A name that several services share is one capability.
type Name string

// The capabilities that the driver has.
const (
	ControllerService              Name = "CONTROLLER_SERVICE"
	VolumeAccessibilityConstraints Name = "VOLUME_ACCESSIBILITY_CONSTRAINTS"
	Online                         Name = "ONLINE"
	CreateDeleteVolume             Name = "CREATE_DELETE_VOLUME"
	PublishUnpublishVolume         Name = "PUBLISH_UNPUBLISH_VOLUME"
	PublishReadonly                Name = "PUBLISH_READONLY"
	ListVolumes                    Name = "LIST_VOLUMES"
	ListVolumesPublishedNodes      Name = "LIST_VOLUMES_PUBLISHED_NODES"
	GetVolume                      Name = "GET_VOLUME"
	GetCapacity                    Name = "GET_CAPACITY"
	ExpandVolume                   Name = "EXPAND_VOLUME"
	SingleNodeMultiWriter          Name = "SINGLE_NODE_MULTI_WRITER"
	ModifyVolume                   Name = "MODIFY_VOLUME"
	StageUnstageVolume             Name = "STAGE_UNSTAGE_VOLUME"
	GetVolumeStats                 Name = "GET_VOLUME_STATS"
	VolumeMountGroup               Name = "VOLUME_MOUNT_GROUP"
	CreateDeleteSnapshot           Name = "CREATE_DELETE_SNAPSHOT"
	ListSnapshots                  Name = "LIST_SNAPSHOTS"
	GetSnapshot                    Name = "GET_SNAPSHOT"
	CloneVolume                    Name = "CLONE_VOLUME"
	SnapshotConstraints            Name = "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"
	GroupControllerService         Name = "GROUP_CONTROLLER_SERVICE"
	VolumeGroupSnapshot            Name = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
	SnapshotMetadataService        Name = "SNAPSHOT_METADATA_SERVICE"
	VolumeCondition                Name = "VOLUME_CONDITION"
	GetVolumeHealth                Name = "GET_VOLUME_HEALTH"
	ListVolumeHealth               Name = "LIST_VOLUME_HEALTH"
	GetStorageHealth               Name = "GET_STORAGE_HEALTH"
)

// Topology is an alias of VolumeAccessibilityConstraints.
const Topology = "TOPOLOGY"

type (
	controllerRPC = csi.ControllerServiceCapability_RPC_Type
	groupRPC      = csi.GroupControllerServiceCapability_RPC_Type
	nodeRPC       = csi.NodeServiceCapability_RPC_Type
)

// The numbers of VOLUME_CONDITION until CSI v1.12. v1.13 reserves them; older COs still ask for
// them.
const (
	controllerVolumeCondition controllerRPC = 11
	nodeVolumeCondition       nodeRPC       = 4
)

// entry is one capability.
type entry struct {
	name Name
	// alias is a second name that Without accepts.
	alias string
	// controller, group and node are the service's own capability, UNKNOWN where it has none. Those
	// of the plugin are advertised by the Identity service.
	controller controllerRPC
	group      groupRPC
	node       nodeRPC
	// methods are the RPCs that only this capability allows a CO to call.
	methods []string
	// needs are the capabilities that the spec requires with it.
	needs []Name
}

// isOfBoth reports whether the controller and the node each have the capability.
func (e entry) isOfBoth() bool {
	return e.controller != csi.ControllerServiceCapability_RPC_UNKNOWN && e.node != csi.NodeServiceCapability_RPC_UNKNOWN
}

// entries lists the capabilities in the order of the spec.
var entries = []entry{
	{name: ControllerService, methods: methodsOf(&csi.Controller_ServiceDesc)},
	{name: VolumeAccessibilityConstraints, alias: Topology},
	{name: GroupControllerService, methods: methodsOf(&csi.GroupController_ServiceDesc)},
	{name: SnapshotMetadataService, methods: methodsOf(&csi.SnapshotMetadata_ServiceDesc)},
	{name: SnapshotConstraints, needs: []Name{VolumeAccessibilityConstraints}},
	{name: Online, needs: []Name{ExpandVolume}},
	{
		name: CreateDeleteVolume, controller: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		methods: []string{csi.Controller_CreateVolume_FullMethodName, csi.Controller_DeleteVolume_FullMethodName},
	},
	{
		name: PublishUnpublishVolume, controller: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		methods: []string{
			csi.Controller_ControllerPublishVolume_FullMethodName, csi.Controller_ControllerUnpublishVolume_FullMethodName,
		},
	},
	{
		name: ListVolumes, controller: csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		methods: []string{csi.Controller_ListVolumes_FullMethodName},
	},
	{
		name: GetCapacity, controller: csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		methods: []string{csi.Controller_GetCapacity_FullMethodName},
	},
	{
		name: CreateDeleteSnapshot, controller: csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		methods: []string{csi.Controller_CreateSnapshot_FullMethodName, csi.Controller_DeleteSnapshot_FullMethodName},
		// It says that volumes can be created from snapshots.
		needs: []Name{CreateDeleteVolume},
	},
	{
		name: ListSnapshots, controller: csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		methods: []string{csi.Controller_ListSnapshots_FullMethodName},
	},
	{
		name: CloneVolume, controller: csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		needs: []Name{CreateDeleteVolume},
	},
	{
		name: PublishReadonly, controller: csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
		needs: []Name{PublishUnpublishVolume},
	},
	{
		name:       ExpandVolume,
		controller: csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		node:       csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		methods:    []string{csi.Controller_ControllerExpandVolume_FullMethodName, csi.Node_NodeExpandVolume_FullMethodName},
	},
	{
		name: ListVolumesPublishedNodes, controller: csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		needs: []Name{PublishUnpublishVolume},
	},
	{
		name: GetVolume, controller: csi.ControllerServiceCapability_RPC_GET_VOLUME,
		methods: []string{csi.Controller_ControllerGetVolume_FullMethodName},
	},
	{
		name: GetSnapshot, controller: csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		methods: []string{csi.Controller_GetSnapshot_FullMethodName},
	},
	{
		name: VolumeGroupSnapshot, group: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		methods: []string{
			csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName,
			csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName,
			csi.GroupController_GetVolumeGroupSnapshot_FullMethodName,
		},
		needs: []Name{GroupControllerService},
	},
	{
		name: StageUnstageVolume, node: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		methods: []string{csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodeUnstageVolume_FullMethodName},
	},
	{
		name: GetVolumeStats, node: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		methods: []string{csi.Node_NodeGetVolumeStats_FullMethodName},
	},
	{
		name:       SingleNodeMultiWriter,
		controller: csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		node:       csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	},
	{
		name: ModifyVolume, controller: csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		methods: []string{csi.Controller_ControllerModifyVolume_FullMethodName},
	},
	{name: VolumeMountGroup, node: csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP},
	{name: VolumeCondition, controller: controllerVolumeCondition, node: nodeVolumeCondition},
	{
		name:       GetVolumeHealth,
		controller: csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		node:       csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		methods:    []string{csi.Controller_ControllerGetVolumeHealth_FullMethodName, csi.Node_NodeGetVolumeHealth_FullMethodName},
	},
	{
		name: ListVolumeHealth, controller: csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		methods: []string{csi.Controller_ControllerListVolumeHealth_FullMethodName},
		needs:   []Name{GetVolumeHealth},
	},
	{
		name: GetStorageHealth, node: csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
		methods: []string{csi.Node_NodeGetStorageHealth_FullMethodName},
	},
}

func methodsOf(service *grpc.ServiceDesc) []string {
	methods := make([]string, 0, len(service.Methods)+len(service.Streams))
	for _, method := range service.Methods {
		methods = append(methods, "/"+service.ServiceName+"/"+method.MethodName)
	}

	for _, stream := range service.Streams {
		methods = append(methods, "/"+service.ServiceName+"/"+stream.StreamName)
	}

	return methods
}

// reads are the RPCs of CSI that change nothing.
var reads = []string{
	csi.Identity_GetPluginInfo_FullMethodName, csi.Identity_GetPluginCapabilities_FullMethodName, csi.Identity_Probe_FullMethodName,
	csi.Controller_ValidateVolumeCapabilities_FullMethodName, csi.Controller_ListVolumes_FullMethodName,
	csi.Controller_GetCapacity_FullMethodName,
	csi.Controller_ControllerGetCapabilities_FullMethodName, csi.Controller_ListSnapshots_FullMethodName,
	csi.Controller_GetSnapshot_FullMethodName, csi.Controller_ControllerGetVolume_FullMethodName,
	csi.Controller_ControllerGetVolumeHealth_FullMethodName, csi.Controller_ControllerListVolumeHealth_FullMethodName,
	csi.GroupController_GroupControllerGetCapabilities_FullMethodName, csi.GroupController_GetVolumeGroupSnapshot_FullMethodName,
	csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName, csi.SnapshotMetadata_GetMetadataDelta_FullMethodName,
	csi.Node_NodeGetVolumeStats_FullMethodName, csi.Node_NodeGetCapabilities_FullMethodName, csi.Node_NodeGetInfo_FullMethodName,
	csi.Node_NodeGetVolumeHealth_FullMethodName, csi.Node_NodeGetStorageHealth_FullMethodName,
}

// Reads reports whether an RPC of CSI changes nothing.
func Reads(method string) bool { return slices.Contains(reads, method) }

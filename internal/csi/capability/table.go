package capability

import (
	"maps"
	"regexp"
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

// The numbers of VOLUME_CONDITION until CSI v1.12. v1.13 reserves them; older COs still ask for
// them.
const (
	controllerVolumeCondition = 11
	nodeVolumeCondition       = 4
)

// controllerTypes and nodeTypes are the numbers of the services' own capabilities, by name.
var (
	controllerTypes = withVolumeCondition(csi.ControllerServiceCapability_RPC_Type_value, controllerVolumeCondition)
	nodeTypes       = withVolumeCondition(csi.NodeServiceCapability_RPC_Type_value, nodeVolumeCondition)
)

func withVolumeCondition(types map[string]int32, number int32) map[string]int32 {
	types = maps.Clone(types)
	types[string(VolumeCondition)] = number

	return types
}

// entry is one capability. The services that advertise it are those whose enum in the spec has its name;
// ONLINE is a kind of expansion.
type entry struct {
	name Name
	// alias is a second name that Without accepts.
	alias string
	// methods are the RPCs that only this capability allows a CO to call.
	methods []string
	// needs are the capabilities that the spec requires with it.
	needs []Name
}

// isOfBoth reports whether the controller and the node each have the capability.
func (e entry) isOfBoth() bool {
	return controllerTypes[string(e.name)] != 0 && nodeTypes[string(e.name)] != 0
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
		name:    CreateDeleteVolume,
		methods: []string{csi.Controller_CreateVolume_FullMethodName, csi.Controller_DeleteVolume_FullMethodName},
	},
	{
		name: PublishUnpublishVolume,
		methods: []string{
			csi.Controller_ControllerPublishVolume_FullMethodName, csi.Controller_ControllerUnpublishVolume_FullMethodName,
		},
	},
	{name: ListVolumes, methods: []string{csi.Controller_ListVolumes_FullMethodName}},
	{name: GetCapacity, methods: []string{csi.Controller_GetCapacity_FullMethodName}},
	{
		name:    CreateDeleteSnapshot,
		methods: []string{csi.Controller_CreateSnapshot_FullMethodName, csi.Controller_DeleteSnapshot_FullMethodName},
		// It says that volumes can be created from snapshots.
		needs: []Name{CreateDeleteVolume},
	},
	{name: ListSnapshots, methods: []string{csi.Controller_ListSnapshots_FullMethodName}},
	{name: CloneVolume, needs: []Name{CreateDeleteVolume}},
	{name: PublishReadonly, needs: []Name{PublishUnpublishVolume}},
	{
		name:    ExpandVolume,
		methods: []string{csi.Controller_ControllerExpandVolume_FullMethodName, csi.Node_NodeExpandVolume_FullMethodName},
	},
	{name: ListVolumesPublishedNodes, needs: []Name{PublishUnpublishVolume}},
	{name: GetVolume, methods: []string{csi.Controller_ControllerGetVolume_FullMethodName}},
	{name: GetSnapshot, methods: []string{csi.Controller_GetSnapshot_FullMethodName}},
	{
		name: VolumeGroupSnapshot,
		methods: []string{
			csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName,
			csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName,
			csi.GroupController_GetVolumeGroupSnapshot_FullMethodName,
		},
		needs: []Name{GroupControllerService},
	},
	{
		name:    StageUnstageVolume,
		methods: []string{csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodeUnstageVolume_FullMethodName},
	},
	{name: GetVolumeStats, methods: []string{csi.Node_NodeGetVolumeStats_FullMethodName}},
	{name: SingleNodeMultiWriter},
	{name: ModifyVolume, methods: []string{csi.Controller_ControllerModifyVolume_FullMethodName}},
	{name: VolumeMountGroup},
	{name: VolumeCondition},
	{
		name:    GetVolumeHealth,
		methods: []string{csi.Controller_ControllerGetVolumeHealth_FullMethodName, csi.Node_NodeGetVolumeHealth_FullMethodName},
	},
	{
		name:    ListVolumeHealth,
		methods: []string{csi.Controller_ControllerListVolumeHealth_FullMethodName},
		needs:   []Name{GetVolumeHealth},
	},
	{name: GetStorageHealth, methods: []string{csi.Node_NodeGetStorageHealth_FullMethodName}},
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

// readName matches the RPCs of CSI whose name says that they change nothing.
var readName = regexp.MustCompile(`/(Probe|(Controller|GroupController|Node)?(Get|List|Validate)[A-Za-z]*)$`)

// reads are those RPCs: most calls look for their method in them, which costs less than to match it.
var reads = slices.DeleteFunc(slices.Concat(
	methodsOf(&csi.Identity_ServiceDesc), methodsOf(&csi.Controller_ServiceDesc), methodsOf(&csi.GroupController_ServiceDesc),
	methodsOf(&csi.SnapshotMetadata_ServiceDesc), methodsOf(&csi.Node_ServiceDesc),
), func(method string) bool { return !readName.MatchString(method) })

// Reads reports whether an RPC of CSI changes nothing.
func Reads(method string) bool { return slices.Contains(reads, method) }

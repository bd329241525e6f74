package strict

import "slices"

// Kind is a kind of violations.
type Kind struct {
	ID string `json:"id"`
	// What is what the CO did.
	What string `json:"what"`
	// Rows are the rows of docs/spec.md that it cites.
	Rows []string `json:"spec"`
	// Remedy is what the CO should do.
	Remedy string `json:"remedy"`
}

// The ids of the kinds.
const (
	stageBeforeAttach       = "stage-before-attach"
	publishBeforeAttach     = "publish-before-attach"
	publishBeforeStage      = "publish-before-stage"
	publishAfterUnstage     = "publish-after-unstage"
	expandBeforeStage       = "expand-before-stage"
	unstageWhilePublished   = "unstage-while-published"
	detachWhileStaged       = "detach-while-staged"
	detachWhilePublished    = "detach-while-published"
	deleteWhileInUse        = "delete-while-in-use"
	expandWhileInUse        = "expand-while-in-use"
	expandWithoutController = "expand-without-controller"
	volumeContextChanged    = "volume-context-changed"
	publishContextChanged   = "publish-context-changed"
	secondStagingPath       = "second-staging-path"
	targetPathShared        = "target-path-shared"
	createChanged           = "create-changed"
	groupMemberDeleted      = "group-member-deleted"
	callNotAdvertised       = "call-not-advertised"
	readonlyNotAdvertised   = "readonly-not-advertised"
	groupIDNotAdvertised    = "mount-group-not-advertised"
	modeNotAdvertised       = "access-mode-not-advertised"
	sourceNotAdvertised     = "content-source-not-advertised"
	topologyNotAdvertised   = "topology-not-advertised"
	mutableNotAdvertised    = "mutable-parameters-not-advertised"
	contextNotAdvertised    = "publish-context-not-advertised"
	secretKeyMalformed      = "secret-key-malformed" //nolint:gosec // the name of a violation
	tokenUnknown            = "token-unknown"
	tokenReused             = "token-reused"
	retryWithoutBackoff     = "retry-without-backoff"
	concurrentRequests      = "concurrent-requests"
)

// kinds has all kinds, in the order of docs/strict.md.
var kinds = []Kind{
	{
		stageBeforeAttach, "NodeStageVolume before ControllerPublishVolume for that node has succeeded",
		[]string{"NSV-3"},
		"call ControllerPublishVolume for the node, and NodeStageVolume after its success",
	},
	{
		publishBeforeAttach, "NodePublishVolume before ControllerPublishVolume for that node has succeeded",
		[]string{"NPV-2"},
		"call ControllerPublishVolume for the node, and NodePublishVolume after its success",
	},
	{
		publishBeforeStage, "NodePublishVolume before NodeStageVolume has succeeded",
		[]string{"NSV-4", "RPCIRC-2"},
		"call NodeStageVolume, and NodePublishVolume after its success",
	},
	{
		publishAfterUnstage, "NodePublishVolume after NodeUnstageVolume, without NodeStageVolume in between",
		[]string{"RPCIRC-2", "RPCIRC-4"},
		"count the uses of the volume on the node, and stage it again before it is published again",
	},
	{
		expandBeforeStage, "NodeExpandVolume of a volume that is neither staged nor published",
		[]string{"NEV-3", "NEV-4"},
		"stage the volume first; publish it first where the node does not stage",
	},
	{
		unstageWhilePublished, "NodeUnstageVolume while the volume is published at a target path",
		[]string{"NUV-5", "RPCIRC-3"},
		"call NodeUnpublishVolume for each target path, and NodeUnstageVolume after their success",
	},
	{
		detachWhileStaged, "ControllerUnpublishVolume while the volume is staged on that node",
		[]string{"NUV-4", "CUV-2"},
		"call NodeUnstageVolume, and ControllerUnpublishVolume after its success",
	},
	{
		detachWhilePublished, "ControllerUnpublishVolume while the volume is published at a target path of that node",
		[]string{"CUV-2"},
		"call NodeUnpublishVolume for each target path, and ControllerUnpublishVolume after their success",
	},
	{
		deleteWhileInUse, "DeleteVolume while the volume is attached, staged or published",
		[]string{"DVE-4", "DVE-3"},
		"unpublish, unstage and detach the volume on each node first",
	},
	{
		expandWhileInUse, "ControllerExpandVolume of a volume in use, of a plugin that only expands OFFLINE",
		[]string{"CEV-4", "GPC-9"},
		"unpublish, unstage and detach the volume, expand it, and then publish it again",
	},
	{
		expandWithoutController, "NodeExpandVolume to a size that neither CreateVolume nor ControllerExpandVolume has returned",
		[]string{"CEV-3", "NEV-5"},
		"call ControllerExpandVolume, and NodeExpandVolume after its success, if it requires that",
	},
	{
		volumeContextChanged, "a volume_context other than that of CreateVolume",
		[]string{"CV-51", "CPV-14", "VVC-6", "NSV-18", "NPV-23"},
		"keep the volume_context of CreateVolume's response, and pass it unchanged",
	},
	{
		publishContextChanged, "a publish_context other than that of ControllerPublishVolume for the node",
		[]string{"CPV-18", "NSV-8", "NPV-7"},
		"keep the publish_context of ControllerPublishVolume's last response, and pass it unchanged",
	},
	{
		secondStagingPath, "a second staging_target_path for one volume on one node",
		[]string{"NSV-10"},
		"use one staging path for all pods of the node, or unstage the first one",
	},
	{
		targetPathShared, "a target_path at which another volume is published",
		[]string{"NPV-12"},
		"use a target path of its own for each volume and workload",
	},
	{
		createChanged, "CreateVolume with the name of a volume of that CO, but other parameters, capabilities, size or source",
		[]string{"CVE-6", "CVE-3"},
		"repeat a CreateVolume unchanged; use another name for another volume",
	},
	{
		groupMemberDeleted, "DeleteSnapshot of a member of a group snapshot",
		[]string{"DS-4", "TP-20"},
		"delete the group by DeleteVolumeGroupSnapshot, which deletes its members",
	},
	{
		callNotAdvertised, "a call of a capability that is not advertised",
		[]string{"ES-10", "GPC-3"},
		"call only what GetPluginCapabilities and the services' capabilities have",
	},
	{
		readonlyNotAdvertised, "readonly of ControllerPublishVolume without PUBLISH_READONLY",
		[]string{"CPV-12"},
		"leave readonly false",
	},
	{
		groupIDNotAdvertised, "volume_mount_group without VOLUME_MOUNT_GROUP",
		[]string{"CV-33"},
		"leave volume_mount_group empty, and change the group of the files after the volume is published",
	},
	{
		modeNotAdvertised, "an access mode of SINGLE_NODE_MULTI_WRITER without that capability",
		[]string{"CGC-5", "NGC-3"},
		"use SINGLE_NODE_WRITER",
	},
	{
		sourceNotAdvertised, "volume_content_source without CLONE_VOLUME or CREATE_DELETE_SNAPSHOT",
		[]string{"CVE-4"},
		"create the volume without a source",
	},
	{
		topologyNotAdvertised, "accessibility_requirements without VOLUME_ or SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
		[]string{"CV-21", "CV-22", "TP-8"},
		"leave accessibility_requirements empty",
	},
	{
		mutableNotAdvertised, "mutable_parameters without MODIFY_VOLUME",
		[]string{"CV-24"},
		"leave mutable_parameters empty",
	},
	{
		contextNotAdvertised, "publish_context without PUBLISH_UNPUBLISH_VOLUME",
		[]string{"NSV-8", "NPV-7"},
		"leave publish_context empty",
	},
	{
		secretKeyMalformed, "a key of secrets with characters other than letters, digits, '-', '_' and '.'",
		[]string{"SR-1"},
		"rename the key",
	},
	{
		tokenUnknown, "a starting_token that no response has had as next_token",
		[]string{"LVE-4", "LSE-4", "CLVHE-4"},
		"begin the list again without a token",
	},
	{
		tokenReused, "a starting_token more often than responses had it as next_token, although each was answered",
		[]string{"LV-3", "LS-4"},
		"begin the list again without a token: pages of two lists do not fit each other",
	},
	{
		retryWithoutBackoff, "a failing request, repeated without backoff",
		[]string{"ES-3", "CVE-3", "NSVE-3", "NPVE-3"},
		"retry with exponential backoff, and not at all where the code requires a change of the request",
	},
	{
		concurrentRequests, "conflicting requests for one volume at once",
		[]string{"ES-9"},
		"send the second request after the response to the first, or after the first has been given up",
	},
}

// Kinds returns all kinds, in the order of docs/strict.md.
func Kinds() []Kind { return slices.Clone(kinds) }

func kindOf(id string) Kind {
	return kinds[slices.IndexFunc(kinds, func(k Kind) bool { return k.ID == id })]
}

package conformance

import (
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// World is what is known of a driver from the calls that succeeded: what it advertises, which ids it
// has returned, and with which requests something was made. It names the conditions of later requests.
type World struct {
	mutex sync.Mutex
	// ids are those that a response had or, of nodes, that the driver has; deleted those whose
	// deletion succeeded.
	ids, deleted map[string]bool
	// made are the requests that succeeded, by RPC and key.
	made map[string]answered
	// running counts calls by the object that they name.
	running map[string]int
	// snapshots are those that a response had, as the last one had them.
	snapshots map[string]*csi.Snapshot
	// contexts are those of volumes.
	contexts map[string]map[string]string
	// advertised are the capabilities by the service that has them; those of a service that was not
	// asked are not known.
	advertised map[string][]capability
	// members are the ids of snapshots of groups.
	members map[string]bool
	// mode is the driver's, "" of one that is not known.
	mode string
	// starting is set until it is ready.
	starting bool
}

// answered is a request that succeeded.
type answered struct{ request, response proto.Message }

// NewWorld returns a world in which nothing has been called.
func NewWorld() *World {
	w := &World{
		ids: map[string]bool{}, deleted: map[string]bool{}, made: map[string]answered{}, running: map[string]int{}, snapshots: map[string]*csi.Snapshot{},
		contexts: map[string]map[string]string{}, members: map[string]bool{},
	}
	w.Started("")

	return w
}

// Started begins with a driver that was started, again or for the first time: what it advertises
// may differ. mode is its --mode.
func (w *World) Started(mode string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	w.mode, w.advertised, w.starting = mode, map[string][]capability{}, mode != ""
}

// keys are the fields by which an RPC finds what an earlier request of it has made.
var keys = map[string][]protoreflect.Name{
	"CreateVolume":               {"name"},
	"CreateSnapshot":             {"name"},
	"CreateVolumeGroupSnapshot":  {"name"},
	"DeleteVolume":               {"volume_id"},
	"DeleteSnapshot":             {"snapshot_id"},
	"DeleteVolumeGroupSnapshot":  {"group_snapshot_id"},
	"ControllerPublishVolume":    {"volume_id", "node_id"},
	"ControllerUnpublishVolume":  {"volume_id", "node_id"},
	"ControllerExpandVolume":     {"volume_id"},
	"ControllerModifyVolume":     {"volume_id"},
	"ValidateVolumeCapabilities": {"volume_id"},
	"NodeStageVolume":            {"volume_id", "staging_target_path"},
	"NodeUnstageVolume":          {"volume_id", "staging_target_path"},
	"NodePublishVolume":          {"volume_id", "target_path"},
	"NodeUnpublishVolume":        {"volume_id", "target_path"},
	"NodeExpandVolume":           {"volume_id", "volume_path"},
}

// undoes are the RPCs after which another one's request is a new one.
var undoes = map[string]string{
	"ControllerUnpublishVolume": "ControllerPublishVolume", "NodeUnstageVolume": "NodeStageVolume", "NodeUnpublishVolume": "NodePublishVolume",
	"ControllerPublishVolume": "ControllerUnpublishVolume", "NodeStageVolume": "NodeUnstageVolume", "NodePublishVolume": "NodeUnpublishVolume",
}

func key(rpc string, request proto.Message) string {
	if keys[rpc] == nil {
		return ""
	}

	parts := []string{rpc}
	for _, name := range keys[rpc] {
		parts = append(parts, value(request, name))
	}

	return strings.Join(parts, "\x00")
}

// value returns the string of a field, "" without such a field.
func value(message proto.Message, name protoreflect.Name) string {
	field := message.ProtoReflect().Descriptor().Fields().ByName(name)
	if field == nil || field.Kind() != protoreflect.StringKind || field.IsList() || field.IsMap() {
		return ""
	}

	return message.ProtoReflect().Get(field).String()
}

// state returns what the driver and the object of a request are:
//
//	with C, without C            what the plugin and the RPC's service advertise, if it was asked
//	controller plugin, node plugin
//	while it starts              Probe has not said that it is ready
//	while another runs           a call for the same object
//	snapshot_id of a member of a group
//	published to a node          ControllerPublishVolume has succeeded, and nothing has undone it
//	published to another node, not published to the node
//	staged, not staged           NodeStageVolume, for a call to a node
//	published at a path, published at another path, published at no path
func (w *World) state(method string, request proto.Message) []string {
	found := w.capabilities(method)
	add := func(condition string, met bool) {
		if met {
			found = append(found, condition)
		}
	}

	add(w.mode+" plugin", w.mode == "controller" || w.mode == "node")
	add("while it starts", w.starting)
	add("while another runs", w.running[object(method, request)] > 0)
	add("snapshot_id of a member of a group", w.members[value(request, "snapshot_id")])

	id, node, target := value(request, "volume_id"), value(request, "node_id"), value(request, "target_path")
	if id == "" {
		return found
	}

	nodes, paths := w.nodes(id), w.values("NodePublishVolume", id, "target_path")
	add("published to a node", len(nodes) > 0)
	add("not published to the node", node != "" && !slices.Contains(nodes, node))
	add("published to another node", node != "" && len(nodes) > 0 && !slices.Contains(nodes, node))

	if strings.HasPrefix(method, "/csi.v1.Node/") {
		staged := len(w.values("NodeStageVolume", id, "staging_target_path")) > 0
		add("staged", staged)
		add("not staged", !staged)
		add("published at a path", len(paths) > 0)
		add("published at no path", len(paths) == 0)
		add("published at another path", target != "" && len(paths) > 0 && !slices.Contains(paths, target))
	}

	return found
}

// nodes returns the nodes to which a volume is published, in order.
func (w *World) nodes(volumeID string) []string {
	return w.values("ControllerPublishVolume", volumeID, "node_id")
}

// values returns a field of the requests of an RPC for an object that have succeeded, in order.
func (w *World) values(rpc, id string, name protoreflect.Name) []string {
	var found []string

	prefix := rpc + "\x00" + id + "\x00"
	for key, each := range w.made {
		if strings.HasPrefix(key, prefix) {
			found = append(found, value(each.request, name))
		}
	}

	slices.Sort(found)

	return found
}

// object returns what a call is for, "" if for nothing.
func object(method string, request proto.Message) string {
	for _, name := range []protoreflect.Name{"volume_id", "snapshot_id", "group_snapshot_id"} {
		if id := value(request, name); id != "" {
			return id
		}
	}

	if name := value(request, "name"); name != "" {
		return nameOf(method) + " " + name
	}

	return ""
}

// begin has later calls know that one runs until the function that it returns is called.
func (w *World) begin(method string, request proto.Message) (end func()) {
	name := object(method, request)
	if name == "" {
		return func() {}
	}

	w.mutex.Lock()
	defer w.mutex.Unlock()

	w.running[name]++

	return func() {
		w.mutex.Lock()
		defer w.mutex.Unlock()

		w.running[name]--
	}
}

// learn remembers a call that succeeded.
func (w *World) learn(rpc string, request, response proto.Message) {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	if probed, ok := response.(*csi.ProbeResponse); ok && probed.GetReady().GetValue() {
		w.starting = false
	}

	w.learnIDs(response.ProtoReflect())
	w.learnCapabilities(rpc, response)
	w.learnSnapshots(response)

	for _, each := range volumesIn(response.ProtoReflect()) {
		w.contexts[each.GetVolumeId()] = each.GetVolumeContext()
	}

	key := key(rpc, request)
	if _, known := w.made[key]; key != "" && (!known || !isFirst(rpc)) {
		w.made[key] = answered{proto.Clone(request), proto.Clone(response)}
	}

	if undone := undoes[rpc]; undone != "" {
		w.undo(undone, request)
	}

	if made, ok := strings.CutPrefix(rpc, "Delete"); ok {
		w.delete("Create"+made, value(request, keys[rpc][0]))
	}
}

// isFirst reports whether the first request of an RPC decides, and later ones have to be compatible.
func isFirst(rpc string) bool { return undoes[rpc] != "" || strings.HasPrefix(rpc, "Create") }

// undo forgets the requests of an RPC that have the same key. No node is each node.
func (w *World) undo(rpc string, request proto.Message) {
	for key, each := range w.made {
		same := strings.HasPrefix(key, rpc+"\x00")

		for _, name := range keys[rpc] {
			a, b := value(each.request, name), value(request, name)
			same = same && (a == b || name == "node_id" && (a == "" || b == ""))
		}

		if same {
			delete(w.made, key)
		}
	}
}

// delete notes that the object is gone that an RPC has made, and that its name is free.
func (w *World) delete(rpc, id string) {
	w.deleted[id] = w.ids[id]

	for key, each := range w.made {
		if strings.HasPrefix(key, rpc+"\x00") && returned(each.response.ProtoReflect(), id) {
			delete(w.made, key)
		}
	}
}

// returned reports whether a response is about the object of that id.
func returned(response protoreflect.Message, id string) bool {
	found := false

	within(response, func(_ string, object protoreflect.Message) {
		for _, name := range []protoreflect.Name{"volume_id", "snapshot_id", "group_snapshot_id"} {
			found = found || value(object.Interface(), name) == id
		}
	})

	return found
}

func (w *World) learnIDs(message protoreflect.Message) {
	if snapshot, ok := message.Interface().(*csi.Snapshot); ok && snapshot.GetGroupSnapshotId() != "" {
		w.members[snapshot.GetSnapshotId()] = true
	}

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
		case field.Kind() == protoreflect.MessageKind && field.IsList():
			for i := range value.List().Len() {
				w.learnIDs(value.List().Get(i).Message())
			}
		case field.Kind() == protoreflect.MessageKind:
			w.learnIDs(value.Message())
		case field.Kind() == protoreflect.StringKind && !field.IsList() && strings.HasSuffix(string(field.Name()), "_id"):
			w.ids[value.String()] = true
		}

		return true
	})
}

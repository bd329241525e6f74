package conformance

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// World is what is known of a driver from the calls that succeeded: which ids it has returned, and
// with which requests something was made. It names the conditions of later requests.
type World struct {
	mutex sync.Mutex
	// ids are those that a response had or, of nodes, that the driver has; deleted those whose
	// deletion succeeded.
	ids, deleted map[string]bool
	// made are the requests that succeeded, by RPC and key.
	made map[string]proto.Message
}

// NewWorld returns a world in which nothing has been called.
func NewWorld() *World {
	return &World{ids: map[string]bool{}, deleted: map[string]bool{}, made: map[string]proto.Message{}}
}

// Plain is the condition of a request without another one.
const Plain = "plain"

// keys are the fields by which an RPC finds what an earlier request of it has made.
var keys = map[string][]protoreflect.Name{
	"CreateVolume":              {"name"},
	"CreateSnapshot":            {"name"},
	"CreateVolumeGroupSnapshot": {"name"},
	"DeleteVolume":              {"volume_id"},
	"DeleteSnapshot":            {"snapshot_id"},
	"DeleteVolumeGroupSnapshot": {"group_snapshot_id"},
	"ControllerPublishVolume":   {"volume_id", "node_id"},
	"ControllerUnpublishVolume": {"volume_id", "node_id"},
	"ControllerExpandVolume":    {"volume_id"},
	"ControllerModifyVolume":    {"volume_id"},
	"NodeStageVolume":           {"volume_id", "staging_target_path"},
	"NodeUnstageVolume":         {"volume_id", "staging_target_path"},
	"NodePublishVolume":         {"volume_id", "target_path"},
	"NodeUnpublishVolume":       {"volume_id", "target_path"},
	"NodeExpandVolume":          {"volume_id", "volume_path"},
}

// undoes are the RPCs after which another one's request is a new one.
var undoes = map[string]string{
	"ControllerUnpublishVolume": "ControllerPublishVolume", "NodeUnstageVolume": "NodeStageVolume", "NodeUnpublishVolume": "NodePublishVolume",
	"ControllerPublishVolume": "ControllerUnpublishVolume", "NodeStageVolume": "NodeUnstageVolume", "NodePublishVolume": "NodeUnpublishVolume",
}

// conditions returns what a request is:
//
//	F missing    a field that is REQUIRED has no value
//	F given      an optional field has one
//	F unknown    the driver has never returned this id, or its object was deleted
//	repeated     the same request has succeeded, and nothing has undone it
//	other F      such a request with the same key and another value of F has succeeded
//	plain        nothing is missing, unknown, repeated or other
func (w *World) conditions(rpc string, request proto.Message) []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	found := append(missing("", request.ProtoReflect()), w.unknown(request.ProtoReflect())...)
	found = append(found, w.repeated(rpc, request)...)

	if len(found) == 0 {
		found = append(found, Plain)
	}

	return append(found, given(rpc, request.ProtoReflect())...)
}

// missing returns the REQUIRED fields without a value, those of messages in it included. A bool or
// a number has none to miss.
func missing(path string, message protoreflect.Message) []string {
	var found []string

	for _, name := range Required[message.Descriptor().FullName()] {
		field := message.Descriptor().Fields().ByName(name)
		if field == nil || field.Kind() == protoreflect.BoolKind || field.Kind() == protoreflect.Int64Kind {
			continue
		}

		if !message.Has(field) {
			found = append(found, path+string(name)+" missing")
		}
	}

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				found = append(found, missing(path+string(field.Name())+".", value.List().Get(i).Message())...)
			}
		default:
			found = append(found, missing(path+string(field.Name())+".", value.Message())...)
		}

		return true
	})

	return found
}

// given returns the fields with a value that are not REQUIRED, those of messages in them included.
func given(rpc string, message protoreflect.Message) []string {
	var found []string

	keyed := map[protoreflect.Name]bool{}
	for _, name := range append(Required[message.Descriptor().FullName()], keys[rpc]...) {
		keyed[name] = true
	}

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if !keyed[field.Name()] {
			found = append(found, string(field.Name())+" given")
		}

		if field.Kind() == protoreflect.MessageKind && !field.IsMap() && !field.IsList() {
			for _, inner := range given("", value.Message()) {
				found = append(found, string(field.Name())+"."+inner)
			}
		}

		return true
	})

	return found
}

// unknown returns the fields whose id the driver does not have.
func (w *World) unknown(message protoreflect.Message) []string {
	var found []string

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := string(field.Name())

		switch {
		case field.Kind() == protoreflect.MessageKind && !field.IsMap() && !field.IsList():
			for _, inner := range w.unknown(value.Message()) {
				found = append(found, name+"."+inner)
			}
		case field.Kind() != protoreflect.StringKind || field.IsMap():
		case field.IsList() && strings.HasSuffix(name, "_ids"):
			for i := range value.List().Len() {
				found = append(found, w.unknownID(name, value.List().Get(i).String())...)
			}
		case strings.HasSuffix(name, "_id") && name != "node_id":
			found = append(found, w.unknownID(name, value.String())...)
		}

		return true
	})

	return found
}

func (w *World) unknownID(name, id string) []string {
	switch {
	case id == "":
		return nil
	case w.deleted[id]:
		return []string{name + " deleted"}
	case !w.ids[id]:
		return []string{name + " unknown"}
	default:
		return nil
	}
}

// repeated compares a request with the one that has made the same.
func (w *World) repeated(rpc string, request proto.Message) []string {
	before := w.made[key(rpc, request)]
	if before == nil {
		return nil
	}

	if proto.Equal(before, request) {
		return []string{"repeated"}
	}

	var found []string

	a, b := before.ProtoReflect(), request.ProtoReflect()
	for i := range a.Descriptor().Fields().Len() {
		if field := a.Descriptor().Fields().Get(i); !a.Get(field).Equal(b.Get(field)) {
			found = append(found, "other "+string(field.Name()))
		}
	}

	return found
}

func key(rpc string, request proto.Message) string {
	if keys[rpc] == nil {
		return ""
	}

	text := rpc
	for _, name := range keys[rpc] {
		field := request.ProtoReflect().Descriptor().Fields().ByName(name)
		text += "\x00" + request.ProtoReflect().Get(field).String()
	}

	return text
}

// learn remembers a call that succeeded.
func (w *World) learn(rpc string, request, response proto.Message) {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	w.learnIDs(response.ProtoReflect())

	if key := key(rpc, request); key != "" {
		w.made[key] = proto.Clone(request)
	}

	if undone := undoes[rpc]; undone != "" {
		delete(w.made, undone+strings.TrimPrefix(key(rpc, request), rpc))
	}

	for _, name := range []protoreflect.Name{"volume_id", "snapshot_id", "group_snapshot_id"} {
		if strings.HasPrefix(rpc, "Delete") && len(keys[rpc]) > 0 && keys[rpc][0] == name {
			id := request.ProtoReflect().Get(request.ProtoReflect().Descriptor().Fields().ByName(name)).String()
			w.deleted[id] = w.ids[id]
		}
	}
}

func (w *World) learnIDs(message protoreflect.Message) {
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

// properties returns what a response shows beyond its code: which fields it has, and how it
// compares with the request.
func properties(request any, response proto.Message) []string {
	found := has("has ", response.ProtoReflect())

	if asked, ok := request.(proto.Message); ok {
		found = append(found, echoes(asked.ProtoReflect(), response.ProtoReflect())...)
	}

	return found
}

func has(path string, message protoreflect.Message) []string {
	var found []string

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := path + string(field.Name())
		found = append(found, name)

		switch {
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				found = append(found, has(name+".", value.List().Get(i).Message())...)
			}
		default:
			found = append(found, has(name+".", value.Message())...)
		}

		return true
	})

	return found
}

// echoes returns the fields of a request that the response has with the same value, at whatever
// depth: "echoes volume_content_source".
func echoes(request, response protoreflect.Message) []string {
	var found []string

	request.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if echoed(response, field, value) {
			found = append(found, "echoes "+string(field.Name()))
		}

		return true
	})

	return found
}

func echoed(message protoreflect.Message, wanted protoreflect.FieldDescriptor, value protoreflect.Value) bool {
	same := false

	message.Range(func(field protoreflect.FieldDescriptor, other protoreflect.Value) bool {
		switch {
		case field.Kind() == wanted.Kind() && field.IsList() == wanted.IsList() && field.IsMap() == wanted.IsMap() && isSameMessage(field, wanted) &&
			other.Equal(value):
			same = true
		case field.Kind() == protoreflect.MessageKind && !field.IsList() && !field.IsMap():
			same = same || echoed(other.Message(), wanted, value)
		}

		return !same
	})

	return same
}

func isSameMessage(a, b protoreflect.FieldDescriptor) bool {
	return a.Kind() != protoreflect.MessageKind || a.Message().FullName() == b.Message().FullName()
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) }

// Where is a condition that a function of the request decides.
func Where[R proto.Message](name string, holds func(request R) bool) Condition {
	return Condition{Name: name, Holds: func(request proto.Message) error {
		asked, ok := request.(R)

		switch {
		case !ok:
			return fmt.Errorf("the request is %T", request)
		case !holds(asked):
			return errors.New("the request is another one")
		default:
			return nil
		}
	}}
}

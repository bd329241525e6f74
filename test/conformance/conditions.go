package conformance

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Plain is the condition of a request without another one.
const Plain = "plain"

// conditions returns what a request is:
//
//	F missing       a field that is REQUIRED, or one of a oneof, has no value; of several: F and G missing
//	F empty         a message of which one field at least must be given has none
//	F negative      a number is
//	F over its limit
//	F relative      a path is not absolute
//	F unknown       the driver has never returned this id
//	F deleted       the object of this id was deleted
//	repeated        the same request has succeeded, and nothing has undone it
//	other F         such a request with the same key and another value of F has succeeded; of several: other F and G
//	plain           none of these
//	F given         an optional field has a value
//
// and what it asks for, and what its driver and its volume are: see uses and World.state.
func (w *World) conditions(method string, request proto.Message) []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	rpc, message := nameOf(method), request.ProtoReflect()

	found := joined("", missing("", message), " missing")
	found = append(found, invalid("", message)...)
	found = append(found, w.unknown(message)...)
	found = append(found, w.repeated(rpc, request)...)

	if len(found) == 0 {
		found = append(found, Plain)
	}

	found = append(found, given(rpc, message)...)

	found = append(found, uses(request)...)

	return append(found, w.state(method, request)...)
}

// nameOf returns the RPC's name of a method, without its service.
func nameOf(method string) string { return method[strings.LastIndex(method, "/")+1:] }

// joined makes one condition of several faults of a kind: a code is no answer to one of them alone.
func joined(before string, names []string, after string) []string {
	if len(names) == 0 {
		return nil
	}

	return []string{before + strings.Join(names, " and ") + after}
}

// missing returns the REQUIRED fields without a value and the oneofs without a field, those of
// messages in it included. A bool or a number has none to miss.
func missing(path string, message protoreflect.Message) []string {
	var found []string

	for _, name := range Required[message.Descriptor().FullName()] {
		field := message.Descriptor().Fields().ByName(name)
		if field == nil || field.Kind() == protoreflect.BoolKind || field.Kind() == protoreflect.Int64Kind {
			continue
		}

		if !message.Has(field) {
			found = append(found, path+string(name))
		}
	}

	for i := range message.Descriptor().Oneofs().Len() {
		if each := message.Descriptor().Oneofs().Get(i); !each.IsSynthetic() && message.WhichOneof(each) == nil {
			found = append(found, path+string(each.Name()))
		}
	}

	within(message, func(name string, inner protoreflect.Message) {
		for _, each := range missing(path+name+".", inner) {
			if !slices.Contains(found, each) {
				found = append(found, each)
			}
		}
	})

	return found
}

// within calls do for each message in a message.
func within(message protoreflect.Message, do func(name string, inner protoreflect.Message)) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				do(string(field.Name()), value.List().Get(i).Message())
			}
		default:
			do(string(field.Name()), value.Message())
		}

		return true
	})
}

// atLeastOne are the messages of which one field at least must be given.
var atLeastOne = map[protoreflect.FullName]bool{"csi.v1.CapacityRange": true, "csi.v1.TopologyRequirement": true}

// invalid returns the fields with a value that they cannot have.
func invalid(path string, message protoreflect.Message) []string {
	var found []string

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := path + string(field.Name())

		switch number := field.Kind() == protoreflect.Int64Kind || field.Kind() == protoreflect.Int32Kind; {
		case number && !field.IsList() && value.Int() < 0:
			found = append(found, name+" negative")
		case longest(field, value) > limitOf(field):
			found = append(found, name+" over its limit")
		case isPath(field) && !filepath.IsAbs(value.String()):
			found = append(found, name+" relative")
		}

		return true
	})

	within(message, func(name string, inner protoreflect.Message) {
		empty := true

		inner.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
			empty = false

			return false
		})

		if empty && atLeastOne[inner.Descriptor().FullName()] {
			found = append(found, path+name+" empty")
		}

		found = append(found, invalid(path+name+".", inner)...)
	})

	return found
}

// limitOf returns the most bytes that a field may have (CSI v1.13, Size Limits). A path may be as
// long as the operating system allows.
func limitOf(field protoreflect.FieldDescriptor) int {
	switch {
	case isPath(field):
		return 4096
	case field.Name() == "node_id":
		return maxNodeID
	case field.IsMap() || field.Name() == "mount_flags":
		return maxMap
	default:
		return maxString
	}
}

func isPath(field protoreflect.FieldDescriptor) bool {
	return field.Kind() == protoreflect.StringKind && !field.IsList() && strings.HasSuffix(string(field.Name()), "_path")
}

// longest returns how many bytes a field has: of a list of strings those of the longest, of a map
// and of mount_flags those of all.
func longest(field protoreflect.FieldDescriptor, value protoreflect.Value) int {
	bytes := 0

	switch {
	case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
		value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			bytes += len(key.String()) + len(value.String())

			return true
		})
	case field.Kind() != protoreflect.StringKind || field.IsMap():
	case field.IsList():
		for i := range value.List().Len() {
			if text := value.List().Get(i).String(); field.Name() == "mount_flags" {
				bytes += len(text)
			} else {
				bytes = max(bytes, len(text))
			}
		}
	default:
		bytes = len(value.String())
	}

	return bytes
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
	before, ok := w.made[key(rpc, request)]

	switch {
	case !ok:
		return nil
	case proto.Equal(before.request, request):
		return []string{"repeated"}
	}

	var others []string

	a, b := before.request.ProtoReflect(), request.ProtoReflect()
	for i := range a.Descriptor().Fields().Len() {
		if field := a.Descriptor().Fields().Get(i); !a.Get(field).Equal(b.Get(field)) {
			others = append(others, string(field.Name()))
		}
	}

	return joined("other ", others, "")
}

// Is is a condition that the request has by itself (see conditions).
func Is(name string) Condition { return Condition{Name: name} }

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

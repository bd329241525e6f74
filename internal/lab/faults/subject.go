package faults

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/pkg/operation"
)

// Kinds of objects.
const (
	kindVolume   = "volume"
	kindSnapshot = "snapshot"
	kindGroup    = "group"
)

// subjectPaths are the fields of requests that name objects of each kind.
var subjectPaths = map[string][]string{
	kindVolume:   {"volume_id", "source_volume_id", "source_volume_ids[*]", "volume_content_source.volume.volume_id"},
	kindSnapshot: {"snapshot_id", "snapshot_ids[*]", "volume_content_source.snapshot.snapshot_id", "base_snapshot_id", "target_snapshot_id"},
	kindGroup:    {"group_snapshot_id"},
}

// namedBy are the calls whose request has the name of an object of a kind.
var namedBy = map[string]string{
	"CreateVolume": kindVolume, "CreateSnapshot": kindSnapshot, "CreateVolumeGroupSnapshot": kindGroup,
}

// subjects returns the ids of a request's objects of a kind, and the name of the one that it creates.
func subjects(method protoreflect.MethodDescriptor, request proto.Message, kind string) []string {
	var found []string

	message := request.ProtoReflect()

	if namedBy[string(method.Name())] == kind {
		found = append(found, message.Get(message.Descriptor().Fields().ByName("name")).String())
	}

	for _, text := range subjectPaths[kind] {
		path, err := parsePath(text)
		if _, ok := path.resolve(message.Descriptor()); !ok || err != nil {
			continue
		}

		for _, each := range path.slots(message, false) {
			if each.has {
				found = append(found, each.value.String())
			}
		}
	}

	return found
}

// callOf describes a call.
func (i *Injector) callOf(method protoreflect.MethodDescriptor, request proto.Message) occurrence {
	var object string

	for _, kind := range []string{kindVolume, kindSnapshot, kindGroup} {
		if found := subjects(method, request, kind); object == "" && len(found) > 0 {
			object = found[0]
		}
	}

	return occurrence{
		method: string(method.Name()), object: object,
		matches: func(a *active) bool {
			match := &a.Match

			return a.isOfCalls() && match.Method.Match(string(method.Name())) && a.appliesTo(method, a.parts) == nil &&
				i.matchesObjects(match, func(kind string) []string { return subjects(method, request, kind) }) &&
				i.matchesNode(match, method, request) && holdsAll(match.Where, request)
		},
	}
}

// pointOf describes an operation at a point.
func (i *Injector) pointOf(point operation.Point, objects []string) occurrence {
	object := ""
	if len(objects) > 0 {
		object = objects[0]
	}

	return occurrence{
		method: string(point), object: object,
		matches: func(a *active) bool {
			return a.Match.At == Point(point) && (a.Match.Node.IsZero() || a.Match.Node.Match(i.config.NodeID)) &&
				i.matchesObjects(&a.Match, func(string) []string { return objects })
		},
	}
}

func holdsAll(where []Expression, request proto.Message) bool {
	return !slices.ContainsFunc(where, func(e Expression) bool { return !e.Holds(request.ProtoReflect()) })
}

// matchesObjects compares the ids, and then, as it takes longer, the names of the objects.
func (i *Injector) matchesObjects(match *Match, of func(kind string) []string) bool {
	for kind, glob := range map[string]Glob{kindVolume: match.Volume, kindSnapshot: match.Snapshot, kindGroup: match.Group} {
		if glob.IsZero() {
			continue
		}

		if ids := of(kind); !glob.matchAny(ids) && !i.matchesNames(glob, kind, ids) {
			return false
		}
	}

	return true
}

func (i *Injector) matchesNames(glob Glob, kind string, ids []string) bool {
	list := i.config.Names
	if list == nil || len(ids) == 0 {
		return false
	}

	return slices.ContainsFunc(list(kind), func(object Object) bool { return slices.Contains(ids, object.ID) && glob.Match(object.Name) })
}

func (i *Injector) matchesNode(match *Match, method protoreflect.MethodDescriptor, request proto.Message) bool {
	if match.Node.IsZero() {
		return true
	}

	if isOfNode(method) {
		return match.Node.Match(i.config.NodeID)
	}

	field := fieldOf(request, "node_id")

	return field != nil && field.Kind() == protoreflect.StringKind && match.Node.Match(request.ProtoReflect().Get(field).String())
}

package faults

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// Kinds of objects.
const (
	kindVolume   = "volume"
	kindSnapshot = "snapshot"
	kindGroup    = "group"
)

// idFields are the fields of requests with ids of objects of each kind.
var idFields = map[string][]protoreflect.Name{
	kindVolume:   {"volume_id", "source_volume_id", "source_volume_ids"},
	kindSnapshot: {"snapshot_id", "snapshot_ids", "base_snapshot_id", "target_snapshot_id"},
	kindGroup:    {"group_snapshot_id"},
}

// namedBy are the calls whose request has the name of an object of a kind.
var namedBy = map[string]string{
	"CreateVolume": kindVolume, "CreateSnapshot": kindSnapshot, "CreateVolumeGroupSnapshot": kindGroup,
}

// subjects returns the ids of a request's objects of a kind, and the name of the one that it creates.
func subjects(method protoreflect.MethodDescriptor, request proto.Message, kind string) []string {
	var found []string

	if namedBy[string(method.Name())] == kind {
		found = rpc.Texts(request, "name")
	}

	for _, name := range idFields[kind] {
		found = append(found, rpc.Texts(request, name)...)
	}

	if creates, ok := request.(*csi.CreateVolumeRequest); ok && kind != kindGroup {
		source := creates.GetVolumeContentSource()
		found = slices.Concat(found, rpc.Texts(source.GetVolume(), idFields[kind][0]), rpc.Texts(source.GetSnapshot(), idFields[kind][0]))
	}

	return found
}

// matcher compares calls, and operations at points, with rules.
type matcher struct {
	nodeID string
	names  func(kind string) []Object
	log    *slog.Logger
}

// callOf describes a call.
func (m *matcher) callOf(ctx context.Context, method protoreflect.MethodDescriptor, request proto.Message) occurrence {
	var object string

	for _, kind := range []string{kindVolume, kindSnapshot, kindGroup} {
		if found := subjects(method, request, kind); object == "" && len(found) > 0 {
			object = found[0]
		}
	}

	input := sync.OnceValue(func() any { return jq.FromMessage(request) })

	return occurrence{
		method: string(method.Name()), object: object,
		matches: func(a *active) bool {
			match := &a.Match

			return a.methods[string(method.Name())] &&
				m.matchesObjects(match, func(kind string) []string { return subjects(method, request, kind) }) &&
				m.matchesNode(match, method, request) && (match.Where.IsZero() || m.holds(ctx, a, input()))
		},
	}
}

// pointOf describes an operation at a point.
func (m *matcher) pointOf(point operation.Point, objects []string) occurrence {
	object := ""
	if len(objects) > 0 {
		object = objects[0]
	}

	return occurrence{
		method: string(point), object: object,
		matches: func(a *active) bool {
			return a.Match.At == Point(point) && a.Match.Node.Match(m.nodeID) &&
				m.matchesObjects(&a.Match, func(string) []string { return objects })
		},
	}
}

// holds evaluates the predicate of a rule. A call for which that fails does not match, and the rule shows why.
func (m *matcher) holds(ctx context.Context, a *active, request any) bool {
	holds, err := a.Match.Where.Holds(ctx, request, nil, nil, nil)
	if err == nil {
		return holds
	}

	problem := err.Error()
	if before := a.problem.Swap(&problem); before == nil || *before != problem {
		m.log.WarnContext(ctx, "cannot evaluate where of a fault rule: the call does not match", "rule", a.Name, "error", err)
	}

	return false
}

// matchesObjects compares the ids, and then, as it takes longer, the names of the objects.
func (m *matcher) matchesObjects(match *Match, of func(kind string) []string) bool {
	for kind, patterns := range map[string]Patterns{kindVolume: match.Volume, kindSnapshot: match.Snapshot, kindGroup: match.Group} {
		if len(patterns) == 0 {
			continue
		}

		if ids := of(kind); !patterns.matchAny(ids) && !m.matchesNames(patterns, kind, ids) {
			return false
		}
	}

	return true
}

func (m *matcher) matchesNames(patterns Patterns, kind string, ids []string) bool {
	if m.names == nil || len(ids) == 0 {
		return false
	}

	return slices.ContainsFunc(m.names(kind), func(o Object) bool { return slices.Contains(ids, o.ID) && patterns.Match(o.Name) })
}

// nodeField is the field of requests with the id of a node.
const nodeField = "node_id"

func (m *matcher) matchesNode(match *Match, method protoreflect.MethodDescriptor, request proto.Message) bool {
	if len(match.Node) == 0 {
		return true
	}

	if isOfNode(method) {
		return match.Node.Match(m.nodeID)
	}

	// An empty node_id, such as that of ControllerUnpublishVolume for all nodes, matches "*".
	return method.Input().Fields().ByName(nodeField) != nil && match.Node.Match(strings.Join(rpc.Texts(request, nodeField), ""))
}

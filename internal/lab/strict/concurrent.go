package strict

import (
	"context"
	"path"
	"reflect"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// running is a call that has not ended.
type running struct {
	ctx     context.Context //nolint:containedctx // it is a state: whether the caller still waits
	method  string
	request proto.Message
	digest  fingerprint
}

// runningCalls are those that have not ended, by their key.
type runningCalls struct {
	nodeID string
	byKey  map[string][]*running
}

// runningKey returns the key under which calls may conflict, "" for calls that read.
func runningKey(request any) string {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		return "name " + request.GetName()
	case *csi.DeleteVolumeRequest, *csi.ControllerPublishVolumeRequest, *csi.ControllerUnpublishVolumeRequest,
		*csi.ControllerExpandVolumeRequest, *csi.ControllerModifyVolumeRequest,
		*csi.NodeStageVolumeRequest, *csi.NodeUnstageVolumeRequest, *csi.NodePublishVolumeRequest, *csi.NodeUnpublishVolumeRequest,
		*csi.NodeExpandVolumeRequest:
		return "id " + objectOf(request)
	default:
		return ""
	}
}

func (r *runningCalls) begin(c *call) (key string) {
	if key = runningKey(c.request); key != "" {
		r.byKey[key] = append(r.byKey[key], &running{c.ctx, c.method, c.request, c.digest})
	}

	return key
}

func (r *runningCalls) end(c *call, key string) {
	left := slices.DeleteFunc(r.byKey[key], func(each *running) bool { return each.request == c.request })
	if len(left) == 0 {
		delete(r.byKey, key)
	} else {
		r.byKey[key] = left
	}
}

// check compares the request with those that run. One whose caller has given up is none: the
// spec lets a CO go on after a timeout. An identical one is a repetition.
func (r *runningCalls) check(c *call) []finding {
	for _, other := range r.byKey[runningKey(c.request)] {
		if other.ctx.Err() == nil && other.digest != c.digest && r.conflict(c.request, other.request) {
			return []finding{{concurrentRequests, objectOf(c.request), path.Base(other.method) + " runs"}}
		}
	}

	return nil
}

// conflict reports whether the effects of two different requests exclude each other. Requests for
// several nodes or target paths do not: the components of a CO that attach, and those that mount
// for several pods, send them at once.
func (r *runningCalls) conflict(a, b any) bool {
	if rank(a) > rank(b) {
		a, b = b, a
	}

	switch a := a.(type) {
	case *csi.CreateVolumeRequest, *csi.DeleteVolumeRequest:
		return true
	case *csi.ControllerUnpublishVolumeRequest:
		return r.conflictsWithDetach(a.GetNodeId(), b)
	case *csi.ControllerPublishVolumeRequest:
		other, ok := b.(*csi.ControllerPublishVolumeRequest)

		return ok && other.GetNodeId() == a.GetNodeId()
	case *csi.NodeUnstageVolumeRequest:
		return isNodeRequest(b)
	case *csi.NodeStageVolumeRequest:
		_, ok := b.(*csi.NodeStageVolumeRequest)

		return ok
	case *csi.NodeUnpublishVolumeRequest, *csi.NodePublishVolumeRequest:
		return targetOf(b) == targetOf(a)
	default: // expansion and modification: of different values, at once
		return rank(a) == rank(b)
	}
}

func (r *runningCalls) conflictsWithDetach(node string, b any) bool {
	switch b := b.(type) {
	case *csi.ControllerUnpublishVolumeRequest:
		return node == "" || b.GetNodeId() == ""
	case *csi.ControllerPublishVolumeRequest:
		return node == "" || b.GetNodeId() == node
	default:
		return isNodeRequest(b) && (node == "" || node == r.nodeID)
	}
}

// rank orders requests, so that conflict compares each pair in one order only.
func rank(request any) int {
	order := []any{
		(*csi.CreateVolumeRequest)(nil), (*csi.DeleteVolumeRequest)(nil),
		(*csi.ControllerUnpublishVolumeRequest)(nil), (*csi.ControllerPublishVolumeRequest)(nil),
		(*csi.NodeUnstageVolumeRequest)(nil), (*csi.NodeStageVolumeRequest)(nil),
		(*csi.NodeUnpublishVolumeRequest)(nil), (*csi.NodePublishVolumeRequest)(nil),
		(*csi.ControllerExpandVolumeRequest)(nil), (*csi.ControllerModifyVolumeRequest)(nil), (*csi.NodeExpandVolumeRequest)(nil),
	}

	return slices.IndexFunc(order, func(each any) bool { return reflect.TypeOf(each) == reflect.TypeOf(request) })
}

func isNodeRequest(request any) bool {
	switch request.(type) {
	case *csi.NodeStageVolumeRequest, *csi.NodeUnstageVolumeRequest, *csi.NodePublishVolumeRequest, *csi.NodeUnpublishVolumeRequest,
		*csi.NodeExpandVolumeRequest:
		return true
	default:
		return false
	}
}

func targetOf(request any) string {
	with, ok := request.(interface{ GetTargetPath() string })
	if !ok {
		return ""
	}

	return with.GetTargetPath()
}

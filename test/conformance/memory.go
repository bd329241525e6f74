package conformance

import (
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// remembered compares a response with earlier ones of the driver, and returns the rules that it keeps
// and those that it breaks:
//
//	as before                        the response that such a request had before
//	a new id                         the id of a created object was in no response before
//	the same volume_context          a volume has the one that it had before
//	every volume                     a list has all volumes that were created and not deleted
//	next_token where volumes are left
//	published_node_ids as published  a volume's nodes are those of ControllerPublishVolume
//
// and what is remembered of snapshots.
func (w *World) remembered(rpc string, request, response proto.Message) (kept, broken []string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	if before, ok := w.made[key(rpc, request)]; ok && proto.Equal(before.response, response) {
		kept = append(kept, "as before")
	}

	if id := createdID(response); id != "" && !w.ids[id] {
		kept = append(kept, "a new id")
	}

	volumes := volumesIn(response.ProtoReflect())

	for _, each := range volumes {
		switch before, known := w.contexts[each.GetVolumeId()]; {
		case known && maps.Equal(before, each.GetVolumeContext()):
			kept = append(kept, "the same volume_context")
		case known:
			broken = append(broken, "the same volume_context")
		}
	}

	if page, ok := response.(*csi.ListVolumesResponse); ok && value(request, "starting_token") == "" {
		switch all := w.volumes(); {
		case page.GetNextToken() == "" && len(all) > 0 && slices.Equal(all, idsOf(volumes)):
			kept = append(kept, "every volume")
		case page.GetNextToken() != "" && len(all) > len(volumes):
			kept = append(kept, "next_token where volumes are left")
		}
	}

	keptOfSnapshots, brokenOfSnapshots := w.rememberedSnapshots(request, response)
	kept, broken = append(kept, keptOfSnapshots...), append(broken, brokenOfSnapshots...)

	if w.publishedAsKnown(response) {
		kept = append(kept, "published_node_ids as published")
	}

	return kept, broken
}

// createdID returns the id of the object that a response of creation has.
func createdID(response proto.Message) string {
	switch response := response.(type) {
	case *csi.CreateVolumeResponse:
		return response.GetVolume().GetVolumeId()
	case *csi.CreateSnapshotResponse:
		return response.GetSnapshot().GetSnapshotId()
	case *csi.CreateVolumeGroupSnapshotResponse:
		return response.GetGroupSnapshot().GetGroupSnapshotId()
	default:
		return ""
	}
}

func volumesIn(message protoreflect.Message) []*csi.Volume {
	var found []*csi.Volume

	within(message, func(_ string, inner protoreflect.Message) {
		if volume, ok := inner.Interface().(*csi.Volume); ok {
			found = append(found, volume)
		} else {
			found = append(found, volumesIn(inner)...)
		}
	})

	return found
}

// volumes returns the ids of the volumes that were created and not deleted, in order.
func (w *World) volumes() []string {
	var ids []string

	for key, each := range w.made {
		if strings.HasPrefix(key, "CreateVolume\x00") {
			ids = append(ids, createdID(each.response))
		}
	}

	slices.Sort(ids)

	return ids
}

func idsOf(volumes []*csi.Volume) []string {
	ids := make([]string, 0, len(volumes))
	for _, each := range volumes {
		ids = append(ids, each.GetVolumeId())
	}

	slices.Sort(ids)

	return ids
}

// publishedAsKnown reports whether a response has the nodes of each of its volumes, and there are some.
func (w *World) publishedAsKnown(response proto.Message) bool {
	got := map[string][]string{}

	switch response := response.(type) {
	case *csi.ListVolumesResponse:
		for _, each := range response.GetEntries() {
			got[each.GetVolume().GetVolumeId()] = each.GetStatus().GetPublishedNodeIds()
		}
	case *csi.ControllerGetVolumeResponse:
		got[response.GetVolume().GetVolumeId()] = response.GetStatus().GetPublishedNodeIds()
	}

	some := false

	for id, nodes := range got {
		if !slices.Equal(slices.Sorted(slices.Values(nodes)), w.nodes(id)) {
			return false
		}

		some = some || len(nodes) > 0
	}

	return some
}

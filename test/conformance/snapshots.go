package conformance

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// snapshotRules are those for responses with snapshots or with blocks of them.
var snapshotRules = []rule{
	{"group_snapshot_id of every member", func(_, response proto.Message) (bool, bool) {
		group := groupOf(response)

		return len(group.GetSnapshots()) > 0, !slices.ContainsFunc(group.GetSnapshots(), func(member *csi.Snapshot) bool {
			return member.GetGroupSnapshotId() != group.GetGroupSnapshotId()
		})
	}},
	{"not ready_to_use with a member that is not", func(_, response proto.Message) (bool, bool) {
		group := groupOf(response)
		waits := slices.ContainsFunc(group.GetSnapshots(), func(member *csi.Snapshot) bool { return !member.GetReadyToUse() })

		return waits, !group.GetReadyToUse()
	}},
	{"size_bytes of every block positive", func(_, response proto.Message) (bool, bool) {
		found := blocksOf(response)

		return len(found) > 0, !slices.ContainsFunc(found, func(b *csi.BlockMetadata) bool { return b.GetSizeBytes() <= 0 })
	}},
	{"blocks increase without overlap", func(_, response proto.Message) (bool, bool) {
		found := blocksOf(response)

		return len(found) > 1, increase(found)
	}},
	{"every block ends after starting_offset", func(request, response proto.Message) (bool, bool) {
		asked, ok := request.(interface{ GetStartingOffset() int64 })
		found := blocksOf(response)

		return ok && asked.GetStartingOffset() > 0 && len(found) > 0, !slices.ContainsFunc(found, func(b *csi.BlockMetadata) bool {
			return endOf(b) <= asked.GetStartingOffset()
		})
	}},
	{"blocks at most max_results", func(request, response proto.Message) (bool, bool) {
		asked, ok := request.(interface{ GetMaxResults() int32 })
		found := blocksOf(response)

		// A message that is shorter shows nothing.
		return ok && asked.GetMaxResults() > 0 && len(found) >= int(asked.GetMaxResults()), ok && len(found) <= int(asked.GetMaxResults())
	}},
	{"blocks of one size", func(_, response proto.Message) (bool, bool) {
		kind, ok := response.(interface {
			GetBlockMetadataType() csi.BlockMetadataType
		})
		found := blocksOf(response)

		fixed := ok && kind.GetBlockMetadataType() == csi.BlockMetadataType_FIXED_LENGTH

		return fixed && len(found) > 1, !slices.ContainsFunc(found, func(b *csi.BlockMetadata) bool { return b.GetSizeBytes() != found[0].GetSizeBytes() })
	}},
}

func groupOf(response proto.Message) *csi.VolumeGroupSnapshot {
	if answered, ok := response.(interface {
		GetGroupSnapshot() *csi.VolumeGroupSnapshot
	}); ok {
		return answered.GetGroupSnapshot()
	}

	return nil
}

func blocksOf(response proto.Message) []*csi.BlockMetadata {
	if answered, ok := response.(interface {
		GetBlockMetadata() []*csi.BlockMetadata
	}); ok {
		return answered.GetBlockMetadata()
	}

	return nil
}

// increase reports whether each block begins where the one before it ends, or behind that.
func increase(blocks []*csi.BlockMetadata) bool {
	for i := 1; i < len(blocks); i++ {
		if blocks[i].GetByteOffset() < endOf(blocks[i-1]) {
			return false
		}
	}

	return true
}

func endOf(block *csi.BlockMetadata) int64 { return block.GetByteOffset() + block.GetSizeBytes() }

// follows compares the blocks of a stream's message with those of the messages before it.
func (c *call) follows(response proto.Message) (kept, broken []string) {
	found := blocksOf(response)
	if len(found) == 0 {
		return nil, nil
	}

	const name = "blocks increase across messages"

	if c.block != nil && endOf(c.block) <= found[0].GetByteOffset() {
		kept = []string{name}
	} else if c.block != nil {
		broken = []string{name}
	}

	c.block = found[len(found)-1]

	return kept, broken
}

// learnSnapshots remembers the snapshots of a response.
func (w *World) learnSnapshots(response proto.Message) {
	for _, each := range snapshotsIn(response.ProtoReflect()) {
		w.snapshots[each.GetSnapshotId()] = each
	}
}

func snapshotsIn(message protoreflect.Message) []*csi.Snapshot {
	var found []*csi.Snapshot

	within(message, func(_ string, inner protoreflect.Message) {
		if snapshot, ok := inner.Interface().(*csi.Snapshot); ok {
			found = append(found, snapshot)
		} else {
			found = append(found, snapshotsIn(inner)...)
		}
	})

	return found
}

// rememberedSnapshots is remembered of snapshots:
//
//	every snapshot                        a list has all that were created and not deleted
//	capacity_bytes at least size_bytes    a volume is as large as the snapshot that it is made of
func (w *World) rememberedSnapshots(request, response proto.Message) (kept, broken []string) {
	if w.hasEverySnapshot(request, response) {
		kept = append(kept, "every snapshot")
	}

	asked, ok := request.(*csi.CreateVolumeRequest)
	source := w.snapshots[asked.GetVolumeContentSource().GetSnapshot().GetSnapshotId()]

	const size = "capacity_bytes at least size_bytes"

	switch {
	case !ok || source == nil:
	case capacityOf(response) >= source.GetSizeBytes():
		kept = append(kept, size)
	default:
		broken = append(broken, size)
	}

	return kept, broken
}

// hasEverySnapshot reports whether a list of all that is one page has all snapshots.
func (w *World) hasEverySnapshot(request, response proto.Message) bool {
	listed, ok := response.(*csi.ListSnapshotsResponse)
	if !ok || listed.GetNextToken() != "" || !proto.Equal(request, &csi.ListSnapshotsRequest{MaxEntries: request.(*csi.ListSnapshotsRequest).GetMaxEntries()}) {
		return false
	}

	var want, got []string

	for key, each := range w.made {
		if strings.HasPrefix(key, "CreateSnapshot\x00") || strings.HasPrefix(key, "CreateVolumeGroupSnapshot\x00") {
			for _, made := range snapshotsIn(each.response.ProtoReflect()) {
				want = append(want, made.GetSnapshotId())
			}
		}
	}

	for _, each := range listed.GetEntries() {
		got = append(got, each.GetSnapshot().GetSnapshotId())
	}

	slices.Sort(want)
	slices.Sort(got)

	return len(want) > 0 && slices.Equal(want, got)
}

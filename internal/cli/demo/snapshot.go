package demo

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

// snapshot is a snapshot of the demo, alone or in a group. Its methods are steps.
type snapshot struct {
	demo   *demo
	name   string
	source *volume
	id     string
	// written is the checksum of its data.
	written string
}

// newVolume returns a volume that is restored from the snapshot, larger than the source was.
func (s *snapshot) newVolume(kind kind) *volume {
	v := s.demo.newVolume(kind)
	v.copyFrom = func() (id string) {
		v.request.VolumeContentSource, v.written, v.total = csiclient.FromSnapshot(s.id), s.written, s.source.total
		return s.id
	}
	return v
}

func (s *snapshot) create(ctx context.Context) (string, error) {
	answer, err := s.demo.CreateSnapshotAndWait(ctx, &csi.CreateSnapshotRequest{Name: s.name, SourceVolumeId: s.source.VolumeID})
	err = cmp.Or(err, s.accept(answer.GetSnapshot(), ""))
	return "name=" + s.name + " volume=" + endOfID(s.source.VolumeID) + " → " + s.id, err
}

// accept takes the id of an answer, which has the data that the source has now.
func (s *snapshot) accept(answer *csi.Snapshot, group string) error {
	s.id, s.written = answer.GetSnapshotId(), s.source.written
	return cmp.Or(
		check(answer.GetSourceVolumeId() == s.source.VolumeID, "a snapshot of volume %q", answer.GetSourceVolumeId()),
		check(answer.GetGroupSnapshotId() == group, "snapshot %s is in group %q", s.id, answer.GetGroupSnapshotId()),
		check(answer.GetReadyToUse(), "snapshot %s is not ready to use", s.id),
		check(answer.GetSizeBytes() >= s.source.capacity, "a size of %s", formatBytes(answer.GetSizeBytes())),
	)
}

func (s *snapshot) getAllocatedBlocks(ctx context.Context) (string, error) {
	text, allocated, _, err := sumBlocks(s.demo.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: s.id}))
	return short(s.id) + " (its source is gone) → " + text,
		cmp.Or(err, check(allocated >= payloadBytes, "%s allocated, less than was written", formatBytes(allocated)))
}

func (s *snapshot) getBlocksChangedUntil(target *snapshot) action {
	return func(ctx context.Context) (string, error) {
		text, changed, capacity, err := sumBlocks(s.demo.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: s.id, TargetSnapshotId: target.id,
		}))
		return "base=" + endOfID(s.id) + " target=" + endOfID(target.id) + " → " + text, cmp.Or(err,
			check(changed >= payloadBytes, "%s changed, less than was overwritten", formatBytes(changed)),
			check(changed <= capacity/2, "%s changed, of which little was overwritten", formatBytes(changed)))
	}
}

// sumBlocks adds up the ranges in a stream. It returns the text for them, their bytes, and the
// bytes of the volume.
func sumBlocks(stream iter.Seq2[csiclient.BlockMetadata, error]) (text string, sum, capacity int64, err error) {
	ranges := 0
	for message, err := range stream {
		if err != nil {
			return "", 0, 0, err
		}

		capacity = message.GetVolumeCapacityBytes()
		for _, block := range message.GetBlockMetadata() {
			ranges++
			sum += block.GetSizeBytes()
		}
	}
	return fmt.Sprintf("%s of %s, in %d ranges", formatBytes(sum), formatBytes(capacity), ranges), sum, capacity, nil
}

func (s *snapshot) delete(ctx context.Context) (string, error) {
	_, err := s.demo.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.id})
	return short(s.id) + " → gone", err
}

// groupSnapshot is a group snapshot of the demo. Its methods are steps.
type groupSnapshot struct {
	demo    *demo
	name    string
	id      string
	members [2]*snapshot
}

func (g *groupSnapshot) create(ctx context.Context) (string, error) {
	sources := []string{g.members[0].source.VolumeID, g.members[1].source.VolumeID}
	answer, err := g.demo.CreateGroupSnapshotAndWait(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: g.name, SourceVolumeIds: sources})
	found := answer.GetGroupSnapshot().GetSnapshots()
	if err := cmp.Or(err, check(len(found) == len(sources), "%d snapshots", len(found))); err != nil {
		return "name=" + g.name, err
	}

	g.id = answer.GetGroupSnapshot().GetGroupSnapshotId()
	if found[0].GetSourceVolumeId() != sources[0] {
		slices.Reverse(found) // Their order is the driver's choice.
	}
	skew := found[1].GetCreationTime().AsTime().Sub(found[0].GetCreationTime().AsTime()).Abs()
	return fmt.Sprintf("name=%s volumes=%s,%s → 2 snapshots within %s", g.name, endOfID(sources[0]), endOfID(sources[1]),
			skew.Round(time.Microsecond)),
		cmp.Or(g.members[0].accept(found[0], g.id), g.members[1].accept(found[1], g.id))
}

func (g *groupSnapshot) memberIDs() []string { return []string{g.members[0].id, g.members[1].id} }

func (g *groupSnapshot) get(ctx context.Context) (string, error) {
	answer, err := g.demo.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
	})
	found := len(answer.GetGroupSnapshot().GetSnapshots())
	return short(g.id) + " → both snapshots", cmp.Or(err, check(found == len(g.members), "%d snapshots", found))
}

func (g *groupSnapshot) delete(ctx context.Context) (string, error) {
	_, err := g.demo.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
	})
	return short(g.id) + " → gone, with its snapshots", err
}

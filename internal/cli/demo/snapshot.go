package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

// snapshot is a snapshot of the demo, alone or in a group. Its methods are steps.
type snapshot struct {
	demo     *demo
	name     string
	source   *volume
	id       string
	checksum string
}

// copyTo makes v a volume that begins as a copy of the snapshot and is larger than its source.
func (s *snapshot) copyTo(v *volume) string {
	v.request.VolumeContentSource = csiclient.FromSnapshot(s.id)
	v.checksum, v.total = s.checksum, s.source.total
	return s.short()
}

func (s *snapshot) short() string { return "snapshot=…" + endOfID(s.id) }

func (s *snapshot) request() *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: s.name, SourceVolumeId: s.source.VolumeID}
}

func (s *snapshot) create(ctx context.Context) (with, got string, err error) {
	answer, err := s.demo.CreateSnapshotAndWait(ctx, s.request())
	return "name=" + s.name + " " + s.source.short(), answer.GetSnapshot().GetSnapshotId(), cmp.Or(err, s.accept(answer.GetSnapshot()))
}

// accept takes the id of an answer, which has the data that the source has now.
func (s *snapshot) accept(answer *csi.Snapshot) error {
	s.id, s.checksum = answer.GetSnapshotId(), s.source.checksum
	return cmp.Or(
		check(answer.GetSourceVolumeId() == s.source.VolumeID, "a snapshot of volume %s", answer.GetSourceVolumeId()),
		check(answer.GetReadyToUse(), "snapshot %s is not ready to use", s.id),
		check(answer.GetSizeBytes() >= s.source.capacity, "a size of %s", formatBytes(answer.GetSizeBytes())),
	)
}

func (s *snapshot) createAgain(ctx context.Context) (with, got string, err error) {
	answer, err := s.demo.CreateSnapshot(ctx, s.request())
	id := answer.GetSnapshot().GetSnapshotId()
	return "same arguments", "the same snapshot", cmp.Or(err, check(id == s.id, "another snapshot: %s", id))
}

func (s *snapshot) getAllocatedBlocks(ctx context.Context) (with, got string, err error) {
	got, allocated, _, err := sumBlocks(s.demo.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: s.id}))
	return s.short() + " (its source is gone)", got,
		cmp.Or(err, check(allocated >= payloadBytes, "%s allocated, less than was written", formatBytes(allocated)))
}

func (s *snapshot) callDelete(ctx context.Context) error {
	_, err := s.demo.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.id})
	return err
}

func (s *snapshot) delete(ctx context.Context) (with, got string, err error) {
	return s.short(), "gone", s.callDelete(ctx)
}

func (s *snapshot) deleteAgain(ctx context.Context) (with, got string, err error) {
	return s.short() + " deleted already", "OK, nothing changed", s.callDelete(ctx)
}

func snapshotID(e *csi.ListSnapshotsResponse_Entry) string { return e.GetSnapshot().GetSnapshotId() }

func (d *demo) verifySnapshotsListed(ctx context.Context) (with, got string, err error) {
	source := d.before.source
	ids, err := collect(d.Snapshots(ctx, source.VolumeID, 1), snapshotID)
	both := slices.Sorted(slices.Values([]string{d.before.id, d.after.id}))

	return source.short() + " max_entries=1", "both, in two pages", cmp.Or(err, check(slices.Equal(ids, both), "snapshots %v", ids))
}

func (d *demo) getChangedBlocks(ctx context.Context) (with, got string, err error) {
	got, changed, capacity, err := sumBlocks(d.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{
		BaseSnapshotId: d.before.id, TargetSnapshotId: d.after.id,
	}))
	return "base=…" + endOfID(d.before.id) + " target=…" + endOfID(d.after.id), got, cmp.Or(err,
		check(changed >= payloadBytes, "%s changed, less than was overwritten", formatBytes(changed)),
		check(changed <= capacity/2, "%s changed, of which little was overwritten", formatBytes(changed)))
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

// verifyUUIDsDiffer reads both XFS superblocks from their devices. XFS would not mount
// two filesystems with one UUID, but a reader of the demo may not know that.
func (d *demo) verifyUUIDsDiffer(context.Context) (with, got string, err error) {
	source, err := xfsUUID(d.before.source.StagingPath)
	restored, restoredErr := xfsUUID(d.restored.StagingPath)

	return "of both", "…" + endOfID(source.String()) + " and …" + endOfID(restored.String()),
		cmp.Or(err, restoredErr, check(source != restored, "both have %s", source))
}

func xfsUUID(staged string) (id uuid.UUID, err error) {
	const uuidOffset = 32 // xfs_dsb.sb_uuid

	mount, err := mountAt(staged)
	if err != nil {
		return id, err
	}

	device, err := os.Open(mount.Source)
	if err != nil {
		return id, fmt.Errorf("open the volume's device: %w", err)
	}
	defer func() { err = errors.Join(err, device.Close()) }()

	if _, err := io.ReadFull(io.NewSectionReader(device, uuidOffset, int64(len(id))), id[:]); err != nil {
		return id, fmt.Errorf("read the superblock of %s: %w", mount.Source, err)
	}
	return id, nil
}

// groupSnapshot is a group snapshot of the demo. Its methods are steps.
type groupSnapshot struct {
	demo    *demo
	name    string
	id      string
	members []*snapshot
}

func (g *groupSnapshot) short() string { return "group=…" + endOfID(g.id) }

func (g *groupSnapshot) request() *csi.CreateVolumeGroupSnapshotRequest {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: g.name}
	for _, member := range g.members {
		request.SourceVolumeIds = append(request.SourceVolumeIds, member.source.VolumeID)
	}
	return request
}

func (g *groupSnapshot) memberIDs() []string {
	ids := make([]string, len(g.members))
	for i, member := range g.members {
		ids[i] = member.id
	}
	return ids
}

func (g *groupSnapshot) create(ctx context.Context) (with, got string, err error) {
	texts := make([]string, 0, 1+len(g.members))
	texts = append(texts, "name="+g.name)
	for _, member := range g.members {
		texts = append(texts, member.source.short())
	}
	with = strings.Join(texts, " ")

	answer, err := g.demo.CreateGroupSnapshotAndWait(ctx, g.request())
	if err != nil {
		return with, "", err
	}
	g.id = answer.GetGroupSnapshot().GetGroupSnapshotId()

	skew, err := g.accept(answer.GetGroupSnapshot().GetSnapshots())
	return with, fmt.Sprintf("%d snapshots within %s", len(g.members), formatDuration(skew)), err
}

// accept assigns the answer's snapshots to the members, and returns the time between the
// first and the last.
func (g *groupSnapshot) accept(answer []*csi.Snapshot) (skew time.Duration, err error) {
	times := make([]time.Time, 0, len(g.members))

	for _, member := range g.members {
		at := slices.IndexFunc(answer, func(s *csi.Snapshot) bool { return s.GetSourceVolumeId() == member.source.VolumeID })
		if at < 0 {
			return 0, check(false, "no snapshot of volume %s", member.source.VolumeID)
		}

		in := answer[at].GetGroupSnapshotId()
		if err := cmp.Or(member.accept(answer[at]), check(in == g.id, "snapshot %s is in group %q", member.id, in)); err != nil {
			return 0, err
		}
		times = append(times, answer[at].GetCreationTime().AsTime())
	}
	return slices.MaxFunc(times, time.Time.Compare).Sub(slices.MinFunc(times, time.Time.Compare)), nil
}

func (g *groupSnapshot) createAgain(ctx context.Context) (with, got string, err error) {
	answer, err := g.demo.CreateVolumeGroupSnapshot(ctx, g.request())
	id := answer.GetGroupSnapshot().GetGroupSnapshotId()
	return "same arguments", "the same group", cmp.Or(err, check(id == g.id, "another group: %s", id))
}

// deleteMember tries to delete a member alone, which the driver refuses.
func (g *groupSnapshot) deleteMember(ctx context.Context) (with, got string, err error) {
	member := g.members[1]
	with, got = member.short(), "refused: it is a member of the group"

	err = member.callDelete(ctx)
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return with, got, nil
	default:
		return with, got, cmp.Or(err, check(false, "the member was deleted alone"))
	}
}

func (g *groupSnapshot) get(ctx context.Context) (with, got string, err error) {
	answer, err := g.demo.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
	})
	found := len(answer.GetGroupSnapshot().GetSnapshots())
	return g.short(), "both snapshots", cmp.Or(err, check(found == len(g.members), "%d snapshots", found))
}

func (g *groupSnapshot) delete(ctx context.Context) (with, got string, err error) {
	_, err = g.demo.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
	})
	return g.short(), "gone, with its snapshots", err
}

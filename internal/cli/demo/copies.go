package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

// What the demo holds against the driver about copies.
var (
	errNotReady       = errors.New("it is not ready to use")
	errNotItsSource   = errors.New("it is not of the volume that was asked for")
	errDeltaTooSmall  = errors.New("less than was overwritten")
	errDeltaTooLarge  = errors.New("most of the volume, of which little was overwritten")
	errSameUUID       = errors.New("two mounted filesystems have one UUID")
	errMemberDeleted  = errors.New("the member of a group was deleted alone")
	errMemberMissing  = errors.New("the group lacks a snapshot")
	errNothingWritten = errors.New("the snapshot holds less than was written")
)

// The calls on copies that appear more than once.
const (
	createSnapshot = "CreateSnapshot"
	deleteSnapshot = "DeleteSnapshot"
	createGroup    = "CreateVolumeGroupSnapshot"
	deleteGroup    = "DeleteVolumeGroupSnapshot"
	listSnapshots  = "ListSnapshots"
	readAndSum     = "read, sha256"
)

// source is what a volume can be made of.
type source interface {
	content() *csi.VolumeContentSource
	short() string
	// data is the checksum of what the new volume begins with.
	data() string
}

func (v *volume) content() *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.claim.VolumeID},
	}}
}

func (v *volume) data() string { return v.sum }

// snapshot is one that the demo takes, alone or in a group.
type snapshot struct {
	undoing

	name string
	of   *volume
	id   string
	sum  string
}

func (s *snapshot) content() *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.id},
	}}
}

func (s *snapshot) data() string { return s.sum }

func (s *snapshot) short() string { return "snapshot=…" + tailOf(s.id) }

func (s *snapshot) request() *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: s.name, SourceVolumeId: s.of.claim.VolumeID}
}

// grouping is a group snapshot.
type grouping struct {
	undoing

	name    string
	id      string
	members []*snapshot
}

func (g *grouping) request() *csi.CreateVolumeGroupSnapshotRequest {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: g.name}
	for _, member := range g.members {
		request.SourceVolumeIds = append(request.SourceVolumeIds, member.of.claim.VolumeID)
	}

	return request
}

func (g *grouping) memberIDs() []string {
	ids := make([]string, len(g.members))
	for i, member := range g.members {
		ids[i] = member.id
	}

	return ids
}

// album is what the demo takes of its volumes, and makes of that.
type album struct {
	// source is mounted all the time.
	source        *volume
	before, after *snapshot
	group         *grouping
	// restored is larger than its snapshot, cloned as large as its source, and
	// member is of the group's other volume.
	restored, cloned, member *volume
}

// albumOf is of the volumes named; both are in the cast.
func albumOf(at places, mounted, other *volume) *album {
	a := &album{
		source: mounted,
		before: &snapshot{name: "demo-before", of: mounted},
		after:  &snapshot{name: "demo-after", of: mounted},
		group:  &grouping{name: "demo-group", members: []*snapshot{{of: mounted}, {of: other}}},
	}

	a.restored = copyOf(mounted, "restored", a.before, restoredBytes)
	a.cloned = copyOf(mounted, "cloned", mounted, mounted.grown)
	a.member = copyOf(other, "regrouped", a.group.members[1], other.grown)

	for _, v := range a.copies() {
		v.settle(at)
	}

	return a
}

func copyOf(like *volume, kind string, of source, size int64) *volume {
	return &volume{
		kind: kind, size: size, from: of,
		claim: csiclient.Publication{Capability: like.claim.Capability},
	}
}

func (a *album) copies() []*volume { return []*volume{a.restored, a.cloned, a.member} }

// pictures are the sections in which copies are made of volumes that are in use.
func (d *demo) pictures() []section {
	a := d.album

	return []section{
		{"Snapshots of the " + a.source.kind + " volume, while it is mounted", []step{
			{createSnapshot, d.cut(a.before)},
			{createSnapshot, d.cutAgain(a.before)},
			{"overwrite, fsync", a.source.written},
			{createSnapshot, d.cut(a.after)},
			{listSnapshots, d.listedSnapshots(a)},
			{"GetMetadataDelta", d.changed(a)},
		}},
		{"The first snapshot becomes a larger volume, beside its source", slices.Concat(d.birth(a.restored), []step{
			{readAndSum, a.restored.verified("of the copy, before the overwriting")},
			{readAndSum, a.source.verified("of the source, overwritten")},
			{"filesystem UUIDs", a.uuidsDiffer},
			{getVolumeStats, d.measuredBeside(a.restored, a.source)},
		})},
		{"A clone of the mounted volume", slices.Concat(d.birth(a.cloned), []step{
			{readAndSum, a.cloned.verified("of the clone")},
			{"overwrite, fsync", a.cloned.written},
			{readAndSum, a.source.verified("of the source, which does not notice")},
		})},
		{"A group snapshot of two mounted volumes", slices.Concat([]step{
			{createGroup, d.cutGroup(a.group)},
			{createGroup, d.cutGroupAgain(a.group)},
			{deleteSnapshot, d.memberStays(a.group.members[1])},
		}, d.birth(a.member), []step{
			{readAndSum, a.member.verified("of a member, restored alone")},
		})},
	}
}

// birth is how a copy comes to its target path.
func (d *demo) birth(v *volume) []step {
	return []step{
		{createVolume, d.created(v)},
		{createVolume, d.createdAgain(v)},
		{controllerPublish, d.attached(v)},
		{stageVolume, d.staged(v)},
		{publishVolume, d.published(v)},
	}
}

// survivors are the snapshots after the end of the volumes that they are of.
func (d *demo) survivors() []step {
	a := d.album

	return []step{
		{"GetMetadataAllocated", d.allocated(a.before)},
		{deleteSnapshot, d.snapshotDeleted(a.before)},
		{deleteSnapshot, d.snapshotGone(a.before)},
		{deleteSnapshot, d.snapshotDeleted(a.after)},
		{"GetVolumeGroupSnapshot", d.groupThere(a.group)},
		{deleteGroup, d.groupDeleted(a.group)},
	}
}

func (d *demo) cut(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := "name=" + s.name + " " + s.of.short()

		answer, err := d.CreateSnapshotAndWait(ctx, s.request())
		if id := answer.GetSnapshot().GetSnapshotId(); id != "" {
			s.id, s.sum = id, s.of.sum
			s.undo = append(s.undo, func(ctx context.Context) error { return d.removeSnapshot(ctx, s.id) })
		}

		if err == nil {
			err = s.judge(answer.GetSnapshot())
		}

		return outcome{with: with, got: s.id}, err
	}
}

func (s *snapshot) judge(answer *csi.Snapshot) error {
	switch {
	case answer.GetSourceVolumeId() != s.of.claim.VolumeID:
		return errNotItsSource
	case !answer.GetReadyToUse():
		return errNotReady
	case answer.GetSizeBytes() < s.of.capacity:
		return fmt.Errorf("%w: %s", errTooSmall, bytes(answer.GetSizeBytes()))
	default:
		return nil
	}
}

func (d *demo) cutAgain(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.CreateSnapshot(ctx, s.request())
		if id := answer.GetSnapshot().GetSnapshotId(); err == nil && id != s.id {
			err = fmt.Errorf("%w: snapshot %s", errNotIdempotent, id)
		}

		return outcome{with: "same arguments", got: "the same snapshot"}, err
	}
}

func (d *demo) listedSnapshots(a *album) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: a.source.short() + " max_entries=1", got: "both, in two pages"}

		var ids []string
		for entry, err := range d.Snapshots(ctx, a.source.claim.VolumeID, 1) {
			if err != nil {
				return done, err
			}

			ids = append(ids, entry.GetSnapshot().GetSnapshotId())
		}

		slices.Sort(ids)

		if !slices.Equal(ids, slices.Sorted(slices.Values([]string{a.before.id, a.after.id}))) {
			return done, fmt.Errorf("%w: %v", errNotListed, ids)
		}

		return done, nil
	}
}

func (d *demo) changed(a *album) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := "base=…" + tailOf(a.before.id) + " target=…" + tailOf(a.after.id)

		ranges, changed, of, err := totals(d.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: a.before.id, TargetSnapshotId: a.after.id,
		}))

		switch {
		case err != nil:
			return outcome{with: with}, err
		case changed < payloadBytes:
			return outcome{with: with}, fmt.Errorf("%w: %s", errDeltaTooSmall, bytes(changed))
		case changed > of/2:
			return outcome{with: with}, fmt.Errorf("%w: %s", errDeltaTooLarge, bytes(changed))
		}

		return outcome{with: with, got: fmt.Sprintf("%s of %s, in %d ranges", bytes(changed), bytes(of), ranges)}, nil
	}
}

func (d *demo) allocated(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		ranges, held, of, err := totals(d.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: s.id}))
		if err == nil && held < payloadBytes {
			err = fmt.Errorf("%w: %s", errNothingWritten, bytes(held))
		}

		return outcome{
			with: s.short() + " (its source is gone)",
			got:  fmt.Sprintf("%s of %s, in %d ranges", bytes(held), bytes(of), ranges),
		}, err
	}
}

// totals adds up a stream of blocks: how many ranges, of how many bytes, of a
// volume of how many.
func totals(stream func(yield func(csiclient.BlockMetadata, error) bool)) (ranges int, sum, capacity int64, err error) {
	for message, err := range stream {
		if err != nil {
			return 0, 0, 0, err
		}

		capacity = message.GetVolumeCapacityBytes()
		for _, block := range message.GetBlockMetadata() {
			ranges++
			sum += block.GetSizeBytes()
		}
	}

	return ranges, sum, capacity, nil
}

// uuidsDiffer reads the superblocks of both XFS from their devices: that they
// are mounted at once says it too, but to nobody who does not know XFS.
func (a *album) uuidsDiffer(context.Context) (outcome, error) {
	var ids [2]uuid.UUID

	for i, v := range []*volume{a.source, a.restored} {
		var err error
		if ids[i], err = xfsUUID(v.claim.StagingPath); err != nil {
			return outcome{}, err
		}
	}

	if ids[0] == ids[1] {
		return outcome{}, fmt.Errorf("%w: %s", errSameUUID, ids[0])
	}

	return outcome{with: "of both", got: "…" + tailOf(ids[0].String()) + " and …" + tailOf(ids[1].String())}, nil
}

func xfsUUID(staged string) (id uuid.UUID, err error) {
	const place = 32 // xfs_dsb.sb_uuid

	mount, err := mountAt(staged)
	if err != nil {
		return id, err
	}

	device, err := os.Open(mount.Source)
	if err != nil {
		return id, fmt.Errorf("open the volume's device: %w", err)
	}

	defer func() { err = errors.Join(err, device.Close()) }()

	if _, err := io.ReadFull(io.NewSectionReader(device, place, int64(len(id))), id[:]); err != nil {
		return id, fmt.Errorf("read the superblock of %s: %w", filepath.Base(mount.Source), err)
	}

	return id, nil
}

// measuredBeside wants more room than another volume has.
func (d *demo) measuredBeside(v, smaller *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		v.total = smaller.total

		return d.measured(v)(ctx)
	}
}

func (d *demo) cutGroup(g *grouping) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: "name=" + g.name}
		for _, member := range g.members {
			done.with += " " + member.of.short()
		}

		answer, err := d.CreateGroupSnapshotAndWait(ctx, g.request())
		if id := answer.GetGroupSnapshot().GetGroupSnapshotId(); id != "" {
			g.id = id
			g.undo = append(g.undo, func(ctx context.Context) error { return d.removeGroup(ctx, g) })
		}

		if err != nil {
			return done, err
		}

		skew, err := g.accept(answer.GetGroupSnapshot().GetSnapshots())
		done.got = fmt.Sprintf("%d snapshots within %s", len(g.members), humanDuration(skew))

		return done, err
	}
}

// accept finds the answer's snapshots for the members, and how far they are
// apart in time.
func (g *grouping) accept(answer []*csi.Snapshot) (skew time.Duration, err error) {
	var first, last time.Time

	for _, member := range g.members {
		at := slices.IndexFunc(answer, func(s *csi.Snapshot) bool {
			return s.GetSourceVolumeId() == member.of.claim.VolumeID && s.GetGroupSnapshotId() == g.id
		})
		if at < 0 {
			return 0, fmt.Errorf("%w: of volume %s", errMemberMissing, member.of.claim.VolumeID)
		}

		member.id, member.sum = answer[at].GetSnapshotId(), member.of.sum

		if err := member.judge(answer[at]); err != nil {
			return 0, err
		}

		cut := answer[at].GetCreationTime().AsTime()
		if first.IsZero() || cut.Before(first) {
			first = cut
		}

		if cut.After(last) {
			last = cut
		}
	}

	return last.Sub(first), nil
}

func (d *demo) cutGroupAgain(g *grouping) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.CreateVolumeGroupSnapshot(ctx, g.request())
		if id := answer.GetGroupSnapshot().GetGroupSnapshotId(); err == nil && id != g.id {
			err = fmt.Errorf("%w: group %s", errNotIdempotent, id)
		}

		return outcome{with: "same arguments", got: "the same group"}, err
	}
}

func (d *demo) memberStays(member *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: member.short(), got: "refused: it is a member of the group"}

		err := d.removeSnapshot(ctx, member.id)

		switch status.Code(err) {
		case codes.InvalidArgument, codes.FailedPrecondition:
			return done, nil
		case codes.OK:
			return done, errMemberDeleted
		default:
			return done, err
		}
	}
}

func (d *demo) groupThere(g *grouping) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
			GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
		})
		if found := len(answer.GetGroupSnapshot().GetSnapshots()); err == nil && found != len(g.members) {
			err = fmt.Errorf("%w: %d are left", errMemberMissing, found)
		}

		return outcome{with: "group=…" + tailOf(g.id), got: "both snapshots"}, err
	}
}

func (d *demo) groupDeleted(g *grouping) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: "group=…" + tailOf(g.id), got: "gone, with its snapshots"}, g.undoLast(ctx)
	}
}

func (d *demo) snapshotDeleted(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: s.short(), got: "gone"}, s.undoLast(ctx)
	}
}

func (d *demo) snapshotGone(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: s.short() + " deleted already", got: "OK, nothing changed"}, d.removeSnapshot(ctx, s.id)
	}
}

func (d *demo) removeSnapshot(ctx context.Context, id string) error {
	_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

	return err
}

func (d *demo) removeGroup(ctx context.Context, g *grouping) error {
	_, err := d.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: g.id, SnapshotIds: g.memberIDs(),
	})

	return err
}

func (d *demo) noSnapshots(ctx context.Context) (outcome, error) {
	var ids []string
	for entry, err := range d.Snapshots(ctx, "", 0) {
		if err != nil {
			return outcome{}, err
		}

		ids = append(ids, entry.GetSnapshot().GetSnapshotId())
	}

	return none("snapshot", ids)
}

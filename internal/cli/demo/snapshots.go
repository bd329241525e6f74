package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
)

// Failures of copies that the demo detects.
var (
	errNotReady       = errors.New("it is not ready to use")
	errNotItsSource   = errors.New("its source is another volume")
	errDeltaTooSmall  = errors.New("less than was overwritten")
	errDeltaTooLarge  = errors.New("most of the volume, of which little was overwritten")
	errSameUUID       = errors.New("two mounted filesystems have one UUID")
	errMemberDeleted  = errors.New("the member of a group was deleted alone")
	errMemberMissing  = errors.New("the group lacks a snapshot")
	errNothingWritten = errors.New("the snapshot contains less than was written")
)

func (d *demo) takeSnapshot(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := "name=" + s.name + " " + s.source.short()

		answer, err := d.CreateSnapshotAndWait(ctx, s.request())
		if id := answer.GetSnapshot().GetSnapshotId(); id != "" {
			s.id, s.checksum = id, s.source.checksum
			s.undo = append(s.undo, func(ctx context.Context) error { return d.callDeleteSnapshot(ctx, s.id) })
		}

		if err == nil {
			err = s.check(answer.GetSnapshot())
		}

		return outcome{with: with, got: s.id}, err
	}
}

func (d *demo) takeSnapshotAgain(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.CreateSnapshot(ctx, s.request())
		if id := answer.GetSnapshot().GetSnapshotId(); err == nil && id != s.id {
			err = fmt.Errorf("%w: snapshot %s", errNotIdempotent, id)
		}

		return outcome{with: "same arguments", got: "the same snapshot"}, err
	}
}

func (d *demo) verifySnapshotsListed(a *copySet) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: a.source.short() + " max_entries=1", got: "both, in two pages"}

		var ids []string
		for entry, err := range d.Snapshots(ctx, a.source.publication.VolumeID, 1) {
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

// verifyUUIDsDiffer reads both XFS superblocks from their devices. XFS would not mount
// two filesystems with one UUID, but a reader of the demo may not know that.
func (a *copySet) verifyUUIDsDiffer(context.Context) (outcome, error) {
	var ids [2]uuid.UUID

	for i, v := range []*volume{a.source, a.restored} {
		var err error
		if ids[i], err = xfsUUID(v.publication.StagingPath); err != nil {
			return outcome{}, err
		}
	}

	if ids[0] == ids[1] {
		return outcome{}, fmt.Errorf("%w: %s", errSameUUID, ids[0])
	}

	return outcome{with: "of both", got: "…" + endOfID(ids[0].String()) + " and …" + endOfID(ids[1].String())}, nil
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
		return id, fmt.Errorf("read the superblock of %s: %w", filepath.Base(mount.Source), err)
	}

	return id, nil
}

// getStatsLargerThan expects a larger total than another volume has.
func (d *demo) getStatsLargerThan(v, smaller *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		v.total = smaller.total

		return d.getStats(v)(ctx)
	}
}

func (d *demo) deleteSnapshot(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: s.short(), got: "gone"}, s.undoLast(ctx)
	}
}

func (d *demo) deleteSnapshotAgain(s *snapshot) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: s.short() + " deleted already", got: "OK, nothing changed"}, d.callDeleteSnapshot(ctx, s.id)
	}
}

func (d *demo) callDeleteSnapshot(ctx context.Context, id string) error {
	_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

	return err
}

func (d *demo) verifyNoSnapshots(ctx context.Context) (outcome, error) {
	var ids []string
	for entry, err := range d.Snapshots(ctx, "", 0) {
		if err != nil {
			return outcome{}, err
		}

		ids = append(ids, entry.GetSnapshot().GetSnapshotId())
	}

	return expectNone("snapshot", ids)
}

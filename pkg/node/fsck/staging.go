package fsck

import (
	"context"
	"errors"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// CheckAtStaging checks the filesystem on the device before it is mounted, and repairs what
// is safe to repair. It returns true if the log has to be replayed first. After that, since is when the first
// check began, zero before: a log that is dirty then is damage. Error: INTERNAL for damage that is left.
func (r *Results) CheckAtStaging(
	ctx context.Context, record *staged.Volume, fs filesystem.Filesystem, devicePath string, since time.Time,
) (dirty bool, err error) {
	began := since
	if began.IsZero() {
		began = time.Now()
	}

	check := fs.Check
	if r.Get(record.VolumeID).HasFinding() {
		// An administrator may have repaired it or not: that it is marked clean proves nothing.
		check = fs.ForceCheck
	}

	verdict, err := check(ctx, devicePath)
	if err != nil {
		return false, err
	}

	if verdict.State == filesystem.NeedsReplay && since.IsZero() {
		return true, nil
	}

	r.storeStaged(ctx, record, began, verdict)

	switch verdict.State {
	case filesystem.Clean:
	case filesystem.Repaired:
		r.log.Warn("a filesystem was repaired", "volume", record.VolumeID, "verdict", verdict.Detail)
	case filesystem.Damaged, filesystem.NeedsReplay:
		return false, errdefs.Errorf(errdefs.ErrInternal, "the %s is damaged and was not mounted; repair a copy of its image by hand, "+
			"or restore a snapshot: %s", fs.Name(), verdict.Detail)
	}

	return false, nil
}

// storeStaged records the check at staging. Staging waits for the disk only if it fails.
func (r *Results) storeStaged(ctx context.Context, record *staged.Volume, began time.Time, verdict filesystem.Verdict) {
	found := stagingRecord(record, began)
	found.Verdict, found.Detail, found.Took = verdictOf(verdict.State), verdict.Detail, time.Since(began)

	r.count(found)
	r.store(ctx, found)
}

// RecordFormatted records that the volume's filesystem was just made, which is no check.
func (r *Results) RecordFormatted(ctx context.Context, record *staged.Volume) {
	found := stagingRecord(record, time.Now())
	found.Verdict = VerdictClean

	r.store(ctx, found)
}

// RecordMounted records a volume that is found mounted at the start without a record of its
// checks, which is lost if the driver is killed soon after the staging: scheduled checks need
// one. Staging mounts only what it has formatted or found clean.
func (r *Results) RecordMounted(ctx context.Context, record *staged.Volume) {
	if r.Get(record.VolumeID) == nil {
		r.RecordFormatted(ctx, record)
	}
}

// RecordFailure records the damage that made a staging fail and that no check has found: the
// kernel refuses to mount the filesystem, or the image does not hold it, or not all of it, any
// more. It ignores other failures.
func (r *Results) RecordFailure(ctx context.Context, record *staged.Volume, failure error) {
	if errors.Is(failure, filesystem.ErrTruncated) {
		r.Suspect(record.VolumeID, record, Suspicion{Reason: health.FilesystemErrors, Message: Truncated, At: time.Now()})
	}

	lost := errors.Is(failure, filesystem.ErrUnrecognized) && r.HasRecord(record.VolumeID)

	if lost || errors.Is(failure, mount.ErrCorrupted) {
		r.storeStaged(ctx, record, time.Now(),
			filesystem.Verdict{State: filesystem.Damaged, Detail: "it does not mount: " + failure.Error()})
	}
}

// HasRecord reports whether the volume has had a filesystem on this node.
func (r *Results) HasRecord(volumeID string) bool { return r.Get(volumeID) != nil }

func stagingRecord(record *staged.Volume, at time.Time) *Result {
	return &Result{
		VolumeID: record.VolumeID, Pool: record.Parameters.Pool, FSType: record.FSType(), At: at, Since: at, How: HowStage,
	}
}

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
// is safe to repair. It calls replay where the log must be replayed first. Error: INTERNAL
// for damage that is left.
func (c *Checker) CheckAtStaging(
	ctx context.Context, record *staged.Volume, fs filesystem.Filesystem, devicePath string, replay func() error,
) error {
	began := time.Now()

	check := fs.Check
	if c.Get(record.VolumeID).HasFinding() {
		// An administrator may have repaired it or not: that it is marked clean proves nothing.
		check = fs.ForceCheck
	}

	verdict, err := filesystem.CheckReplayed(func() (filesystem.Verdict, error) { return check(ctx, devicePath) }, replay)
	if err != nil {
		return err
	}

	c.storeStaged(ctx, record, began, verdict)

	switch verdict.State {
	case filesystem.Clean:
	case filesystem.Repaired:
		c.config.Log.Warn("a filesystem was repaired", "volume", record.VolumeID, "verdict", verdict.Detail)
	case filesystem.Damaged, filesystem.NeedsReplay:
		return errdefs.Errorf(errdefs.ErrInternal, "the %s is damaged and was not mounted; repair it by hand: %s",
			fs.Name(), verdict.Detail)
	}

	return nil
}

// storeStaged records the check at staging. Staging waits for the disk only if it fails.
func (c *Checker) storeStaged(ctx context.Context, record *staged.Volume, began time.Time, verdict filesystem.Verdict) {
	found := stagingRecord(record, began)
	found.Verdict, found.Detail, found.Took = VerdictOf(verdict.State), verdict.Detail, time.Since(began)

	c.count(found)
	c.store(ctx, found)
}

// RecordFormatted records that the volume's filesystem was just made, which is no check.
func (c *Checker) RecordFormatted(ctx context.Context, record *staged.Volume) {
	found := stagingRecord(record, time.Now())
	found.Verdict = VerdictClean

	c.store(ctx, found)
}

// RecordMounted records a volume that is found mounted at the start without a record of its
// checks, which is lost if the driver is killed soon after the staging: scheduled checks need
// one. Staging mounts only what it has formatted or found clean.
func (c *Checker) RecordMounted(ctx context.Context, record *staged.Volume) {
	if _, known := c.config.Records.Get(record.VolumeID); !known {
		c.RecordFormatted(ctx, record)
	}
}

// RecordFailure records the damage that made a staging fail and that no check has found: the
// kernel refuses to mount the filesystem, or the image does not hold it, or not all of it, any
// more. It ignores other failures.
func (c *Checker) RecordFailure(ctx context.Context, record *staged.Volume, failure error) {
	if errors.Is(failure, filesystem.ErrTruncated) {
		c.Suspect(record.VolumeID, record, Suspicion{Reason: health.FilesystemErrors, Message: Truncated, At: time.Now()})
	}

	lost := errors.Is(failure, filesystem.ErrUnrecognized) && c.HasRecord(record.VolumeID)

	if lost || errors.Is(failure, mount.ErrCorrupted) {
		c.storeStaged(ctx, record, time.Now(),
			filesystem.Verdict{State: filesystem.Damaged, Detail: "it does not mount: " + failure.Error()})
	}
}

// HasRecord reports whether the volume has had a filesystem on this node.
func (c *Checker) HasRecord(volumeID string) bool { return c.Get(volumeID) != nil }

func stagingRecord(record *staged.Volume, at time.Time) *Result {
	return &Result{
		VolumeID: record.VolumeID, Pool: record.Parameters.Pool, FSType: record.FSType(), At: at, Since: at, How: HowStage,
	}
}

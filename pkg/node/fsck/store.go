package fsck

import (
	"context"
	"time"
)

// store records a check, requests a probe of the volume, and returns the volume's record,
// which may be a newer one. Damage is recorded durably. Any other verdict is stored lazily: if a kill
// loses it, the next check or staging records another one.
func (c *Checker) store(ctx context.Context, found *Result) *Result {
	if !found.IsClean() {
		c.config.Log.Error("a check found a filesystem damaged, or failed", "volume", found.VolumeID,
			"fs", found.FSType, "how", found.How, "verdict", found.Verdict, "detail", found.Detail)
	}

	c.replacing.Lock()
	defer c.replacing.Unlock()

	older, known := c.config.Records.Get(found.VolumeID)
	if known && older.supersedes(found, time.Now()) {
		return older
	}

	merged := found.mergedWith(older)

	var err error
	if merged.Verdict == VerdictDamaged {
		err = c.config.Records.Put(ctx, merged)
	} else {
		err = c.config.Records.PutLazily(merged)
	}

	if err != nil {
		c.config.Log.Error("cannot record the verdict of a check", "volume", found.VolumeID, "verdict", found.Verdict, "error", err)
	}

	c.schedule.markChanged(found.VolumeID)

	// The staging requests a probe itself when it ends.
	if found.How != HowStage {
		c.config.Volumes.ProbeAfterOperation(found.VolumeID)
	}

	return merged
}

func (c *Checker) count(found *Result) {
	c.config.Metrics.Checked(found.How, found.FSType, found.Verdict, found.Took)
}

// Forget removes the record of a volume that has no filesystem any more.
func (c *Checker) Forget(volumeID string) error {
	known, err := c.deleteRecord(volumeID)
	if !known {
		return nil
	}

	c.schedule.markChanged(volumeID)
	c.config.Volumes.ProbeAfterOperation(volumeID)

	return err
}

// deleteRecord holds the lock so that a record which replaces the deleted one is not stored after it.
func (c *Checker) deleteRecord(volumeID string) (known bool, err error) {
	c.replacing.Lock()
	defer c.replacing.Unlock()

	if _, known = c.config.Records.Get(volumeID); !known {
		return false, nil
	}

	return true, c.config.Records.DeleteLazily(volumeID)
}

// SetErrorCount records the kernel's error count of a filesystem that the check at staging
// found clean: those errors stay counted in the filesystem, but are no finding.
func (c *Checker) SetErrorCount(volumeID string, count uint64) {
	c.replacing.Lock()
	defer c.replacing.Unlock()

	record, ok := c.config.Records.Get(volumeID)
	if !ok || record.How != HowStage || count == record.Errors {
		return
	}

	changed := *record
	changed.Errors = count

	if err := c.config.Records.PutLazily(&changed); err != nil {
		c.config.Log.Error("cannot record a filesystem's error count; its old errors are reported again",
			"volume", volumeID, "error", err)
	}
}

// correctCleanAt replaces the time of the last clean check in the volume's record if it is
// in the future, from before the clock was set back: as for checkedSince it counts as a
// period ago, so that CheckOverdue follows if no check succeeds.
func (c *Checker) correctCleanAt(id string, now time.Time, period time.Duration) {
	c.replacing.Lock()
	defer c.replacing.Unlock()

	record, known := c.config.Records.Get(id)
	if !known || !record.CleanAt.After(now.Round(0)) {
		return
	}

	corrected := *record
	corrected.CleanAt = now.Round(0).Add(-period)

	if err := c.config.Records.PutLazily(&corrected); err != nil {
		c.config.Log.Error("cannot correct the time of a check that is in the future", "volume", id, "error", err)
	}
}

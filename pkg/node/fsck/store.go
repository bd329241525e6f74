package fsck

import (
	"context"
	"time"
)

// store records a check, requests a probe of the volume, and returns the volume's record,
// which may be a newer one. Damage is recorded durably. Any other verdict is stored lazily: if a kill
// loses it, the next check or staging records another one.
func (r *Results) store(ctx context.Context, found *Result) *Result {
	if !found.IsClean() {
		r.log.Error("a check found a filesystem damaged, or failed", "volume", found.VolumeID,
			"fs", found.FSType, "how", found.How, "verdict", found.Verdict, "detail", found.Detail)
	}

	r.replacing.Lock()
	defer r.replacing.Unlock()

	older, known := r.records.Get(found.VolumeID)
	if known && older.supersedes(found, time.Now()) {
		return older
	}

	merged := found.mergedWith(older)

	var err error
	if merged.Verdict == VerdictDamaged {
		err = r.records.Put(ctx, merged)
	} else {
		err = r.records.PutLazily(merged)
	}

	if err != nil {
		r.log.Error("cannot record the verdict of a check", "volume", found.VolumeID, "verdict", found.Verdict, "error", err)
	}

	r.schedule.markChanged(found.VolumeID)

	// The staging requests a probe itself when it ends.
	if found.How != HowStage {
		r.onChange(found.VolumeID)
	}

	return merged
}

func (r *Results) count(found *Result) {
	r.metrics.Checked(found.How, found.FSType, found.Verdict, found.Took)
}

// Forget removes the record of a volume that has no filesystem any more.
func (r *Results) Forget(volumeID string) error {
	known, err := r.deleteRecord(volumeID)
	if known {
		r.schedule.markChanged(volumeID)
		r.onChange(volumeID)
	}

	return err
}

func (r *Results) deleteRecord(volumeID string) (known bool, err error) {
	// So that a record which replaces the deleted one is not stored after it.
	r.replacing.Lock()
	defer r.replacing.Unlock()

	if _, known = r.records.Get(volumeID); known {
		err = r.records.DeleteLazily(volumeID)
	}

	return known, err
}

// SetErrorCount records the kernel's error count of a filesystem that the check at staging
// found clean: those errors stay counted in the filesystem, but are no finding.
func (r *Results) SetErrorCount(volumeID string, count uint64) {
	r.replacing.Lock()
	defer r.replacing.Unlock()

	record, ok := r.records.Get(volumeID)
	if !ok || record.How != HowStage || count == record.Errors {
		return
	}

	changed := *record
	changed.Errors = count

	if err := r.records.PutLazily(&changed); err != nil {
		r.log.Error("cannot record a filesystem's error count; its old errors are reported again",
			"volume", volumeID, "error", err)
	}
}

// correctCleanAt replaces the time of the last clean check in the volume's record if it is
// in the future, from before the clock was set back: as for checkedSince it counts as a
// period ago, so that CheckOverdue follows if no check succeeds.
func (r *Results) correctCleanAt(id string, now time.Time, period time.Duration) {
	r.replacing.Lock()
	defer r.replacing.Unlock()

	record, known := r.records.Get(id)
	if !known || !record.CleanAt.After(now.Round(0)) {
		return
	}

	corrected := *record
	corrected.CleanAt = now.Round(0).Add(-period)

	if err := r.records.PutLazily(&corrected); err != nil {
		r.log.Error("cannot correct the time of a check that is in the future", "volume", id, "error", err)
	}
}

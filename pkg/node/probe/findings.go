package probe

import (
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

const failedRequests = "its device has failed requests; see the kernel's log and the pool's disks"

// probeErrorCount compares the kernel's error count of the filesystem with the count when
// the filesystem was last found clean.
func (s *probeState) probeErrorCount() error {
	counted, err := filesystem.ReadErrors(s.volume.FSType(), s.attached.Number, s.root)
	if err != nil {
		return err
	}

	found := errorFindings(counted, s.view.check, s.volume.FSType() == filesystem.Btrfs)
	s.entries = append(s.entries, found...)

	for _, entry := range found {
		if entry.Reason != health.IOErrors {
			s.prober.config.suspect(s.view, entry.Reason, entry.Message, s.at)
		}
	}

	return nil
}

// errorFindings returns the findings for the kernel's error count. The record of the last
// check may be nil.
func errorFindings(counted filesystem.ErrorCounts, check *fsck.Result, isBtrfs bool) []health.Entry {
	if counted.Count == 0 || check != nil && counted.Count <= check.Errors {
		return nil
	}

	var found []health.Entry

	switch {
	case counted.Corrupted:
		found = append(found, health.NewEntry(health.FilesystemCorrupted,
			"the kernel has found its filesystem corrupted; back up its files, check and repair it"))
	case !isBtrfs:
		found = append(found, health.NewEntry(health.FilesystemErrors,
			"the kernel has counted errors of its filesystem; check it (touchstone check)"))
	}

	if isBtrfs && counted.IO {
		found = append(found, health.NewEntry(health.IOErrors, failedRequests))
	}

	return found
}

// addRememberedFindings adds the findings of checks, and of events since the last clean
// check: no probe can observe those again.
func (s *probeState) addRememberedFindings() {
	now := time.Now()

	// This probe, or a check meanwhile, may have changed it.
	s.view.check = s.prober.config.Checker.Get(s.view.id)

	if s.view.check != nil {
		s.entries = append(s.entries, checkFindings(s.view.check, s.volume, s.checkPeriod, now)...)
		s.addSuspicion(s.view.check.Suspicion)
	}

	cleanAt := lastClean(s.view.check, now)
	// Read again, because an event may have arrived during this probe.
	remembered := s.prober.observations.last(s.view.id)

	left := s.prober.config.Monitoring.ioErrorHeldFor(remembered.ioErrorAt)
	if left > 0 && cleanAt.Before(remembered.ioErrorAt) && !replaced(s.last.attached, s.attached) {
		s.add(health.IOErrors, failedRequests)
		s.probeAgainAfter(left)
	}

	s.addForeignWrite(remembered.foreignWriteAt, cleanAt)
	s.addFailedStaging()
}

// lastClean returns when a check last found the filesystem clean, zero for never. A time in
// the future is from before the clock was set back: it must not hide an error.
func lastClean(check *fsck.Result, now time.Time) time.Time {
	if check == nil || check.CleanAt.After(now) {
		return time.Time{}
	}

	return check.CleanAt
}

const (
	foreignWrite = "another program has written its image while it was in use; "
	checkIt      = "check it (touchstone check)"
)

// explainWrites finds out which of the writes since the last probe are another program's, and
// remembers those until a check.
func (s *probeState) explainWrites() {
	if replaced(s.last.attached, s.attached) {
		return
	}

	// fanotify reports the writes of a loop device without direct I/O on some kernels.
	isDevices := s.device != nil && !s.device.DirectIO && events.LoopWritesReported()

	for _, at := range s.prober.observations.takeUnexplainedWrites(s.view.id) {
		if isDevices || s.growth.covers(at) || resize(s.pool, s.volume).covers(at) {
			continue
		}

		if canBeChecked(s.volume) {
			s.prober.config.Checker.Suspect(s.view.id, s.volume,
				fsck.Suspicion{Reason: health.FilesystemErrors, Message: foreignWrite + checkIt, At: at})
		} else {
			s.prober.observations.recordForeignWrite(s.view.id, at)
		}
	}
}

// suspect remembers a finding until a check, also where no later probe finds it.
func (c *Config) suspect(view volumeView, reason health.Reason, message string, at time.Time) {
	known := view.check != nil && view.check.Suspicion != nil && view.check.Suspicion.Reason.Status() >= reason.Status()
	if known || view.volume != nil && !canBeChecked(view.volume) {
		return
	}

	c.Checker.Suspect(view.id, view.volume, fsck.Suspicion{Reason: reason, Message: message, At: at})
}

// addForeignWrite adds that another program has written at that time the image of a volume that
// cannot be checked.
func (s *probeState) addForeignWrite(at, cleanAt time.Time) {
	if at.IsZero() || cleanAt.After(at) || replaced(s.last.attached, s.attached) {
		return
	}

	if s.volume == nil || !s.volume.ExposesRawDevice() {
		s.add(health.FilesystemErrors, foreignWrite+checkIt)

		return
	}

	if left := s.prober.config.Monitoring.ioErrorHeldFor(at); left > 0 {
		s.add(health.IOErrors, foreignWrite+"stage it again")
		s.probeAgainAfter(left)
	}
}

// checkFindings returns the findings of a volume's last check. The volume is nil where it is
// not in use.
func checkFindings(check *fsck.Result, volume *staged.Volume, period time.Duration, now time.Time) []health.Entry {
	var found []health.Entry

	if check.Verdict == fsck.VerdictDamaged {
		found = append(found, health.NewEntry(health.FilesystemCorrupted,
			"a check has found damage; back up its files and repair its filesystem by hand"))
	}

	// A volume that several nodes read is not written, and thus not checked. One that a guest
	// may write cannot be checked.
	if volume != nil && (volume.SharedByReaders() || volume.IsDirect()) {
		return found
	}

	if period > 0 && !check.CleanAt.IsZero() && now.Sub(check.CleanAt) > 2*period {
		found = append(found, health.NewEntry(health.CheckOverdue,
			"no check of its filesystem has succeeded for twice the time between two (--check-period)"))
	}

	return found
}

// canBeChecked reports whether the volume in use has a filesystem that checks are recorded of.
func canBeChecked(v *staged.Volume) bool { return v != nil && v.IsMountedImage() && !v.Ephemeral }

// resize returns the interval of this process's last attempt to make the image larger, which
// may have failed.
func resize(in *pool.Pool, v *staged.Volume) growth {
	if in == nil {
		return growth{}
	}

	at := in.Images.LastResized(v.ObjectID())

	return growth{after: at.Add(-growthSettleTime), until: at.Add(growthSettleTime)}
}

package node

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/health/events"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
)

const (
	// What a full filesystem can have left that nobody gets: a thousandth, but not
	// less than what an XFS keeps, and not so much that it is worth having.
	fullPart  = 1000
	fullLeast = 64 << 10
	fullMost  = 1 << 20
	// growthEcho is for how long after an image has grown writes to it are taken
	// for the growth's.
	growthEcho = 2 * time.Second
)

// mounted looks at the mounted filesystem.
func (l *look) mounted(context.Context) error {
	if l.point.ID == 0 {
		return nil
	}

	if err := l.writable(); err != nil || l.root == nil {
		return err
	}

	usage, err := mount.UsageOf(l.root)
	if errors.Is(err, unix.EIO) {
		l.stopped()

		return nil
	}

	if err != nil {
		return err
	}

	l.full(usage)

	if !l.use.IsImage() || l.attached == nil {
		return nil
	}

	l.usage = usageFrom(usage)
	l.filesystem = usage.Filesystem
	l.mark()

	return l.counted()
}

// writable looks whether the filesystem has stopped writing. Only the options of
// the superblock tell that of ext4, statfs does not.
func (l *look) writable() error {
	if l.point.HasSuperOption("shutdown") {
		l.stopped()
	}

	if l.point.HasSuperOption("emergency_ro") {
		l.found(health.ReadOnlyRemount, "an error has made its filesystem read-only; see the kernel's log, unstage it and stage it anew")

		return nil
	}

	asked, err := readOnlyFlag(l.use.Capability)
	if err == nil && l.point.SuperReadOnly && !asked && !l.use.IsReadOnly() {
		l.unsettled = true
		l.found(health.ReadOnlyRemount, "its filesystem is read-only by now; see the kernel's log, unstage it and stage it anew")
	}

	return err
}

// bytesExhausted and inodesExhausted say whether nothing is left to be had. A
// filesystem without a number of inodes has none at all.
func bytesExhausted(usage mount.Usage) bool {
	return usage.Bytes.Total > 0 && usage.Bytes.Available < min(max(usage.Bytes.Total/fullPart, fullLeast), fullMost)
}

func inodesExhausted(usage mount.Usage) bool {
	return usage.Inodes.Total > 0 && usage.Inodes.Available <= 0
}

// contradicts says whether a filesystem's usage of now and a condition of before do
// not agree on whether it is full.
func contradicts(usage mount.Usage, record *health.Record) bool {
	return bytesExhausted(usage) != record.Has(health.OutOfCapacity) ||
		inodesExhausted(usage) != record.Has(health.InodesExhausted)
}

// full looks at what is left to be had.
func (l *look) full(usage mount.Usage) {
	if bytesExhausted(usage) {
		message := "it is full; delete files, or expand it"
		if !l.use.IsImage() {
			message = "its pool is full; delete files or volumes, or grow the pool"
		}

		l.found(health.OutOfCapacity, message)
	}

	if inodesExhausted(usage) {
		l.found(health.InodesExhausted, "no inode is left: it takes no more files; delete some, or expand it")
	}
}

func usageFrom(usage mount.Usage) *health.Usage {
	return &health.Usage{Bytes: health.Amount(usage.Bytes), Inodes: health.Amount(usage.Inodes)}
}

// mark has the kernel tell of the errors of an ext4; others tell none.
func (l *look) mark() {
	if l.service.config.MarkFilesystem == nil || l.use.FSType() != filesystem.Ext4 {
		return
	}

	if err := l.service.config.MarkFilesystem(l.root); err != nil {
		l.service.config.Log.Debug("errors of a filesystem are seen by relists only", "volume", l.subject.id, "error", err)
	}
}

// counted looks at the errors that the kernel has counted since the filesystem
// was last found clean.
func (l *look) counted() error {
	counted, err := filesystem.ReadErrors(l.use.FSType(), l.attached.number, l.root)
	if err != nil {
		return err
	}

	if l.subject.check != nil && counted.Count <= l.subject.check.Errors || counted.Count == 0 {
		return nil
	}

	isBtrfs := l.use.FSType() == filesystem.Btrfs

	switch {
	case counted.Corrupted:
		l.found(health.FilesystemCorrupted, "the kernel has found its filesystem corrupted; back up what is left, check and repair it")
	case !isBtrfs:
		l.found(health.FilesystemErrors, "the kernel has counted errors of its filesystem; check it (touchstone check)")
	}

	if isBtrfs && counted.IO {
		l.found(health.IOErrors, "its device has failed requests; see the kernel's log and the pool's disks")
	}

	return nil
}

// told adds what events and checks have told.
func (l *look) told() {
	cleanAt := time.Time{}

	if check := l.subject.check; check != nil {
		// A time in the future is from before the clock was set back, and hides no error.
		if !check.CleanAt.After(time.Now()) {
			cleanAt = check.CleanAt
		}

		l.checked(check)
	}

	known := l.service.evidence.of(l.subject.id)

	if left := l.service.failing(known.ioErrorAt); left > 0 && cleanAt.Before(known.ioErrorAt) && l.sameAttachment() {
		l.found(health.IOErrors, "its device has failed requests; see the kernel's log and the pool's disks")
		l.lookAgain(left)
	}

	l.foreign(known.writtenAt, cleanAt)
}

// foreign adds that somebody else has written the image, unless the write turns out
// to be the driver's or the device's own.
func (l *look) foreign(at, cleanAt time.Time) {
	if at.IsZero() || cleanAt.After(at) || !l.sameAttachment() {
		return
	}

	if l.growth.explains(at) || l.sizing().explains(at) || l.device != nil && !l.device.DirectIO && events.LoopWritesTold() {
		l.service.evidence.explained(l.subject.id, at)

		return
	}

	const message = "another program has written its image while it was in use; "

	if l.use == nil || !l.use.ExposesRawDevice() {
		l.found(health.FilesystemErrors, message+"check it (touchstone check)")

		return
	}

	if left := l.service.failing(at); left > 0 {
		l.found(health.IOErrors, message+"stage it anew")
		l.lookAgain(left)
	}
}

// sizing is the time of an attempt of this process to make the image larger, which
// may have failed.
func (l *look) sizing() growth {
	if l.pool == nil {
		return growth{}
	}

	at := l.pool.LastResized(l.use.VolumeID)

	return growth{after: at.Add(-growthEcho), until: at.Add(growthEcho)}
}

// sameAttachment says whether events told of what is attached now.
func (l *look) sameAttachment() bool {
	was := l.before.attached

	return was == nil || l.attached == nil || was.sequence == l.attached.sequence
}

// checked adds what the last check of the filesystem means.
func (l *look) checked(check *fsck.Record) {
	if check.Verdict == fsck.VerdictDamaged {
		l.found(health.FilesystemCorrupted, "a check has found damage; back up what is left and repair its filesystem by hand")
	}

	// What several nodes read has not been written since, and is not checked. What a
	// guest may write can't be.
	if l.use != nil && (l.use.SharedByReaders() || l.use.IsDirect()) {
		return
	}

	if l.period > 0 && !check.CleanAt.IsZero() && time.Since(check.CleanAt) > 2*l.period {
		l.found(health.CheckOverdue, "no check of its filesystem has succeeded for twice the time between two (--check-period)")
	}
}

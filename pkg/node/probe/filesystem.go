package probe

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// A filesystem is full when less than a thousandth of it is available, at least minFullBytes
// (an XFS keeps that much in reserve) and at most maxFullBytes (more is worth using).
const (
	fullFraction = 1000
	minFullBytes = 64 << 10
	maxFullBytes = 1 << 20
)

// probeFilesystem probes the mounted filesystem, if there is one.
func (s *probeState) probeFilesystem(context.Context) error {
	s.probeWritable()

	if s.root == nil {
		return nil
	}

	usage, err := mount.UsageOf(s.root)
	if errors.Is(err, unix.EIO) {
		s.addShutDown()

		return nil
	}

	if err != nil {
		return err
	}

	s.addExhausted(usage, s.volume.Parameters.Backing.HasFilesystem())

	if !s.volume.Parameters.Backing.HasFilesystem() {
		return nil
	}

	s.usage = UsageFrom(usage)
	s.filesystem = usage.Filesystem

	if err := s.prober.config.Monitoring.requestErrorEvents(s.volume, s.root); err != nil {
		s.prober.config.Log.Debug("only relists find the errors of a filesystem", "volume", s.view.id, "error", err)
	}

	return s.probeErrorCount()
}

// probeWritable finds out whether the filesystem has stopped writing. An ext4 shows that in
// the options of its superblock only, and not in statfs.
func (s *probeState) probeWritable() {
	if s.point.HasSuperOption("shutdown") {
		s.addShutDown()
	}

	if s.point.HasSuperOption("emergency_ro") {
		s.add(health.ReadOnlyRemount, "an error has made its filesystem read-only; see the kernel's log, unstage it and stage it again")

		return
	}

	if s.point.SuperReadOnly && !s.volume.MountOptions().ReadOnly() {
		s.unsettled = true
		s.add(health.ReadOnlyRemount, "its filesystem was made read-only; see the kernel's log, unstage it and stage it again")
	}
}

// bytesExhausted reports whether no space is left in the filesystem.
func bytesExhausted(usage mount.Usage) bool {
	return usage.Bytes.Total > 0 && usage.Bytes.Available < min(max(usage.Bytes.Total/fullFraction, minFullBytes), maxFullBytes)
}

// inodesExhausted reports whether no inode is left. A filesystem without a limit has a total
// of 0.
func inodesExhausted(usage mount.Usage) bool {
	return usage.Inodes.Total > 0 && usage.Inodes.Available <= 0
}

// Contradicts reports whether a filesystem's current usage and an earlier condition disagree
// about whether it is full.
func Contradicts(usage mount.Usage, record *health.Record) bool {
	return bytesExhausted(usage) != record.Has(health.OutOfCapacity) ||
		inodesExhausted(usage) != record.Has(health.InodesExhausted)
}

// UsageFrom returns the present usage of a filesystem as reports have it.
func UsageFrom(usage mount.Usage) *health.Usage {
	return &health.Usage{Bytes: health.Amount(usage.Bytes), Inodes: health.Amount(usage.Inodes), At: time.Now()}
}

// requestErrorEvents requests events about the errors of an ext4, the only filesystem that
// reports them (FAN_FS_ERROR).
func (m Monitoring) requestErrorEvents(v *staged.Volume, root *os.File) error {
	if m.MarkFilesystem == nil || v.FSType() != filesystem.Ext4 {
		return nil
	}

	return m.MarkFilesystem(root)
}

package probe

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
)

// probeBacking compares the volume's pool object with what is in use. For an image it holds
// a slot of the pool: reading the size of a loop device makes the kernel stat the image.
func (s *probeState) probeBacking(ctx context.Context) error {
	if s.volume.Parameters.Backing.HasDevice() {
		release, err := s.prober.pools.Acquire(ctx, s.volume.Parameters.Pool)
		if err != nil {
			return err
		}
		defer release()
	}

	if err := s.probeMountedDevice(); err != nil {
		return err
	}

	if s.view.check != nil {
		s.checkPeriod = s.prober.config.Checker.PeriodOf(s.view.check)
	}

	info, err := s.pool.Stat(s.volume.ObjectID(), s.volume.Parameters.Backing)
	if errors.Is(err, pool.ErrMissing) {
		s.addLostBacking(s.volume.Parameters.Backing, movedOrDeleted, remedyOfLost(s.prober.config.Loops, s.attached))

		return nil
	}

	if err != nil {
		return err
	}

	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}

	identity := loop.Identity{Device: stat.Dev, Inode: stat.Ino}

	if s.volume.Parameters.Backing.HasDevice() {
		s.compareImage(identity, info)

		return nil
	}

	if err := s.compareDirectory(identity); err != nil {
		return err
	}

	return s.confine()
}

// confine has the size limit of a directory count all files in it, and reports for a while that some
// have evaded it.
func (s *probeState) confine() error {
	err := s.pool.Directories.Confine(s.volume.ObjectID())
	if left := s.pool.Directories.LimitEvadedFor(s.volume.ObjectID()); left > 0 {
		s.add(health.SizeLimitEvaded, pool.LimitEvaded)
		s.probeAgainAfter(left)
	}

	return err
}

// probeMountedDevice reads the size of the device before that of the image is read, so that
// an image that grows meanwhile never seems too short.
func (s *probeState) probeMountedDevice() error {
	if s.attached == nil || s.device != nil {
		return nil
	}

	device, attached, err := s.prober.config.Loops.Status(s.attached.Number)
	if err != nil {
		return err
	}

	if !attached {
		s.addDetached()

		return nil
	}

	s.device, s.attached.deviceBytes = &device, device.SizeBytes

	return nil
}

// movedOrDeleted is what happened to an image or directory that is missing.
const movedOrDeleted = "was moved or deleted"

// putBack is the remedy, unless the data of a deleted image is to be had from its device only.
const putBack = "put it back into the pool, or restore a snapshot"

func remedyOfLost(loops *loop.Loops, attached *Attachment) string {
	if attached == nil {
		return putBack
	}

	// Zero for one that is detached or unknown.
	now, _, _ := loops.Attachment(attached.Number)
	if !now.BackingDeleted || now.Sequence != attached.Sequence {
		return putBack
	}

	return "copy its device before it is unmounted: touchstone ctl volume rescue VOLUME FILE"
}

// compareDirectory compares the pool's directory with the one that is mounted.
func (s *probeState) compareDirectory(identity loop.Identity) error {
	if s.root == nil {
		return nil
	}

	mounted, err := loop.IdentityOf(s.root)
	if err != nil || mounted == identity {
		return err
	}

	s.addLostBacking(volume.BackingDirectory, "was replaced by another one", putBack)

	return nil
}

// compareImage compares the pool's image with the one that is attached, and with its size
// at the last probe.
func (s *probeState) compareImage(identity loop.Identity, info fs.FileInfo) {
	s.imageBytes, s.growth = info.Size(), growthSince(s.last.observation, info.Size(), time.Now())

	switch {
	case s.device == nil:
	case s.device.Backing != identity:
		s.addLostBacking(volume.BackingImage, "was replaced by another file", remedyOfLost(s.prober.config.Loops, s.attached))
	case info.Size() < s.device.SizeBytes:
		s.addTruncated("its device")
	case info.Size() < s.registered.CapacityBytes:
		s.addTruncated("the volume")
	}
}

func (s *probeState) addTruncated(than string) {
	s.unsettled = true
	s.add(health.BackingFileTruncated, "its image is shorter than "+than+": data is lost; restore a snapshot")
	s.prober.config.suspect(s.view, health.FilesystemErrors, fsck.Truncated, s.at)
}

// growthSince returns the last growth of an image that now has that size.
func growthSince(last observation, imageBytes int64, now time.Time) growth {
	if last.imageBytes > 0 && imageBytes > last.imageBytes {
		return growth{after: last.at, until: now.Add(growthSettleTime)}
	}

	return last.growth
}

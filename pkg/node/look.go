package node

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// place is where the volume has to be mounted, and how.
type place struct {
	path     string
	target   bool
	readOnly bool
}

// expected are the places of the volume: first where it is staged.
func (l *look) expected() ([]place, error) {
	var all []place

	readOnly := l.use.IsReadOnly()

	if !l.use.ExposesRawDevice() && !l.use.Ephemeral {
		asked, err := readOnlyFlag(l.use.Capability)
		if err != nil {
			return nil, err
		}

		all = append(all, place{path: l.use.StagingPath, readOnly: readOnly || asked})
	}

	for _, publication := range l.use.Publications {
		asked, err := readOnlyFlag(publication.Capability)
		if err != nil {
			return nil, err
		}

		all = append(all, place{path: publication.TargetPath, target: true, readOnly: readOnly || publication.ReadOnly || asked})
	}

	return all, nil
}

// readOnlyFlag says whether the mount flags ask for reading only.
func readOnlyFlag(asked volume.Capability) (bool, error) {
	if len(asked.MountFlags) == 0 {
		return false, nil
	}

	options, err := mount.ParseFlags(asked.MountFlags)

	return options.ReadOnly(), err
}

// places looks whether the volume is mounted wherever it has to be.
func (l *look) places(context.Context) error {
	all, err := l.expected()
	if err != nil {
		return err
	}

	for _, each := range all {
		if err := l.at(each); err != nil {
			return err
		}
	}

	return nil
}

func (l *look) at(expected place) error {
	l.mounts[expected.path] = seen{}

	held, err := l.service.places.Target(expected.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, mount.ErrSymlink) || errors.Is(err, mount.ErrWrongType) {
		l.unmounted(expected, "not mounted any more")

		return nil
	}

	if err != nil {
		return err
	}
	defer held.Close()

	point, mounted, err := held.Mounted()
	if err != nil {
		return err
	}

	if !mounted {
		l.unmounted(expected, "not mounted any more")

		return nil
	}

	ours, err := l.ours(expected.path, &point)
	if err != nil {
		return err
	}

	if !ours {
		l.unmounted(expected, "hidden by another mount")

		return nil
	}

	err = l.enter(held, point)
	if errors.Is(err, fs.ErrNotExist) {
		l.unmounted(expected, "not mounted any more") // since a moment ago

		return nil
	}

	l.mounts[expected.path] = seen{id: point.ID, traits: traitsOf(&point)}

	if !l.use.ExposesRawDevice() && point.ReadOnly && !expected.readOnly && !point.SuperReadOnly {
		l.found(health.ReadOnlyRemount, "somebody has made its mount read-only; stage or publish it anew: "+expected.path)
	}

	return err
}

func (l *look) unmounted(expected place, how string) {
	l.unsettled = true

	cure := "; stage it anew: "
	if expected.target {
		cure = "; start its pod anew: "
	}

	l.found(health.VolumeUnmounted, how+cure+expected.path)
}

// ours says whether what is mounted is the volume, and finds its device. A mount
// that was the volume's is so still, whatever its image is called by now.
func (l *look) ours(at string, point *mount.Point) (bool, error) {
	was := l.before.mounts[at].id == point.ID

	if !l.use.IsImage() {
		root := strings.TrimSuffix(point.Root, "//deleted")

		return was || path.Base(root) == l.use.VolumeID, nil
	}

	if l.use.IsDirect() {
		return isDirectMount(l.use, *point), nil
	}

	number, isLoop := loopNumber(*point)
	if !isLoop {
		return false, nil
	}

	if l.use.Capability.Block {
		// Whether it has the image still was looked at.
		return l.service.devices.had(l.use.VolumeID, number), nil
	}

	if l.attached != nil {
		return l.attached.number == number, nil
	}

	if known := l.before.attached; was && known != nil && known.number == number {
		// What is mounted keeps its device.
		l.attached = &attachment{number: number, sequence: known.sequence}

		return true, nil
	}

	attached, ok, err := l.service.loops.Attachment(number)
	if err != nil || !ok {
		return false, err
	}

	if !was && !l.before.attached.same(number, attached.Sequence) {
		ok, err = l.service.hasImage(l.use, number)
	}

	if ok {
		l.attached = &attachment{number: number, sequence: attached.Sequence}
	}

	return ok, err
}

// enter opens the root of the first mount that can be opened.
func (l *look) enter(held *mount.Target, point mount.Point) error {
	if l.use.ExposesRawDevice() || l.root != nil || l.point.ID != 0 {
		return nil
	}

	leave, ok := l.service.visits.enter(l.use.VolumeID)
	if !ok {
		return health.ErrKeep
	}

	l.leave = leave
	root, err := held.OpenRoot(point)

	switch {
	case errors.Is(err, unix.EIO):
		// Of an XFS that has shut down it is all there is to see.
		l.stopped()
	case err != nil:
		return err
	}

	l.root, l.point = root, point

	return nil
}

func (l *look) stopped() {
	l.found(health.DiskFailure, "its filesystem has shut down; see the kernel's log, unstage it and stage it anew")
}

// blocks looks at the devices of a raw-block or direct volume.
func (l *look) blocks(ctx context.Context) error {
	leave, err := l.service.gates.enter(ctx, l.use.Parameters.Pool)
	if err != nil {
		return err
	}
	defer leave()

	got, err := l.service.devices.sought(l.use.VolumeID)
	if err != nil {
		return err
	}

	if got.readOnly != none {
		if _, err := l.block(got.readOnly, got.readOnlySequence); err != nil {
			return err
		}
	}

	vitals, err := l.block(got.staged, got.stagedSequence)
	if err != nil || vitals == nil {
		return err
	}

	l.device = vitals
	l.attached = &attachment{number: got.staged, sequence: vitals.Sequence, deviceBytes: vitals.SizeBytes}
	l.usage = &health.Usage{Bytes: health.Amount{Total: vitals.SizeBytes}}

	return nil
}

// block returns nil for a device that the volume has no more, be it that another
// image has its number.
func (l *look) block(number int, sequence uint64) (*loop.BasicStatus, error) {
	if number == none {
		l.detached()

		return nil, nil //nolint:nilnil // documented: the entry says it
	}

	vitals, attached, err := l.service.loops.BasicStatus(number)
	if err != nil {
		return nil, err
	}

	if !attached || vitals.Sequence != sequence {
		l.detached()

		return nil, nil //nolint:nilnil // as above
	}

	return &vitals, nil
}

// revoke is the one thing that a look does not leave to others: until it is done, a
// pod may be given another volume.
func (l *look) revoke(ctx context.Context) error {
	for _, publication := range l.use.Publications {
		lost, err := l.service.shownLost(l.use, publication)
		if err != nil {
			return err
		}

		if lost {
			return l.service.revokeLost(ctx, l.use.VolumeID)
		}
	}

	return nil
}

func (l *look) detached() {
	l.unsettled = true
	l.found(health.DeviceMissing, "its image was detached from its loop device; unpublish and unstage it, then stage it anew")
}

// backing looks at what the pool has in the volume's place. The kernel asks the
// image, too, when it is asked about the device.
func (l *look) backing(ctx context.Context) error {
	if l.use.IsImage() {
		leave, err := l.service.gates.enter(ctx, l.use.Parameters.Pool)
		if err != nil {
			return err
		}
		defer leave()
	}

	if err := l.vitals(); err != nil {
		return err
	}

	if l.subject.check != nil {
		l.period = l.service.checker.PeriodOf(l.subject.check)
	}

	info, err := l.pool.Stat(l.use.VolumeID, l.use.Parameters.Backing)
	if errors.Is(err, pool.ErrMissing) {
		l.lost("was moved or deleted")

		return nil
	}

	if err != nil {
		return err
	}

	return l.compare(info)
}

// vitals asks for the device's size before anybody asks for the image's, so that
// an image that grows is never too short.
func (l *look) vitals() error {
	if l.attached == nil || l.device != nil {
		return nil
	}

	vitals, attached, err := l.service.loops.BasicStatus(l.attached.number)
	if err != nil {
		return err
	}

	if !attached {
		l.detached()

		return nil
	}

	l.device, l.attached.deviceBytes = &vitals, vitals.SizeBytes

	return nil
}

func (l *look) lost(how string) {
	l.unsettled = true

	if l.use.IsImage() {
		l.found(health.BackingFileMissing, "its image "+how+"; put it back into the pool, or restore a snapshot")

		return
	}

	l.found(health.VolumeNotFound, "its directory "+how+"; put it back into the pool, or restore a snapshot")
}

// compare looks whether what the pool has is what is in use.
func (l *look) compare(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}

	has := loop.Identity{Device: stat.Dev, Inode: stat.Ino}

	if !l.use.IsImage() {
		if l.root == nil {
			return nil
		}

		used, err := loop.IdentityOf(l.root)
		if err == nil && used != has {
			l.lost("was replaced by another one")
		}

		return err
	}

	l.imageBytes, l.growth = info.Size(), l.before.growth
	if l.before.imageBytes > 0 && l.imageBytes > l.before.imageBytes {
		l.growth = growth{after: l.before.at, until: time.Now().Add(growthEcho)}
	}

	switch {
	case l.device == nil:
	case l.device.Backing != has:
		l.lost("was replaced by another file")
	case info.Size() < l.device.SizeBytes:
		l.unsettled = true
		l.found(health.BackingFileTruncated, "its image is shorter than its device: data is lost; restore a snapshot")
	}

	return nil
}

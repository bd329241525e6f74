package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/blockdev"
	"github.com/touchstone-csi/touchstone/pkg/directassign"
	"github.com/touchstone-csi/touchstone/pkg/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/mount"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// A direct volume is not mounted here but in a virtual machine, the guest. Its
// device is attached to stay, as that of raw block is; what is at the target path
// only says so to the machine's runtime. From its publication on the guest may
// write to the filesystem at any time, so that nothing here reads it, checks it,
// mounts it or grows it until nobody can have it any more.

// DirectConfig is how guests are told, and asked.
type DirectConfig struct {
	// Root is where Kata looks for what is assigned.
	Root *directassign.Root
	// Guest is who asks the guests.
	Guest *directassign.Guest
	// HostPaths are what the driver's paths are for Kata.
	HostPaths directassign.HostPaths
}

const (
	// directPrefix is what the mount table shows as the source of what is at a
	// direct volume's target path, before the volume's id: by it the publication is
	// found without any record.
	directPrefix = "touchstone/"
	// pluginFile is the one file in there.
	pluginFile = "csiPlugin.json"
	memory     = "tmpfs"
)

func directSource(volumeID string) string { return directPrefix + volumeID }

func (u *Use) showsDirect(point mount.Point) bool {
	return point.FSType == memory && point.Source == directSource(u.VolumeID)
}

// stageDirect makes the volume's filesystem fit for a guest and attaches its
// device, last: as long as that has not been done, it is not staged.
func (s *Service) stageDirect(ctx context.Context, use *Use) error {
	if err := s.checkNoGuest(use); err != nil {
		return err
	}

	made, err := filesystem.ByName(use.fsType(), s.config.Run)
	if err != nil {
		return rpc.Invalid("volume_capability: %w", err)
	}

	if err := s.checkFree(use); err != nil {
		return err
	}

	// Before the filesystem is given it: a controller on its own may enlarge the image
	// at any time.
	size, err := s.imageBytes(use)
	if err != nil {
		return err
	}

	fresh, err := s.formatIfBlank(ctx, use, made)

	switch {
	case err != nil:
		return err
	case fresh:
		s.keepFresh(ctx, use)
	default:
		if err := s.fitForGuest(ctx, use, made); err != nil {
			return err
		}
	}

	if err := s.filled(ctx, use, size); err != nil {
		return err
	}

	_, err = s.attachBlock(ctx, use, use.readOnly())

	return err
}

func (s *Service) imageBytes(use *Use) (int64, error) {
	place, err := s.poolOf(use)
	if err != nil {
		return 0, err
	}

	return place.Size(pool.Object{ID: use.VolumeID, Backing: volume.BackingImage})
}

// filled records that the filesystem has that much of the device.
func (s *Service) filled(ctx context.Context, use *Use, bytes int64) error {
	changed := use.clone()
	changed.FilledBytes = bytes

	return s.uses.put(ctx, changed)
}

// fitForGuest checks and grows the filesystem through a device that goes with the
// process, whenever that dies.
func (s *Service) fitForGuest(ctx context.Context, use *Use, used filesystem.Filesystem) (err error) {
	device, err := s.attachImage(ctx, use, false)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, s.detachAfter(ctx, use, device)) }()

	if err := s.makeSound(ctx, use, used, device); err != nil {
		return err
	}

	// What grows only while it is mounted is so where nobody sees it.
	return fill(ctx, used, device, mount.Options{})
}

// detachAfter returns when the device is gone, so that the image can be attached
// anew.
func (s *Service) detachAfter(ctx context.Context, use *Use, device *blockdev.Device) error {
	status, attached, err := s.loops.Status(device.Number)
	err = errors.Join(err, device.Close())

	if attached {
		err = errors.Join(err, s.detached(context.WithoutCancel(ctx), use, status))
	}

	return err
}

// checkNoGuest returns FAILED_PRECONDITION where a guest may have the volume: it
// is published, be it that the record of that was lost, or a runtime was told of
// its device.
func (s *Service) checkNoGuest(use *Use) error {
	points, err := mount.List()
	if err != nil {
		return err
	}

	if at := slices.IndexFunc(points, use.showsDirect); at >= 0 {
		return rpc.Errorf(codes.FailedPrecondition, "it is assigned to a virtual machine at %s; unpublish it there first", points[at].Path)
	}

	assigned, err := s.config.Direct.Root.List()
	if err != nil {
		return err
	}

	return s.checkNotAmong(assigned, use)
}

// checkNotAssigned is the same for a volume that is not a direct one, as far as it
// is known: who makes the runtime's directory unsafe does not keep others from
// being used.
func (s *Service) checkNotAssigned(use *Use) error {
	assigned, err := s.config.Direct.Root.List()
	if err != nil {
		s.config.Log.Debug("it is not known what is assigned to virtual machines", "volume", use.VolumeID, "error", err)

		return nil
	}

	return s.checkNotAmong(assigned, use)
}

func (s *Service) checkNotAmong(assigned []directassign.Entry, use *Use) error {
	for _, each := range assigned {
		if s.isDeviceOf(use, each.Device) {
			return rpc.Errorf(codes.FailedPrecondition,
				"its device %s is assigned to a virtual machine (sandbox %q) at %s; unpublish it there first",
				each.Device, each.Sandbox, each.TargetPath)
		}
	}

	return nil
}

// isDeviceOf says whether a device, named by its path on the host, has the
// volume's image.
func (s *Service) isDeviceOf(use *Use, device string) bool {
	number, isLoop := loopNumber(mount.Point{Source: device})
	if !isLoop {
		return false
	}

	attached, ok := s.loops.Attachment(number)

	return ok && (path.Base(attached.BackingPath) == imageName(use.VolumeID) || s.attachedAs(use.VolumeID, number))
}

// assign publishes a direct volume. What the runtime waits for is there before
// the target path is mounted, which is what makes it published.
func (s *Service) assign(ctx context.Context, use *Use, wanted Publication, place *mount.Place,
	tell func(directassign.Assignment) error,
) error {
	if _, err := place.MakeDir(targetDirectoryMode); err != nil {
		return err
	}

	if err := s.endCheck(ctx, use); err != nil {
		return err
	}

	number, err := s.deviceFor(ctx, use, wanted)
	if err != nil {
		return err
	}

	if err := s.limitNew(ctx, use, wanted); err != nil {
		return err
	}

	given := s.assignment(use, wanted, number)

	plugin, err := given.CSIPlugin()
	if err == nil {
		err = tell(given)
	}

	if err != nil {
		return err
	}

	return show(use, plugin, place)
}

// endCheck ends a check that was begun before the volume was staged. Since then
// there is no other.
func (s *Service) endCheck(ctx context.Context, use *Use) error {
	ctx, cancel := context.WithTimeoutCause(ctx, detachLimit,
		rpc.Errorf(codes.Unavailable, "a check of it does not come to its end; see the health of its pool"))
	defer cancel()

	return s.turns.end(ctx, use.VolumeID, rpc.Errorf(codes.Aborted, "it is given to a virtual machine; check it when it is not in use"))
}

// republishDirect brings back what somebody has taken away of a publication that
// a sandbox has.
func (s *Service) republishDirect(ctx context.Context, use *Use, existing Publication) error {
	at := existing.TargetPath
	if s.mountedAt(use, at) || s.covered(use, at) {
		return errors.Join(s.uncovered(use, existing), s.reassign(use))
	}

	place, err := s.places.Find(at)
	if err != nil {
		return err
	}
	defer place.Close()

	return s.assign(ctx, use, existing, place, s.config.Direct.Root.Restore)
}

// assignment is what the runtime is told.
func (s *Service) assignment(use *Use, publication Publication, number int) directassign.Assignment {
	options := mount.SplitFlags(publication.Capability.MountFlags)

	if publication.ReadOnly || use.readOnly() {
		options = append(slices.DeleteFunc(options, func(flag string) bool { return flag == "rw" || flag == "ro" }), "ro")
	}

	return directassign.Assignment{
		TargetPath: publication.TargetPath, Device: s.config.Direct.HostPaths.Host(s.loops.Path(number)),
		FSType: use.fsType(), Options: options, Group: publication.Capability.MountGroup,
	}
}

// reassign has the runtime told again what it may have lost. What it knows is not
// touched.
func (s *Service) reassign(use *Use) error {
	if !use.direct() {
		return nil
	}

	for _, publication := range use.Publications {
		if s.deviceLost(use, publication) {
			if err := s.revoke(use, publication); err != nil {
				return err
			}

			continue
		}

		given := s.assignment(use, publication, s.numberOf(use, publication))
		if err := errors.Join(s.config.Direct.Root.Restore(given), s.reseal(use, given)); err != nil {
			return fmt.Errorf("tell the runtime of volume %s: %w", use.VolumeID, err)
		}
	}

	return nil
}

// toldNumber is that of the device which a runtime was told of.
func (s *Service) toldNumber(use *Use, publication Publication) (int, bool) {
	if !use.direct() {
		return none, false
	}

	entry, ok, err := s.config.Direct.Root.Get(publication.TargetPath)
	if err != nil || !ok {
		return none, false
	}

	return loopNumber(mount.Point{Source: entry.Device})
}

// withdraw takes back what the runtime was told of a publication.
func (s *Service) withdraw(use *Use, targetPath string) error {
	if use == nil || !use.direct() {
		return nil
	}

	err := s.config.Direct.Root.Remove(targetPath)
	if errors.Is(err, directassign.ErrAssignment) {
		return nil // nothing was told of a path that it refuses
	}

	return err
}

// withdrawLost takes back what a runtime was told of a volume, and no record tells
// of. Unless the volume is staged its devices go, too, which nobody else will ever
// know of: a direct volume is used on one node only.
func (s *Service) withdrawLost(ctx context.Context, id, targetPath string) error {
	entry, ok, err := s.config.Direct.Root.Get(targetPath)
	if err != nil || !ok {
		return nil //nolint:nilerr // of a volume that may never have been a direct one
	}

	lost := &Use{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}}

	if number, isLoop := loopNumber(mount.Point{Source: entry.Device}); !isLoop {
		return nil
	} else if _, attached := s.loops.Attachment(number); attached && !s.isDeviceOf(lost, entry.Device) {
		return nil
	}

	if _, known := s.uses.get(id); !known {
		if err := s.detachLost(ctx, lost); err != nil {
			return err
		}
	}

	return s.config.Direct.Root.Remove(targetPath)
}

func (s *Service) detachLost(ctx context.Context, lost *Use) error {
	attached, err := s.loops.Attachments()
	if err != nil {
		return err
	}

	for _, each := range attached {
		if s.isDeviceOf(lost, s.loops.Path(each.Number)) {
			err = errors.Join(err, s.detach(ctx, lost, each.Number))
		}
	}

	return err
}

// taken says whether a sandbox has the publication, be it that somebody has
// unmounted its target path.
func (s *Service) taken(use *Use, targetPath string) bool {
	if !use.direct() || !s.devices.attached(use.VolumeID) {
		return false
	}

	entry, ok, err := s.config.Direct.Root.Get(targetPath)

	return err == nil && ok && entry.Sandbox != ""
}

// askGuest asks the guest that has the volume how full its filesystem is. The
// answer is a guest's: it may be more than the device has.
func (s *Service) askGuest(ctx context.Context, use *Use, deviceBytes int64) (mount.Usage, error) {
	entry, err := s.assigned(use)
	if err != nil {
		return mount.Usage{}, err
	}

	usage, err := s.config.Direct.Guest.Stats(ctx, entry)
	if err == nil && usage.Bytes.Total > deviceBytes {
		err = fmt.Errorf("%w: it says that the filesystem has %d bytes on a device of %d",
			directassign.ErrNoAnswer, usage.Bytes.Total, deviceBytes)
	}

	if err != nil {
		s.config.Log.Debug("a guest gave no statistics", "volume", use.VolumeID, "error", err)
	}

	return usage, err
}

// assigned is what the runtime knows of the volume's one publication.
func (s *Service) assigned(use *Use) (directassign.Entry, error) {
	publication := use.Publications[0]

	entry, ok, err := s.config.Direct.Root.Get(publication.TargetPath)
	if err == nil && !ok {
		err = fmt.Errorf("%w: what the runtime was told about %s is gone; publish it there again",
			directassign.ErrNoSandbox, publication.TargetPath)
	}

	return entry, err
}

// growDirect lets the filesystem take its device of that size: here while nobody
// can have it, else in the guest. The CO also asks when the pod has just been
// started anew, whose volume was grown when it was staged.
func (s *Service) growDirect(ctx context.Context, use *Use, size int64) error {
	if size <= use.FilledBytes {
		return nil
	}

	if len(use.Publications) == 0 {
		if err := s.growAtRest(ctx, use); err != nil {
			return err
		}

		return s.filled(ctx, use, size)
	}

	err := s.growInGuest(ctx, use, size)
	if err != nil {
		s.config.Log.Warn("a guest did not grow a volume", "volume", use.VolumeID, "bytes", size, "error", err)
	}

	const later = "its device has %d bytes, and its filesystem takes them when it is staged the next time: %w"

	switch {
	case err == nil:
		return s.filled(ctx, use, size)
	case errors.Is(err, directassign.ErrUnimplemented), errors.Is(err, directassign.ErrNoSandbox):
		return rpc.Errorf(codes.FailedPrecondition, "the guest does not grow it; "+later, size, guestCause(err))
	case errors.Is(err, directassign.ErrNoAnswer):
		return rpc.Errorf(codes.Unavailable, "the guest was asked in vain to grow it; try again, or else "+later, size, guestCause(err))
	default:
		return err
	}
}

// errReader is of a guest that can't be asked.
var errReader = fmt.Errorf("%w: it has the volume read-only", directassign.ErrUnimplemented)

func (s *Service) growInGuest(ctx context.Context, use *Use, size int64) error {
	if use.Publications[0].ReadOnly {
		return errReader
	}

	entry, err := s.assigned(use)
	if err != nil {
		return err
	}

	return s.config.Direct.Guest.Resize(ctx, entry, size)
}

// growAtRest is for a volume that is staged and nobody's.
func (s *Service) growAtRest(ctx context.Context, use *Use) error {
	if err := s.checkNoGuest(use); err != nil {
		return err
	}

	used, err := filesystem.ByName(use.fsType(), s.config.Run)
	if err != nil {
		return err
	}

	device, err := s.adopt(ctx, use)
	if err != nil {
		return err
	}
	defer device.Close()

	err = used.GrowUnmounted(ctx, device.Path)
	if errors.Is(err, filesystem.ErrNeedsMount) {
		err = fill(ctx, used, device, mount.Options{})
	}

	if err != nil {
		return fmt.Errorf("grow %s: %w", used.Name(), err)
	}

	return nil
}

// adopt opens the device that the volume has.
func (s *Service) adopt(ctx context.Context, use *Use) (*blockdev.Device, error) {
	bytes, err := s.poolOf(use)
	if err != nil {
		return nil, err
	}

	image, err := bytes.OpenImage(use.VolumeID, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer image.Close()

	device, err := s.loops.Attach(ctx, image, blockdev.AttachOptions{
		Buffered: use.Parameters.BlockSize == volume.SmallBlockSize, BlockSize: use.Parameters.BlockSize, Preferred: none,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", use.VolumeID, err)
	}

	if device.Number != s.devices.get(use.VolumeID).staged {
		return nil, errors.Join(s.detachAfter(ctx, use, device),
			rpc.Errorf(codes.FailedPrecondition, "its device was taken away; unstage it and stage it anew"))
	}

	return device, nil
}

// DirectVolumes lists what is assigned on this node, in the order of target paths.
func (s *Service) DirectVolumes(context.Context) ([]directassign.Listed, error) {
	listed := []directassign.Listed{}

	for _, use := range s.uses.all() {
		if !use.direct() {
			continue
		}

		for _, publication := range use.Publications {
			each, err := s.listed(use, publication)
			if err != nil {
				return nil, rpc.Status(fmt.Errorf("list volume %s: %w", use.VolumeID, err))
			}

			listed = append(listed, each)
		}
	}

	slices.SortFunc(listed, func(a, b directassign.Listed) int { return strings.Compare(a.TargetPath, b.TargetPath) })

	return listed, nil
}

func (s *Service) listed(use *Use, publication Publication) (directassign.Listed, error) {
	entry, _, err := s.config.Direct.Root.Get(publication.TargetPath)
	if err != nil {
		return directassign.Listed{}, err
	}

	number := s.numberOf(use, publication)
	told := s.assignment(use, publication, number)
	each := directassign.Listed{
		VolumeID: use.VolumeID, TargetPath: publication.TargetPath, FSType: told.FSType, Options: append([]string{}, told.Options...),
		ReadOnly: publication.ReadOnly || use.readOnly(), Sandbox: entry.Sandbox,
	}

	if number == none {
		return each, nil
	}

	each.Device = told.Device

	vitals, _, err := s.loops.Vitals(number)
	each.SizeBytes = vitals.SizeBytes

	if each.SizeBytes > use.FilledBytes && !use.readOnly() {
		each.PendingBytes = each.SizeBytes
	}

	return each, err
}

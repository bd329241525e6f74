package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// mountsBelow lists the mount points below root in the order of the mount table, in which a
// mount follows the one that contains its mount point.
func mountsBelow(root string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	var points []string
	for _, mount := range mounts {
		points = append(points, mount.Mountpoint)
	}
	return points, nil
}

// loopsBelow lists the loop devices whose image is below root.
func loopsBelow(root string) ([]loop.Attachment, error) {
	loops, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	return slices.DeleteFunc(loops, func(device loop.Attachment) bool {
		return !strings.HasPrefix(device.BackingPath, root+"/")
	}), err
}

// volumeFilesBelow lists the files of volumes and snapshots in a pool. It omits what stays
// without volumes: the pool's directories, an embedded pool's image, the pool's identity,
// and its controller's lock.
func volumeFilesBelow(pool string) (found []string, err error) {
	own := []string{layout.EmbeddedImage, layout.Identity, layout.ControllerLock}

	err = filepath.WalkDir(pool, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (uuid.Validate(entry.Name()) == nil || !entry.IsDir() && !slices.Contains(own, entry.Name())) {
			found = append(found, path)
		}
		return err
	})
	return found, err
}

// unmountAndDetach unmounts and detaches everything below root. The mounts are unmounted with
// MNT_DETACH, since the image of an attached device keeps the embedded pool's mount busy, and
// detaching waits until the kernel no longer uses them: a volume's filesystem keeps its device
// open, the device its image and so the pool's filesystem, and that a device of its own.
func unmountAndDetach(ctx context.Context, root string) error {
	// Listed first: the path of an image does not begin with root once its mount is gone.
	devices, err := loopsBelow(root)
	if err != nil {
		return err
	}
	mounts, err := mountsBelow(root)
	for _, point := range slices.Backward(mounts) {
		// EINVAL: it was unmounted with one that it is a copy of.
		if unmountErr := unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); !errors.Is(unmountErr, unix.EINVAL) {
			err = cmp.Or(err, unmountErr)
		}
	}

	var detached errgroup.Group
	// A node that /dev lacks is made below root, as the driver does.
	loops := loop.NewLoops(loop.LoopsOptions{DeviceDir: root})
	for _, device := range devices {
		detached.Go(func() error {
			// Another image has the number if unmounting detached the device.
			now, attached, err := loops.Attachment(device.Number)
			if err != nil || !attached || now.Sequence != device.Sequence {
				return err
			}
			return loops.Detach(ctx, device.Number)
		})
	}
	return cmp.Or(err, detached.Wait())
}

// removeRoot unmounts, detaches and removes everything below root. It removes a directory
// only if the mount table shows no mount in it, so that it deletes no data through a mount.
func removeRoot(ctx context.Context, root string, keep bool) error {
	err := unmountAndDetach(ctx, root)
	mounts, listErr := mountsBelow(root)
	if err = cmp.Or(err, listErr, check(len(mounts) == 0, "still mounted: %v", mounts)); err != nil || keep {
		return err
	}
	return os.RemoveAll(root)
}

// noneLeft fails if the list of what is below the path is not empty.
func noneLeft[E any](what string, list func(path string) ([]E, error), name string) func(*demo, context.Context) (string, error) {
	return func(d *demo, _ context.Context) (string, error) {
		found, err := list(d.path(name))

		return "no " + what, cmp.Or(err, check(len(found) == 0, "left behind: %v", found))
	}
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

const (
	loopMajor  = 7
	deviceMode = 0o600
	// unmountRounds is the number of attempts without MNT_DETACH; each unmounts at least
	// the topmost mounts.
	unmountRounds = 10
	unmountPause  = 20 * time.Millisecond
)

var (
	errLeftover   = errors.New("something is left behind")
	errNotMounted = errors.New("nothing is mounted there")
)

// mountsBelow lists the mounts below root in the order of the mount table, in which a mount
// follows the one that contains its mount point.
func mountsBelow(root string) ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return mounts, nil
}

func mountPointsBelow(root string) (paths []string, err error) {
	mounts, err := mountsBelow(root)
	for _, mount := range mounts {
		paths = append(paths, mount.Mountpoint)
	}
	return paths, err
}

// mountAt returns the topmost mount at exactly this path.
func mountAt(path string) (*mountinfo.Info, error) {
	mounts, err := mountsBelow(path)
	for _, mount := range slices.Backward(mounts) {
		if mount.Mountpoint == path {
			return mount, nil
		}
	}
	return nil, errors.Join(err, fmt.Errorf("%s: %w", path, errNotMounted))
}

// loop is a loop device whose image is below the demo's root.
type loop struct {
	number int
	image  string
}

func (l loop) String() string { return fmt.Sprintf("/dev/loop%d on %s", l.number, l.image) }

func loopsBelow(root string) ([]loop, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}

	var found []loop
	for _, file := range files {
		image, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			continue // Detached since it was listed.
		} else if err != nil {
			return nil, fmt.Errorf("read a loop device's backing file: %w", err)
		}

		device := loop{image: strings.TrimSpace(string(image))}
		if _, err := fmt.Sscanf(file, "/sys/block/loop%d/", &device.number); err == nil && strings.HasPrefix(device.image, root+"/") {
			found = append(found, device)
		}
	}
	return found, nil
}

func loopNamesBelow(root string) (names []string, err error) {
	loops, err := loopsBelow(root)
	for _, device := range loops {
		names = append(names, device.String())
	}
	return names, err
}

// volumeFilesBelow lists the files of volumes and snapshots in a pool. It omits what stays
// without volumes: the pool's directories, an embedded pool's image, the pool's identity,
// and its controller's lock.
func volumeFilesBelow(pool string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(pool, func(path string, entry fs.DirEntry, err error) error {
		// A file, or a directory of a volume or snapshot, is not one of the pool's own
		// directories.
		parent := filepath.Base(filepath.Dir(path))
		own := path == filepath.Join(pool, layout.EmbeddedImage) ||
			filepath.Base(path) == layout.ControllerLock || filepath.Base(path) == layout.Identity

		if err == nil && !own &&
			(!entry.IsDir() || parent == layout.Directories || parent == layout.Snapshots || parent == layout.Removing) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the pool: %w", err)
	}
	return found, nil
}

// detach detaches the device. If the device is in use, LOOP_CLR_FD succeeds and the kernel
// detaches it at the last close.
func (l loop) detach(scratch string) error {
	path := fmt.Sprintf("/dev/loop%d", l.number)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		// The driver makes a device node of its own if /dev has none.
		path = filepath.Join(scratch, fmt.Sprintf("loop%d", l.number))
		if err := unix.Mknod(path, unix.S_IFBLK|deviceMode, int(unix.Mkdev(loopMajor, uint32(l.number)))); err != nil {
			return fmt.Errorf("make a node for %s: %w", l, err)
		}
		defer func() { _ = os.Remove(path) }()
	}

	device, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", l, err)
	}
	defer func() { _ = device.Close() }()

	if _, err = unix.IoctlRetInt(int(device.Fd()), unix.LOOP_CLR_FD); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", l, err)
	}
	return nil
}

// unmountAndDetach unmounts and detaches everything below root, in rounds: a volume's mount
// keeps its device open, the device's image keeps the embedded pool's mount busy, and that
// keeps a device of its own.
func unmountAndDetach(ctx context.Context, root string) error {
	for round := 1; ; round++ {
		mounts, err := mountsBelow(root)
		if err != nil {
			return err
		}

		loops, err := loopsBelow(root)
		if err != nil || len(mounts) == 0 && len(loops) == 0 {
			return err
		}

		flags := unix.UMOUNT_NOFOLLOW
		if round >= unmountRounds {
			flags |= unix.MNT_DETACH
		}

		var busy error
		for _, mount := range slices.Backward(mounts) {
			if err := unix.Unmount(mount.Mountpoint, flags); err != nil {
				busy = errors.Join(busy, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
			}
		}
		for _, device := range loops {
			busy = errors.Join(busy, device.detach(root))
		}
		if round > unmountRounds && busy != nil {
			return busy
		}

		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d mounts, %v: %w", len(mounts), loops, ctx.Err()), busy)
		case <-time.After(unmountPause):
		}
	}
}

// removeRoot unmounts, detaches and removes everything below root. It removes a directory
// only if the mount table shows no mount in it, so that it deletes no data through a mount.
func removeRoot(ctx context.Context, root string, keep bool) error {
	if err := unmountAndDetach(ctx, root); err != nil {
		return err
	}

	mounts, err := mountPointsBelow(root)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%w: %v", errLeftover, mounts)
	}
	if keep {
		return nil
	}
	return os.RemoveAll(root)
}

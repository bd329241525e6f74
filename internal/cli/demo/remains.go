package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

const (
	loopMajor  = 7
	deviceMode = 0o600
	// unmountRounds is how often it is tried without force; each round takes away
	// at least the topmost mounts.
	unmountRounds = 10
	sweepPause    = 20 * time.Millisecond
)

var errRemains = errors.New("something is left behind")

// mountsBelow lists the mounts beneath root in the order of the table, in which
// a mount comes after the one that it lies on.
func mountsBelow(root string) ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}

	return mounts, nil
}

// mountAt returns the topmost mount at exactly this path.
func mountAt(path string) (*mountinfo.Info, error) {
	mounts, err := mountsBelow(path)
	if err != nil {
		return nil, err
	}

	for _, mount := range slices.Backward(mounts) {
		if mount.Mountpoint == path {
			return mount, nil
		}
	}

	return nil, fmt.Errorf("%s: %w", path, errNotMounted)
}

var errNotMounted = errors.New("nothing is mounted there")

// loop is a loop device with an image beneath the demo's root.
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
			return nil, fmt.Errorf("read what a loop device holds: %w", err)
		}

		device := filepath.Base(filepath.Dir(filepath.Dir(file)))

		number, err := strconv.Atoi(strings.TrimPrefix(device, "loop"))
		if err == nil && strings.HasPrefix(string(image), root+"/") {
			found = append(found, loop{number, strings.TrimSpace(string(image))})
		}
	}

	return found, nil
}

// volumesBelow lists what lies in the pool's own directories: the pool itself
// and those (images, snapshots, …) stay when all volumes are gone, and so does
// the image that an embedded pool is in, the pool's identity, and the lock of its
// controller.
func volumesBelow(pool string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(pool, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		// The rooms stay: all that is a file, or the directory of a volume or of a
		// snapshot, is not one of them.
		room := filepath.Base(filepath.Dir(path))
		own := path == filepath.Join(pool, layout.EmbeddedImage) ||
			entry.Name() == layout.ControllerLock || entry.Name() == layout.Identity

		if !own && (!entry.IsDir() || room == layout.Directories || room == layout.Snapshots || room == layout.Removing) {
			found = append(found, path)
		}

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the pool: %w", err)
	}

	return found, nil
}

// clear frees the device. With the device still in use the kernel says yes and
// does it later.
func (l loop) clear(scratch string) error {
	path := fmt.Sprintf("/dev/loop%d", l.number)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		// The driver may have used a node of its own where /dev had none.
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

	_, err = unix.IoctlRetInt(int(device.Fd()), unix.LOOP_CLR_FD)
	_ = device.Close()

	if err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", l, err)
	}

	return nil
}

// unmountAll takes away mounts, the last come first.
func unmountAll(mounts []*mountinfo.Info, flags int) error {
	var busy []error

	for _, mount := range slices.Backward(mounts) {
		if err := unix.Unmount(mount.Mountpoint, flags); err != nil {
			busy = append(busy, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
		}
	}

	return errors.Join(busy...)
}

// takeAway unmounts and detaches all that is beneath root, in rounds: a volume's
// mount holds its device, the device's image holds the embedded pool's mount, and
// that a device of its own.
func takeAway(ctx context.Context, root string) error {
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

		busy := unmountAll(mounts, flags)
		for _, device := range loops {
			busy = errors.Join(busy, device.clear(root))
		}

		if round > unmountRounds && busy != nil {
			return busy
		}

		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d mounts, %v: %w", len(mounts), loops, ctx.Err()), busy)
		case <-time.After(sweepPause):
		}
	}
}

// sweep takes away whatever is beneath root, whoever left it there. A
// directory is only removed when the mount table shows nothing in it any more:
// never through a mount into somebody's data.
func sweep(ctx context.Context, root string, keep bool) error {
	if err := takeAway(ctx, root); err != nil {
		return err
	}

	mounts, err := mountsBelow(root)
	if err != nil {
		return err
	}

	if len(mounts) > 0 {
		return fmt.Errorf("%w: %s is mounted again", errRemains, mounts[0].Mountpoint)
	}

	if keep {
		return nil
	}

	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("remove the demo's directory: %w", err)
	}

	return nil
}

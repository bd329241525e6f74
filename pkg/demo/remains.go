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
)

const (
	loopMajor  = 7
	deviceMode = 0o600
	// unmountRounds bounds how often the table is read again; each round takes
	// away at least the topmost mounts, and the last one takes them by force.
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

func (l loop) sysfs() string { return fmt.Sprintf("/sys/block/loop%d/loop", l.number) }

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
// and those (images, directories, …) stay when all volumes are gone.
func volumesBelow(pool string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(pool, func(path string, entry fs.DirEntry, err error) error {
		// The rooms stay: all that is a file, or the directory of a volume, is not
		// one of them.
		if err == nil && (!entry.IsDir() || filepath.Base(filepath.Dir(path)) == "directories") {
			found = append(found, path)
		}

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the pool: %w", err)
	}

	return found, nil
}

// detach frees the device and waits until it really is free: with the device
// still in use the kernel says yes and does it later.
func (l loop) detach(ctx context.Context, scratch string) error {
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

	for {
		if _, err := os.Stat(l.sysfs()); errors.Is(err, fs.ErrNotExist) {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("detach %s: %w", l, ctx.Err())
		case <-time.After(sweepPause):
		}
	}
}

// unmountAll takes away every mount beneath root, the last come first.
func unmountAll(root string) error {
	for round := 1; ; round++ {
		mounts, err := mountsBelow(root)
		if err != nil || len(mounts) == 0 {
			return err
		}

		flags := unix.UMOUNT_NOFOLLOW
		if round == unmountRounds {
			flags |= unix.MNT_DETACH
		}

		var busy []error

		for _, mount := range slices.Backward(mounts) {
			if err := unix.Unmount(mount.Mountpoint, flags); err != nil {
				busy = append(busy, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
			}
		}

		if round == unmountRounds && len(busy) > 0 {
			return errors.Join(busy...)
		}

		if len(busy) > 0 {
			time.Sleep(sweepPause)
		}
	}
}

// sweep takes away whatever is beneath root, whoever left it there. A
// directory is only removed when the mount table shows nothing in it any more:
// never through a mount into somebody's data.
func sweep(ctx context.Context, root string, keep bool) error {
	if err := unmountAll(root); err != nil {
		return err
	}

	loops, err := loopsBelow(root)
	if err != nil {
		return err
	}

	for _, device := range loops {
		if err := device.detach(ctx, root); err != nil {
			return err
		}
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

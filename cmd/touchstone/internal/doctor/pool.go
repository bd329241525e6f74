package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
)

// poolLocation contains the paths of a pool.
type poolLocation struct {
	// name and directory are the flag's; root is the directory with the volumes: the same, or
	// the mount point of the filesystem embedded in image.
	name, directory, root, image string
}

// locatePool returns the paths of an existing pool. Errors: fs.ErrNotExist,
// embedded.ErrNotMounted, or those of system calls.
func (c *Config) locatePool(name string) (poolLocation, error) {
	s := poolLocation{name: name, directory: c.Pools[name]}

	info, err := os.Stat(s.directory)
	if err != nil {
		return s, err
	}

	if !info.IsDir() {
		return s, &fs.PathError{Op: "open", Path: s.directory, Err: unix.ENOTDIR}
	}

	if s.root, err = embedded.Locate(s.directory); err != nil {
		return s, err
	}

	if s.root != s.directory {
		s.image = filepath.Join(s.directory, layout.EmbeddedImage)
	}

	return s, nil
}

// createUnnamed makes an unnamed file in the pool, in its scratch directory if it has one.
func (s *poolLocation) createUnnamed() (*os.File, error) {
	if file, err := filesystem.CreateUnnamed(filepath.Join(s.root, layout.Scratch)); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}

	return filesystem.CreateUnnamed(s.root)
}

func checkPool(_ context.Context, c *Config, name string) Finding {
	s, err := c.locatePool(name)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return warning(s.directory+" is not there", "the driver makes it at its start; "+
			"if there should be one already, mount its filesystem, or name its directory with --pool")
	case errors.Is(err, embedded.ErrNotMounted) && c.WithoutDriver:
		return ok(s.directory + " has an embedded pool, which the driver mounts at its start")
	case errors.Is(err, embedded.ErrNotMounted):
		return problem(s.directory+" has an embedded pool that is not mounted",
			"start a driver of mode node or all; if one runs, its log says why not, and docs/embedded-pool.md what to do")
	case err != nil:
		return problem(err.Error(), permissionCure(err, "docs/embedded-pool.md says what belongs there; the directory itself has to be one"))
	}

	point, err := mountOf(s.root)
	if err != nil {
		return problem(err.Error(), permissionCure(err, "see what the kernel's log says of its disk"))
	}

	if found := checkStorageMount(s.root, point); found.Verdict != OK {
		return found
	}

	file, err := s.createUnnamed()
	if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return problem("nothing can be written: "+err.Error(), "see who owns it, whether it is mounted read-only, and the kernel's log")
	}

	_ = file.Close() // nil where the pool is full

	if s.image != "" {
		return ok("an embedded " + point.FSType + " in " + s.image)
	}

	return ok(s.directory + " is writable, on " + point.FSType + " of " + point.Source)
}

// mountOf returns the mount that contains a directory.
func mountOf(directory string) (mount.Point, error) { return query(directory, mount.PointOf) }

// usageOf returns the usage of the filesystem that contains a directory.
func usageOf(directory string) (mount.Usage, error) { return query(directory, mount.UsageOf) }

// query opens a directory, without reading it, for the query.
func query[T any](directory string, of func(*os.File) (T, error)) (found T, err error) {
	file, err := os.OpenFile(directory, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return found, err
	}
	defer file.Close()

	return of(file)
}

// checkStorageMount checks whether a mount is suitable for data.
func checkStorageMount(directory string, point mount.Point) Finding {
	switch {
	case point.ReadOnly || point.SuperReadOnly:
		return problem(directory+" is mounted read-only", "remount "+point.Path+
			" for writing; if it became read-only by itself, its disk has failed: see the kernel's log")
	case point.FSType == "overlay":
		return problem(directory+" is in a container's own filesystem, and is deleted with it",
			"mount a directory of the host, or another volume, there (hostPath)")
	case point.FSType == "tmpfs" || point.FSType == "ramfs":
		return warning(directory+" is in memory ("+point.FSType+"): its content is gone after a reboot",
			"put it on a disk, unless it is only for tests")
	default:
		return ok("")
	}
}

// inPool runs a check of an existing pool.
func inPool(run func(context.Context, *Config, poolLocation) Finding) func(context.Context, *Config, string) Finding {
	return func(ctx context.Context, c *Config, name string) Finding {
		s, err := c.locatePool(name)
		if err != nil {
			return skippedWithoutPool(err)
		}

		return run(ctx, c, s)
	}
}

// skippedWithoutPool is the result of checks after checkPool, which reports the cause.
func skippedWithoutPool(err error) Finding {
	return skipped("there is no pool to check: " + err.Error())
}

// A filesystem with less than a twentieth of its inodes available is nearly full.
const fewInodesPart = 20

func checkPoolSpace(_ context.Context, _ *Config, s poolLocation) Finding {
	capacity, err := pool.CapacityOf(s.name, s.root, s.image)
	usage, usageErr := usageOf(s.root)

	if err := cmp.Or(err, usageErr); err != nil {
		return problem(err.Error(), "see what the kernel's log says of its disk")
	}

	return judgeSpace(capacity, usage.Inodes)
}

func judgeSpace(capacity pool.Capacity, inodes mount.Amount) Finding {
	const cure = "delete volumes and snapshots, or enlarge the filesystem"

	seen := fmt.Sprintf("%s of %s available", formatBytes(capacity.Available), formatBytes(capacity.Total))
	if inodes.Total > 0 {
		seen += fmt.Sprintf(", %s of %s inodes", humanize.Comma(inodes.Available), humanize.Comma(inodes.Total))
	}

	switch {
	case capacity.Available == 0 || inodes.Total > 0 && inodes.Available == 0:
		return problem(seen, cure)
	case capacity.NearlyFull() || inodes.Total > 0 && inodes.Available < inodes.Total/fewInodesPart:
		return warning(seen, cure)
	default:
		return ok(seen)
	}
}

func formatBytes(count int64) string { return humanize.IBytes(uint64(max(count, 0))) }

func checkPoolReflink(_ context.Context, c *Config, s poolLocation) Finding {
	instant, err := filecopy.Reflinks(s.root)

	switch {
	case err != nil:
		return skippedWithoutPool(err)
	case instant:
		return ok("files share blocks: snapshots and clones are immediate")
	case c.PoolImageBytes > 0 && c.WithoutDriver:
		return ok("the driver will embed a filesystem whose files share blocks (--pool-image-size)")
	default:
		return warning("files share no blocks: snapshots and clones are copied, and mounted volumes are frozen meanwhile",
			"put the pool on XFS or btrfs, or give --pool-image-size before it has volumes (docs/embedded-pool.md)")
	}
}

// checkPoolDirectories reports how the sizes of directory volumes are limited. It changes nothing.
func checkPoolDirectories(_ context.Context, _ *Config, s poolLocation) Finding {
	root, err := os.OpenRoot(s.root)
	if err != nil {
		return skippedWithoutPool(err)
	}
	defer root.Close()

	directories, err := quota.Open(root, true)
	if err != nil {
		return skippedWithoutPool(err)
	}
	defer directories.Close()

	support := directories.Support()
	if support.Limited {
		return ok("directory volumes are " + string(support.Kind) + " with quotas, which limit their sizes")
	}

	return ok("directory volumes are " + string(support.Kind) + ": their sizes are not limited: " + support.Reason)
}

const (
	trialBytes = 1 << 20
	blockBytes = 4096
	// trials is the number of loop numbers for concurrent runs of the doctor. They are
	// below those of embedded pools, at the end of the range, which volumes do not reach.
	trials    = 64
	lastTrial = loop.MaxNumber - 1024
	// cleanUpLimit limits the time of cleaning up after a trial.
	cleanUpLimit = 3 * time.Second
)

// checkAttach attaches an unnamed image to a loop device with autoclear.
func checkAttach(ctx context.Context, _ *Config, s poolLocation) Finding {
	if !privileged() {
		return skipped("attaching needs root; see privileges")
	}

	image, err := s.createUnnamed()
	if err != nil {
		return skippedWithoutPool(err)
	}
	defer image.Close()

	if err := image.Truncate(trialBytes); err != nil {
		return skippedWithoutPool(err)
	}

	direct, err := tryAttach(ctx, image)

	switch {
	case err != nil:
		return problem(err.Error(), "see loop-devices and privileges; and what the kernel's log says of the pool's disk")
	case !direct:
		return warning("an image can be attached, but only without direct I/O: its data is cached twice",
			"put the pool on ext4, XFS or btrfs of a disk whose blocks have "+humanize.Comma(blockBytes)+" bytes or less")
	default:
		return ok("an image was attached with direct I/O, written, and detached")
	}
}

// tryAttach attaches the image, verifies that data written to the device is in the image,
// and reports whether the device uses direct I/O.
func tryAttach(ctx context.Context, image *os.File) (direct bool, err error) {
	loops := loop.NewLoops(loop.LoopsOptions{First: lastTrial - trials + 1, Last: lastTrial})

	// AutoClear detaches the device even if this process is killed.
	device, err := loops.Attach(ctx, image, loop.AttachOptions{AutoClear: true, Exclusive: true, PreferredNumber: -1})
	if err != nil {
		return false, err
	}

	direct, err = device.DirectIO, verifyWrite(device, image)

	cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
	defer cancel()

	err = errors.Join(err, device.Close(), loops.Detach(cleanUp, device.Number))

	// It fails harmlessly while another process, such as udev, has the device open.
	_ = loops.Remove(cleanUp, device.Number)

	return direct, err
}

var errNotThere = errors.New("data written to the device is not in the image")

func verifyWrite(device *loop.Device, image *os.File) error {
	written, read := bytes.Repeat([]byte{'T'}, blockBytes), make([]byte, blockBytes)

	_, err := device.File().WriteAt(written, 0)
	if err == nil {
		err = device.File().Sync()
	}

	if err == nil {
		_, err = image.ReadAt(read, 0)
	}

	if err == nil && !bytes.Equal(written, read) {
		err = errNotThere
	}

	return err
}

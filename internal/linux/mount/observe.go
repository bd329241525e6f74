package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// Point is one mount, as the kernel describes it.
type Point struct {
	// ID is the unique id, never used again until the next boot; on kernels
	// before 6.13 the one of mountinfo, which is used again.
	ID uint64
	// Major and Minor are the superblock's device number; 0 is the major of
	// filesystems without one device, btrfs among them: Source has it there.
	Major, Minor uint32
	// Root is the path within the filesystem that is mounted: "/" unless it is
	// a bind of something beneath.
	Root string
	// Source is what was mounted, for a disk its device's path.
	Source string
	FSType string
	// ReadOnly is true for this mount, SuperReadOnly for the whole filesystem.
	// A filesystem that stopped writing because of an error may say neither:
	// ext4 then has "emergency_ro" or "shutdown" among its SuperOptions, an XFS
	// that shut down nothing at all; there Target.Exists answers EIO.
	ReadOnly, SuperReadOnly bool
	// Options are the mount's, as in mountinfo: "rw", "nodev", "relatime".
	Options []string
	// SuperOptions are the filesystem's, the first being "ro" or "rw".
	SuperOptions []string
	// Path is where it is mounted, in the kernel's words: without the symlinks
	// that an allowed directory may have in its path.
	Path string
	// Shared says that what is mounted beneath it appears in its copies in other
	// mount namespaces too, and Slave that what is mounted beneath the original
	// appears here.
	Shared, Slave bool
}

// HasSuperOption says whether the filesystem shows an option, such as
// "emergency_ro".
func (p Point) HasSuperOption(name string) bool { return slices.Contains(p.SuperOptions, name) }

// RootPath returns Root without the suffix of a deleted one. NFS shows "/" as the Root of every
// mount (nfs_show_path), and the path on the server in Source (nfs_show_devname).
func (p Point) RootPath() string {
	root := p.Root
	if p.FSType == "nfs" || p.FSType == "nfs4" {
		_, root, _ = strings.Cut(p.Source, ":/")
		root = "/" + root
	}

	return strings.TrimSuffix(root, "//deleted")
}

// LoopDevice returns the number of the loop device that is mounted here, or whose
// node is bound here.
func (p Point) LoopDevice() (int, bool) {
	if p.Major == loop.Major {
		return int(p.Minor), true
	}

	for _, name := range []string{filepath.Base(p.Source), filepath.Base(p.Root)} {
		if digits, ok := strings.CutPrefix(name, "loop"); ok {
			if number, err := strconv.Atoi(digits); err == nil {
				return number, true
			}
		}
	}

	return 0, false
}

// List returns the whole mount table of this process's namespace. It costs
// about a microsecond for each mount of the machine: for start and for relists.
func List() ([]Point, error) { return newObserver().list() }

// List returns the whole mount table, as the function does. Its IDs compare with those of Mounted, which
// those of the function may not: each may have found another way to read the table.
func (p *Target) List() ([]Point, error) { return p.observer.list() }

// PointOf returns the mount that an open file is on, O_PATH sufficing.
func PointOf(file *os.File) (Point, error) {
	seen := newObserver()

	id, err := seen.idOf(file)
	if err != nil {
		return Point{}, fmt.Errorf("find out the mount of %s: %w", file.Name(), err)
	}

	point, err := seen.byID(id)
	if err != nil {
		return Point{}, fmt.Errorf("describe the mount of %s: %w", file.Name(), err)
	}

	return point, nil
}

// HasStatmount reports whether the kernel (Linux 6.13) describes one mount without listing all of
// them. Without it the results are the same, but slower.
func HasStatmount() bool { return newObserver().statmount }

// Mounted returns the mount that is exactly here, of stacked ones the top one.
// The bool is false when there is none, also when nothing is there at all. It
// also finds mounts whose filesystem fails stat.
func (p *Target) Mounted() (Point, bool, error) {
	// A mount that goes between the two questions makes the second one fail;
	// then what is there now is the answer.
	const enough = 16

	for attempt := 1; ; attempt++ {
		point, mounted, err := p.mountedOnce()
		if !errors.Is(err, errGone) || attempt == enough {
			return point, mounted, p.wrapError("look for a mount at", err)
		}
	}
}

// Layers returns all mounts that are exactly here, also those beneath the top one. It reads the whole mount
// table, but only where something is mounted.
func (p *Target) Layers() ([]Point, error) {
	if _, mounted, err := p.Mounted(); err != nil || !mounted {
		return nil, err
	}

	points, err := p.List()
	if err != nil {
		return nil, err
	}

	// Points have the kernel's paths, and an allowed directory may be a symlink.
	parent, err := os.Readlink(p.link())
	if err != nil {
		return nil, p.wrapError("list the mounts at", err)
	}

	path := filepath.Join(parent, p.name)

	return slices.DeleteFunc(points, func(point Point) bool { return point.Path != path }), nil
}

// OpenRoot opens the root of a mount that Mounted has found here, for reading and
// for ioctls, at a price that does not depend on how many mounts there are.
// fs.ErrNotExist when it is not here any more.
func (p *Target) OpenRoot(point Point) (*os.File, error) {
	root, err := p.OpenDir()
	if err != nil {
		return nil, err
	}

	id, err := p.observer.idOf(root)
	if err == nil && id != point.ID {
		err = fmt.Errorf("%w: something else is mounted there by now", fs.ErrNotExist)
	}

	if err != nil {
		return nil, errors.Join(p.wrapError("open the mount at", err), root.Close())
	}

	return root, nil
}

func (p *Target) mountedOnce() (Point, bool, error) {
	mask := unix.STATX_MNT_ID
	if p.observer.statmount {
		mask = unix.STATX_MNT_ID_UNIQUE
	}

	stat, err := p.statx(mask)

	switch {
	case errors.Is(err, unix.ENOENT):
		return Point{}, false, nil
	case err != nil || stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || stat.Mask&uint32(mask) == 0:
		// The root of an XFS that shut down answers EIO, of a FUSE whose server
		// died ENOTCONN; and kernels before 5.8 do not set the attribute.
		return p.mountedByMountID()
	case stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return Point{}, false, nil
	}

	point, err := p.observer.byID(stat.Mnt_id)

	return point, err == nil, err
}

// mountedByMountID asks the filesystem nothing. The name is one step from its
// parent, so something is mounted there exactly if that step leads to another
// mount.
func (p *Target) mountedByMountID() (Point, bool, error) {
	there, err := p.open(unix.O_PATH)

	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, ErrSymlink):
		return Point{}, false, nil
	case err != nil:
		return Point{}, false, err
	}

	defer func() { _ = there.Close() }()

	parentID, err := mountinfoIDOf(p.parent)
	if err != nil {
		return Point{}, false, err
	}

	id, err := mountinfoIDOf(there)
	if err != nil || id == parentID {
		return Point{}, false, err
	}

	point, err := p.observer.byMountinfoID(id)

	return point, err == nil, err
}

// mountinfoIDOf returns the id, of mountinfo's kind, of the mount that file is on.
func mountinfoIDOf(file *os.File) (int, error) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(file.Fd())))
	if err != nil {
		return 0, fmt.Errorf("read the mount id of %s: %w", file.Name(), err)
	}

	for line := range strings.Lines(string(info)) {
		if id, found := strings.CutPrefix(line, "mnt_id:"); found {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}

	return 0, fmt.Errorf("%w: no mount id in /proc/self/fdinfo", ErrKernelUnsupported)
}

// observer reads the mount table in the way that this kernel supports.
type observer struct {
	// statmount is true from Linux 6.13 on, unless a sandbox forbids it. Before,
	// it lacks the source or the options, and mountinfo is read instead, at a
	// cost that grows with the machine's mounts.
	statmount bool
}

func newObserver() *observer {
	var stat unix.Statx_t

	const mask = unix.STATX_MNT_ID_UNIQUE

	err := unix.Statx(unix.AT_FDCWD, "/", unix.AT_STATX_DONT_SYNC, mask, &stat)
	if err != nil || stat.Mask&mask == 0 {
		return &observer{}
	}

	buffer := newStatmountBuffer()
	// The kernel leaves out bits that it does not know. That a root has neither
	// source nor options does not happen.
	header, err := buffer.query(stat.Mnt_id, statmountSource|statmountOptions)

	return &observer{statmount: err == nil && header.mask&statmountSource != 0}
}

// idOf returns the id, as Point has it, of the mount that file is on.
func (o *observer) idOf(file *os.File) (uint64, error) {
	if !o.statmount {
		id, err := mountinfoIDOf(file)

		return uint64(id), err
	}

	var stat unix.Statx_t

	err := eintr.Retry(func() error {
		return unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &stat)
	})

	return stat.Mnt_id, err
}

func (o *observer) byID(id uint64) (Point, error) {
	if o.statmount {
		buffer := newStatmountBuffer()

		return buffer.point(id)
	}

	return o.byMountinfoID(int(id))
}

func (o *observer) byMountinfoID(id int) (Point, error) {
	if !o.statmount {
		points, err := fromMountinfo(func(info *mountinfo.Info) (skip, stop bool) { return info.ID != id, info.ID == id })
		if err != nil {
			return Point{}, err
		}

		if len(points) == 0 {
			return Point{}, errGone
		}

		return points[0], nil
	}

	ids, err := listmount()
	if err != nil {
		return Point{}, fmt.Errorf("list the mounts: %w", err)
	}

	buffer := newStatmountBuffer()

	for _, unique := range ids {
		header, err := buffer.query(unique, statmountMount)

		switch {
		case errors.Is(err, errGone):
		case err != nil:
			return Point{}, err
		case int(header.mountinfoID) == id:
			return buffer.point(unique)
		}
	}

	return Point{}, errGone
}

func (o *observer) list() ([]Point, error) {
	if !o.statmount {
		return fromMountinfo(nil)
	}

	ids, err := listmount()
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}

	points := make([]Point, 0, len(ids))
	buffer := newStatmountBuffer()

	for _, id := range ids {
		switch point, err := buffer.point(id); {
		case err == nil:
			points = append(points, point)
		case !errors.Is(err, errGone):
			return nil, fmt.Errorf("describe mount %d: %w", id, err)
		}
	}

	return points, nil
}

func fromMountinfo(filter mountinfo.FilterFunc) ([]Point, error) {
	infos, err := mountinfo.GetMounts(filter)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}

	points := make([]Point, 0, len(infos))

	for _, info := range infos {
		point := Point{
			ID:           uint64(info.ID),
			Major:        uint32(info.Major),
			Minor:        uint32(info.Minor),
			Root:         info.Root,
			Source:       info.Source,
			FSType:       info.FSType,
			Options:      splitOptions(info.Options),
			SuperOptions: splitOptions(info.VFSOptions),
			Path:         info.Mountpoint,
			Shared:       strings.Contains(info.Optional, "shared:"),
			Slave:        strings.Contains(info.Optional, "master:"),
		}
		point.ReadOnly = slices.Contains(point.Options, "ro")
		point.SuperReadOnly = slices.Contains(point.SuperOptions, "ro")
		points = append(points, point)
	}

	return points, nil
}

// ListBeneath returns the mounts at a directory and below it, also those that only
// follow from a mount elsewhere. It reads the whole mount table.
func ListBeneath(directory string) (_ []Point, err error) {
	defer errdefs.Wrapf(&err, "look for mounts below %s", directory)

	resolved, err := filepath.EvalSymlinks(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	points, err := List()

	return slices.DeleteFunc(points, func(p Point) bool {
		return p.Path != resolved && !strings.HasPrefix(p.Path, resolved+"/")
	}), err
}

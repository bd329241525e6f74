package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// Directories are the volumes of a pool that are directories.
type Directories struct {
	objects

	// root is the directory that contains them.
	root *os.Root
	// quotas makes, limits and removes the directories of volumes and snapshots.
	quotas quota.Directories
	// evaded has the times at which volumes were last found to have evaded their limits.
	evaded sync.Map
}

// Create creates the volume's directory if it is missing, and limits its size where the
// filesystem supports that. It never lowers the limit of an existing directory.
func (d *Directories) Create(id string, size int64, _ bool) error {
	if err := checkID(id); err != nil {
		return err
	}

	err := d.quotas.Make(d.root, id, volumeRootMode)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = d.Limit(id, size)
	}

	if err != nil {
		return d.spaceError(fmt.Errorf("make directory of volume %s: %w", id, err))
	}

	return nil
}

// Limit raises the size limit of a volume's directory, where it can have one. It is
// durable after Sync. Errors: ErrMissing.
func (d *Directories) Limit(id string, size int64) error {
	return d.within(id, func(directory *os.File) error {
		if err := d.quotas.Limit(directory, size); err != nil {
			return fmt.Errorf("limit the size of volume %s in pool %q: %w", id, d.name, err)
		}

		return d.confine(id, directory)
	})
}

// Confine makes the size limit of a volume's directory count all files in it and no others.
// LimitEvadedFor reports what it has found. Errors: ErrMissing.
func (d *Directories) Confine(id string) error {
	return d.within(id, func(directory *os.File) error { return d.confine(id, directory) })
}

func (d *Directories) confine(id string, directory *os.File) error {
	evaded, err := d.quotas.Confine(directory)

	return d.noteEvaded(id, evaded, err)
}

func (d *Directories) sweep(ctx context.Context, id string) (evaded bool, err error) {
	err = d.within(id, func(directory *os.File) error {
		evaded, err = d.quotas.Sweep(ctx, directory)

		return d.noteEvaded(id, evaded, err)
	})

	return evaded, err
}

// noteEvaded remembers that a volume has evaded its limit, and wraps the error of Confine or Sweep.
func (d *Directories) noteEvaded(id string, evaded bool, err error) error {
	if evaded {
		d.evaded.Store(id, time.Now())
	}

	if err != nil {
		return fmt.Errorf("confine volume %s in pool %q to its size limit: %w", id, d.name, err)
	}

	return nil
}

// within calls do with the root of a volume's directory. Errors: ErrMissing, do's.
func (d *Directories) within(id string, do func(directory *os.File) error) error {
	directory, err := d.Open(directoryOf(id))
	if err != nil {
		return err
	}
	defer directory.Close()

	return do(directory)
}

// RemoveStaleQuotas releases what the kernel keeps for the limits of removed directories, once their
// space is not in use elsewhere any more: the kernel does not.
func (d *Directories) RemoveStaleQuotas(ctx context.Context) error {
	if err := d.quotas.RemoveStale(ctx); err != nil {
		return fmt.Errorf("release quotas of pool %q: %w", d.name, err)
	}

	return nil
}

// LimitEvaded is the finding of a volume while LimitEvadedFor is above 0.
const LimitEvaded = "files in it have evaded its size limit, which counts them again; find the program that does it"

// evasionHold is for how long LimitEvadedFor returns what was found: what it was cannot be seen later.
const evasionHold = 10 * time.Minute

// LimitEvadedFor returns for how long it is still reported that files of the volume have evaded its
// size limit; 0 if they have not.
func (d *Directories) LimitEvadedFor(id string) time.Duration {
	at, _ := d.evaded.Load(id)
	last, _ := at.(time.Time)

	return max(0, evasionHold-time.Since(last))
}

// Grow is Limit and Sync.
func (d *Directories) Grow(id string, growth Growth) error {
	if err := d.Limit(id, growth.To); err != nil {
		return err
	}

	return d.Sync(id)
}

// Sync makes the name of the volume's directory and its size limit durable.
func (d *Directories) Sync(id string) error {
	if err := d.within(id, d.quotas.Sync); err != nil {
		return d.spaceError(fmt.Errorf("sync the directory of volume %s in pool %q: %w", id, d.name, err))
	}

	return d.syncDirectory(d.root)
}

// Capacity returns the size limit of the volume's directory, false for one without. Errors: ErrMissing.
func (d *Directories) Capacity(id string) (bytes int64, limited bool, err error) {
	counted, limited, err := d.Quota(id)

	return counted.LimitBytes, limited, err
}

// EnsureSize has the size limit of the volume's directory count all files in it, and sets a lost one
// again. Errors: ErrMissing.
func (d *Directories) EnsureSize(id string, bytes int64, limited bool) error {
	if _, err := d.Size(directoryOf(id)); err != nil {
		return err
	}

	_, has, err := d.Quota(id)
	if err != nil || has || !limited {
		return err
	}

	return d.Limit(id, bytes)
}

// SizeLimit returns what limits the directory of a new volume.
func (d *Directories) SizeLimit() volume.SizeLimit { return volume.SizeLimitOf(d.Support().Limited) }

// CheckGrowth returns nil: a directory is in the filesystem of its pool.
func (*Directories) CheckGrowth(Object, int64) error { return nil }

// CheckDetached returns nil: a directory has no device.
func (*Directories) CheckDetached(context.Context, string) error { return nil }

// MountsIn is that of Backing.
func (d *Directories) MountsIn(object Object) ([]mount.Point, error) {
	return mount.ListBeneath(d.ObjectPath(object))
}

// directoryOf is the volume in its pool.
func directoryOf(id string) Object { return Object{ID: id, Backing: volume.BackingDirectory} }

// Quota returns the limit of a volume's directory and its usage, as the kernel counts it.
// It takes the same time for any number of files, and counts what has evaded the limit. It returns false if the size of the directory is
// not limited. Errors: ErrMissing.
func (d *Directories) Quota(id string) (usage quota.Usage, limited bool, err error) {
	err = d.within(id, func(directory *os.File) error {
		if err := d.confine(id, directory); err != nil {
			return err
		}

		if usage, limited, err = d.quotas.Usage(directory); err != nil {
			return fmt.Errorf("usage of volume %s in pool %q: %w", id, d.name, err)
		}

		return nil
	})

	return usage, limited, err
}

// Support returns how the sizes of new directories are limited, and whether they are copied
// at one point in time.
func (d *Directories) Support() quota.Support { return d.quotas.Support() }

// Usage walks the directory of a volume. It takes time in proportion to the number of
// files. Errors: ErrMissing, ctx's.
func (d *Directories) Usage(ctx context.Context, id string) (usage tree.Usage, err error) {
	err = d.within(id, func(directory *os.File) error {
		if usage, err = tree.Measure(ctx, directory, nil); err != nil {
			return fmt.Errorf("usage of volume %s in pool %q: %w", id, d.name, err)
		}

		return nil
	})

	return usage, err
}

// AllocatedBytes is that of Backing.
func (d *Directories) AllocatedBytes(ctx context.Context, id string) (int64, error) {
	counted, limited, err := d.Quota(id)
	if err != nil || limited {
		return counted.Bytes, err
	}

	usage, err := d.Usage(ctx, id)

	return usage.Bytes, err
}

func (d *Directories) forget(id string) { d.evaded.Delete(id) }

// removeEmpty uses AT_REMOVEDIR, so that the kernel checks that it is an empty directory:
// os.Root would also remove a file. A subvolume has a quota group, too.
func (d *Directories) removeEmpty(ctx context.Context, id string) (bool, error) {
	room, err := d.root.Open(".")
	if err != nil {
		return false, err
	}
	defer room.Close()

	empty, err := isEmpty(room, id)
	if err != nil || !empty {
		return false, nil // it has files, is no directory, or cannot be read
	}

	removed, err := d.quotas.Remove(ctx, room, id)
	if err != nil || removed {
		return removed, err
	}

	err = unix.Unlinkat(int(room.Fd()), id, unix.AT_REMOVEDIR)

	return err == nil || errors.Is(err, fs.ErrNotExist), nil
}

// isEmpty reports whether a name is an empty directory, or missing.
func isEmpty(parent *os.File, name string) (bool, error) {
	directory, err := tree.OpenAt(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}

	if err != nil {
		return false, err
	}
	defer directory.Close()

	_, err = directory.Readdirnames(1)

	return errors.Is(err, io.EOF), nil
}

// ConfineGrown is Confine of Directories for the directories in which something was made since the last call
// that may evade their limits; the first call is for all. It returns the volumes that LimitEvadedFor
// reports from now on.
func (p *Pool) ConfineGrown() (evaded []string, err error) {
	names, err := p.Directories.quotas.Grown()
	if err != nil {
		return nil, fmt.Errorf("what is new in pool %q: %w", p.name, err)
	}

	for _, name := range names {
		if !volume.IsID(name) {
			continue
		}

		for _, each := range p.withEphemeral() {
			failure := each.Directories.Confine(name)
			if !errors.Is(failure, ErrMissing) {
				err = errors.Join(err, failure)
			}

			if each.Directories.LimitEvadedFor(name) > 0 {
				evaded = append(evaded, name)
			}
		}
	}

	return evaded, err
}

// Sweep has size limits count what only a walk of all files finds, as in a pool with projects. Errors
// of one directory do not keep the others from being swept. It returns volumes as ConfineGrown does.
func (p *Pool) Sweep(ctx context.Context) (evaded []string, err error) {
	if p.Directories.quotas.Support().Kind != quota.Project {
		return nil, nil
	}

	for _, each := range p.withEphemeral() {
		failure := listIDs(ctx, each.Directories.root, "", func(id string) error {
			found, failure := each.Directories.sweep(ctx, id)
			if found {
				evaded = append(evaded, id)
			}

			if !errors.Is(failure, ErrMissing) {
				err = errors.Join(err, failure)
			}

			return ctx.Err()
		})
		err = errors.Join(err, failure)
	}

	return evaded, err
}

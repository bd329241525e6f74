package access

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Directory is the access to a volume that is stored in a directory of its pool, which is
// bound to the staging path.
type Directory struct{ *Targets }

// Stage binds the directory to the staging path, unless a driver that has lost its records did.
func (d *Directory) Stage(_ context.Context, v *staged.Volume, staging *mount.Target) (err error) {
	if mounted, err := d.IsStaged(v); mounted || err != nil {
		return err
	}

	if err := d.UnmountAllLayers(v, staging); err != nil {
		return err
	}

	made, err := staging.MakeDir(stagingMode)
	if err != nil {
		return err
	}

	defer func() { err = removeAfter(err, made, staging) }()

	detached, err := d.tree(v, v.MountOptions())
	if err != nil {
		return err
	}
	defer detached.Close()

	return detached.Attach(staging)
}

// Unstage unmounts the volume from the staging path.
func (d *Directory) Unstage(_ context.Context, v *staged.Volume) error {
	return d.dirs.WithTarget(v.StagingPath, func(staging *mount.Target) error { return d.UnmountAllLayers(v, staging) })
}

// Publish binds what is mounted at the staging path.
func (d *Directory) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	return d.publishStaged(ctx, d, v, p, target)
}

// tree returns a detached bind mount of the volume's directory.
func (d *Directory) tree(v *staged.Volume, options mount.Options) (*mount.Detached, error) {
	stored, err := d.pools.Of(v)
	if err != nil {
		return nil, err
	}

	directory, err := stored.Open(v.Object())
	if err != nil {
		return nil, err
	}
	defer directory.Close()

	return mount.Bind(directory, options)
}

// Expand returns the size limit of the directory, which counts as soon as it is raised. A directory
// without a limit may use all of its pool's free space.
func (d *Directory) Expand(_ context.Context, v *staged.Volume, _ string, asked *csi.CapacityRange) (int64, error) {
	stored, err := d.pools.Of(v)
	if err != nil {
		return 0, err
	}

	counted, limited, err := stored.Directories.Quota(v.ObjectID())
	if err != nil || !limited {
		return asked.GetRequiredBytes(), err
	}

	return counted.LimitBytes, checkLimit(counted.LimitBytes, asked)
}

// checkLimit returns OUT_OF_RANGE for the limit of a directory that is not as asked.
func checkLimit(size int64, asked *csi.CapacityRange) error {
	if most := asked.GetLimitBytes(); size < asked.GetRequiredBytes() || most > 0 && size > most {
		return errdefs.Errorf(errdefs.ErrOutOfRange,
			"its directory is limited to %d bytes, outside of capacity_range; for more call ControllerExpandVolume first", size)
	}

	return nil
}

// Stats returns the limit of the volume's directory and what the kernel has counted, without a walk.
// Of a directory without a limit it returns the space that the files take, which are counted one by
// one, and the free space of the pool as available.
func (d *Directory) Stats(ctx context.Context, v *staged.Volume, at *mount.Target) (Stats, error) {
	filesystem, err := at.Usage()
	if err != nil {
		return Stats{}, err
	}

	stored, err := d.pools.Of(v)
	if err != nil {
		return Stats{}, err
	}

	counted, limited, err := stored.Directories.Quota(v.ObjectID())
	if err != nil {
		return Stats{}, err
	}

	if limited {
		return Stats{Usage: withQuota(filesystem, counted), Filesystem: &filesystem}, nil
	}

	own, err := stored.Directories.Usage(ctx, v.ObjectID())
	if err != nil {
		return Stats{}, err
	}

	return Stats{Usage: withOwn(filesystem, own), Filesystem: &filesystem}, nil
}

// withOwn returns the usage of a directory without a limit.
func withOwn(filesystem mount.Usage, own tree.Usage) mount.Usage {
	of := filesystem
	of.Bytes.Used, of.Bytes.Total = own.Bytes, own.Bytes+of.Bytes.Available

	if of.Inodes.Total > 0 {
		of.Inodes.Used, of.Inodes.Total = own.Inodes, own.Inodes+of.Inodes.Available
	}

	return of
}

// withQuota returns the usage of a directory with a limit. What is available is limited by the
// filesystem of the pool, too.
func withQuota(filesystem mount.Usage, counted quota.Usage) mount.Usage {
	of := filesystem
	of.Bytes = limitAmount(filesystem.Bytes, counted.LimitBytes, counted.Bytes)

	if counted.LimitInodes > 0 {
		of.Inodes = limitAmount(filesystem.Inodes, counted.LimitInodes, counted.Inodes)
	}

	return of
}

func limitAmount(filesystem mount.Amount, limit, used int64) mount.Amount {
	return mount.Amount{Total: limit, Used: used, Available: max(0, min(limit-used, filesystem.Available))}
}

// Devices implements Access.
func (d *Directory) Devices(*staged.Volume) ([]int, error) { return nil, nil }

// DeviceOf implements Access.
func (d *Directory) DeviceOf(*staged.Volume, staged.Publication) (int, error) {
	return device.None, nil
}

// AddFreezeTargets adds nothing: freezing the pool's filesystem would block all volumes, and
// the driver itself.
func (d *Directory) AddFreezeTargets(*staged.Volume, *freeze.Targets) error { return nil }

package access

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// directory is the access to a volume that is stored in a directory of its pool, which is
// bound to the staging path.
type directory struct{ mounted }

func (d directory) Stage(_ context.Context, v *staged.Volume, staging *mount.Target) error {
	return d.stageMount(v, staging, func(options mount.Options) error {
		tree, err := d.directoryTree(v, options)
		if err != nil {
			return err
		}
		defer tree.Close()

		return tree.Attach(staging)
	})
}

// directoryTree returns a detached bind mount of the volume's directory.
func (p *Provider) directoryTree(v *staged.Volume, options mount.Options) (*mount.Detached, error) {
	stored, err := p.PoolOf(v)
	if err != nil {
		return nil, err
	}

	directory, err := stored.OpenDirectory(v.VolumeID)
	if err != nil {
		return nil, err
	}
	defer directory.Close()

	return mount.Bind(directory, options)
}

// Expand has nothing to do: the controller has raised the size limit of the directory, or it may
// use all of its pool's free space.
func (d directory) Expand(_ context.Context, _ *staged.Volume, _ string, asked *csi.CapacityRange) (int64, error) {
	return asked.GetRequiredBytes(), nil
}

// Stats returns the limit of the volume's directory and what the kernel has counted, without a walk.
// Of a directory without a limit it returns the space that the files take, which are counted one by
// one, and the free space of the pool as available.
func (d directory) Stats(ctx context.Context, v *staged.Volume, at *mount.Target) (Stats, error) {
	filesystem, err := at.Usage()
	if err != nil {
		return Stats{}, err
	}

	stored, err := d.PoolOf(v)
	if err != nil {
		return Stats{}, err
	}

	counted, limited, err := stored.DirectoryQuota(v.VolumeID)
	if err != nil {
		return Stats{}, err
	}

	if limited {
		return Stats{Usage: withQuota(filesystem, counted), Filesystem: &filesystem}, nil
	}

	own, err := stored.DirectoryUsage(ctx, v.VolumeID)
	if err != nil {
		return Stats{}, err
	}

	of := filesystem
	of.Bytes.Used, of.Bytes.Total = own.Bytes, own.Bytes+of.Bytes.Available

	if of.Inodes.Total > 0 {
		of.Inodes.Used, of.Inodes.Total = own.Inodes, own.Inodes+of.Inodes.Available
	}

	return Stats{Usage: of, Filesystem: &filesystem}, nil
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

func (d directory) Devices(*staged.Volume) ([]int, error) { return nil, nil }

func (d directory) DeviceOf(*staged.Volume, staged.Publication) (int, error) { return NoDevice, nil }

// AddFreezeTargets adds nothing: freezing the pool's filesystem would block all volumes, and
// the driver itself.
func (d directory) AddFreezeTargets(*staged.Volume, *freeze.Targets) error { return nil }

func (d directory) CheckStored(v *staged.Volume) error {
	stored, err := d.PoolOf(v)
	if err != nil {
		return err
	}

	directory, err := stored.OpenDirectory(v.VolumeID)
	if err != nil {
		return err
	}

	_ = directory.Close()

	return nil
}

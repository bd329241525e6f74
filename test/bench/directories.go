package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

const (
	// directoryFiles are in a volume of so many directories.
	directoryFiles   = 100_000
	filesOfDirectory = 1000
	// btrfsBytes is the size of the sparse image of the pool's filesystem.
	btrfsBytes = 4 * gib
)

// directories measures copies and statistics of a directory volume with many files that is in use, on
// btrfs.
func directories(ctx context.Context, b *bench) (failure error) {
	root, err := os.MkdirTemp(b.dir, "driver-")
	if err != nil {
		return err
	}
	defer func() { failure = errors.Join(failure, os.RemoveAll(root)) }()

	unmount, err := mountBtrfs(ctx, root)
	if err != nil {
		return err
	}
	defer func() { failure = errors.Join(failure, unmount()) }()

	d, err := b.startIn(ctx, root)
	if err != nil {
		return err
	}
	defer d.end()

	source, err := d.directory(ctx)
	if err == nil {
		err = d.bringUp(ctx, source)
	}

	if err == nil {
		err = manyFiles(d.seen(source.TargetPath))
	}

	if err != nil {
		return err
	}

	if err := b.copyOften(ctx, d, source, "directory with 100,000 files in use, btrfs"); err != nil {
		return err
	}

	return b.statistics(ctx, d, source)
}

// statistics measures NodeGetVolumeStats.
func (b *bench) statistics(ctx context.Context, d *driver, claim *csiclient.Publication) error {
	const count = 200

	took := &sample{}

	for range count {
		err := took.time(func() error {
			_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})

			return err
		})
		if err != nil {
			return err
		}
	}

	b.results.put("NodeGetVolumeStats of a directory with 100,000 files, btrfs: p50", took.quantile(0.5), known("ms"))

	return nil
}

// mountBtrfs mounts a new btrfs at the path of the driver's pool.
func mountBtrfs(ctx context.Context, root string) (unmount func() error, err error) {
	image, err := os.Create(filepath.Join(root, "btrfs.img"))
	if err != nil {
		return nil, err
	}
	defer image.Close()

	if err := image.Truncate(btrfsBytes); err != nil {
		return nil, err
	}

	if output, err := exec.CommandContext(ctx, "mkfs.btrfs", "-q", image.Name()).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.btrfs: %w: %s", err, output)
	}

	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(ctx, image, loop.AttachOptions{
		AutoClear: true, Exclusive: true, PreferredNumber: -1,
	})
	if err != nil {
		return nil, err
	}
	defer device.Close()

	target := filepath.Join(root, "pool")
	if err := os.Mkdir(target, 0o700); err != nil {
		return nil, err
	}

	if err := unix.Mount(device.Path, target, "btrfs", 0, ""); err != nil {
		return nil, fmt.Errorf("mount %s: %w", target, err)
	}

	return func() error { return unix.Unmount(target, unix.MNT_DETACH) }, nil
}

// directory makes a directory volume.
func (d *driver) directory(ctx context.Context) (*csiclient.Publication, error) {
	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")

	made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "directory", VolumeCapabilities: []*csi.VolumeCapability{capability},
		CapacityRange: &csi.CapacityRange{RequiredBytes: gib}, Parameters: map[string]string{"backing": "directory"},
	})
	if err != nil {
		return nil, err
	}

	id := made.GetVolume().GetVolumeId()

	return &csiclient.Publication{
		VolumeID: id, VolumeContext: made.GetVolume().GetVolumeContext(), Capability: capability, NodeID: nodeID,
		StagingPath: filepath.Join(d.root, "kubelet", "staging", id),
		TargetPath:  filepath.Join(d.root, "kubelet", "pods", id, "mount"),
	}, nil
}

// manyFiles makes directoryFiles files of a few bytes each.
func manyFiles(root string) error {
	for number := range directoryFiles {
		directory := filepath.Join(root, strconv.Itoa(number/filesOfDirectory))
		if number%filesOfDirectory == 0 {
			if err := os.Mkdir(directory, 0o700); err != nil {
				return err
			}
		}

		if err := os.WriteFile(filepath.Join(directory, strconv.Itoa(number)), []byte("content"), 0o600); err != nil {
			return err
		}
	}

	return os.WriteFile(filepath.Join(root, "data"), make([]byte, mib), 0o600)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

const gib = 1 << 30

// embedded gives the driver a pool that can reflink, whatever the disk can.
const embedded = "TOUCHSTONE_POOL_IMAGE_SIZE=60Gi"

// copies measures what is instant on a pool that can reflink.
func copies(ctx context.Context, b *bench) (failure error) {
	d, done, err := b.start(ctx, embedded)
	if err != nil {
		return err
	}
	defer done()

	small, err := d.filled(ctx, "small", gib, 200*mib)
	if err != nil {
		return err
	}

	if err := b.copyOften(ctx, d, small, "1 GiB ext4 holding 200 MiB, mounted"); err != nil {
		return err
	}

	if err := b.stalls(ctx, d, small); err != nil {
		return err
	}

	if err := d.takeDown(ctx, small); err != nil {
		return err
	}

	if err := b.copyOften(ctx, d, small, "1 GiB ext4 holding 200 MiB, unused"); err != nil {
		return err
	}

	large, err := d.raw(ctx, "large", 10*gib)
	if err == nil {
		// Its device would outlive the driver.
		defer func() { failure = errors.Join(failure, d.takeDown(context.WithoutCancel(ctx), large)) }()

		err = overwrite(d.seen(large.TargetPath), 10*gib, 16*mib, everything)
	}

	if err != nil {
		return err
	}

	if err := b.copyOften(ctx, d, large, "10 GiB raw block full of contiguous data, published"); err != nil {
		return err
	}

	if err := b.besideCopies(ctx, d, large); err != nil {
		return err
	}

	return b.changedBlocks(ctx, d, large)
}

// copyOften measures snapshot, restore and clone of one volume.
func (b *bench) copyOften(ctx context.Context, d *driver, source *csiclient.Publication, what string) error {
	const count = 40

	snapshots, restores, clones := &sample{}, &sample{}, &sample{}

	for number := range count {
		name := fmt.Sprint(what, " ", number)

		if err := d.copyOnce(ctx, source, name, snapshots, restores, clones); err != nil {
			return err
		}
	}

	for _, each := range []struct {
		verb string
		took *sample
	}{{"Snapshot", snapshots}, {"Restore", restores}, {"Clone", clones}} {
		b.results.put(each.verb+" of "+what+": p50", each.took.quantile(0.5), atMost(20, "ms"))
		b.results.put(each.verb+" of "+what+": p99", each.took.quantile(0.99), known("ms"))
	}

	return nil
}

func (d *driver) copyOnce(ctx context.Context, source *csiclient.Publication, name string, snapshots, restores, clones *sample) error {
	// What a workload does between two snapshots: else there would be nothing to
	// flush.
	if err := d.touch(source); err != nil {
		return err
	}

	var snapshot string

	err := snapshots.time(func() (err error) {
		snapshot, err = d.snapshot(ctx, source.VolumeID, name)

		return err
	})
	if err != nil {
		return err
	}

	for _, each := range []struct {
		took   *sample
		name   string
		source *csi.VolumeContentSource
	}{
		{restores, "restore " + name, fromSnapshot(snapshot)},
		{clones, "clone " + name, fromVolume(source.VolumeID)},
	} {
		var id string

		err := each.took.time(func() (err error) {
			id, err = d.copyOf(ctx, source, each.name, each.source)

			return err
		})
		if err != nil {
			return err
		}

		if err := d.delete(ctx, id); err != nil {
			return err
		}
	}

	return d.deleteSnapshot(ctx, snapshot)
}

// stalls measures how long a writer has to wait while the volume is being
// snapshotted: the window of the freeze as the workload sees it.
func (b *bench) stalls(ctx context.Context, d *driver, source *csiclient.Publication) error {
	const count = 100

	file, err := os.OpenFile(filepath.Join(d.seen(source.TargetPath), "stalled"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("write beside snapshots: %w", err)
	}
	defer file.Close()

	var longest atomic.Int64

	group, ctx := errgroup.WithContext(ctx)
	over := make(chan struct{})

	group.Go(func() error { return writeUntil(over, file, &longest) })
	group.Go(func() error {
		defer close(over)

		window := &sample{}

		for number := range count {
			longest.Store(0)

			snapshot, err := d.snapshot(ctx, source.VolumeID, fmt.Sprint("stalling ", number))
			if err != nil {
				return err
			}

			window.took = append(window.took, time.Duration(longest.Load()))

			if err := d.deleteSnapshot(ctx, snapshot); err != nil {
				return err
			}
		}

		b.results.put("Longest wait of a writer during a snapshot: p50", window.quantile(0.5), known("ms"))
		b.results.put("Longest wait of a writer during a snapshot: p99", window.quantile(0.99), atMost(200, "ms"))

		return nil
	})

	return group.Wait()
}

// writeUntil writes blocks one after the other, and keeps the longest time that
// one took.
func writeUntil(over <-chan struct{}, file *os.File, longest *atomic.Int64) error {
	const span = 64 * mib

	block := make([]byte, 4096)

	for at := int64(0); ; at = (at + int64(len(block))) % span {
		select {
		case <-over:
			return nil
		default:
		}

		began := time.Now()

		if _, err := file.WriteAt(block, at); err != nil {
			return fmt.Errorf("write beside snapshots: %w", err)
		}

		took := time.Since(began).Nanoseconds()
		for seen := longest.Load(); took > seen && !longest.CompareAndSwap(seen, took); seen = longest.Load() {
			continue
		}
	}
}

// besideCopies measures calls on another volume while a large one is copied and
// its copies, 10 GiB each, are overwritten by nobody and deleted.
func (b *bench) besideCopies(ctx context.Context, d *driver, large *csiclient.Publication) error {
	quiet, err := d.staged(ctx, "quiet", nil)
	if err != nil {
		return err
	}

	const gets, publications = 4000, 300

	over := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)

	group.Go(func() error {
		for number := 0; ; number++ {
			select {
			case <-over:
				return nil
			default:
			}

			unmeasured := &sample{}
			if err := d.copyOnce(ctx, large, fmt.Sprint("beside ", number), unmeasured, unmeasured, unmeasured); err != nil {
				return err
			}
		}
	})
	group.Go(func() error {
		defer close(over)

		getting, _, err := timed(ctx, 1, gets, func(ctx context.Context, _ int) error { return d.get(ctx, quiet.VolumeID) })
		if err != nil {
			return err
		}

		publishing, _, err := d.republish(ctx, quiet, publications)
		if err != nil {
			return err
		}

		b.results.put("While 10 GiB are copied and deleted, ControllerGetVolume of another volume: p99", getting.quantile(0.99), atMost(5, "ms"))
		b.results.put("While 10 GiB are copied and deleted, NodePublishVolume of another volume: p99", publishing.quantile(0.99),
			atMost(5, "ms"))

		return nil
	})

	return group.Wait()
}

// changedBlocks measures both streams of a volume of which one block in a
// hundred has changed, once large blocks and once the smallest.
func (b *bench) changedBlocks(ctx context.Context, d *driver, large *csiclient.Publication) error {
	for _, each := range []struct {
		name  string
		bytes int64
	}{{"1 MiB", mib}, {"4 KiB", 4096}} {
		if err := b.changed(ctx, d, large, each.name, each.bytes); err != nil {
			return err
		}
	}

	return nil
}

func (b *bench) changed(ctx context.Context, d *driver, large *csiclient.Publication, name string, block int64) error {
	const count, hundredth = 20, 100

	base, err := d.snapshot(ctx, large.VolumeID, "base "+name)
	if err == nil {
		err = overwrite(d.seen(large.TargetPath), 10*gib, block, func(number int) bool { return number%hundredth == 0 })
	}

	if err != nil {
		return err
	}

	target, err := d.snapshot(ctx, large.VolumeID, "target "+name)
	if err != nil {
		return err
	}

	allocated, _, err := timed(ctx, 1, count, func(ctx context.Context, _ int) error {
		return atLeastBytes(10*gib, d.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: target}))
	})
	if err != nil {
		return err
	}

	changed, _, err := timed(ctx, 1, count, func(ctx context.Context, _ int) error {
		return atLeastBytes(10*gib/hundredth,
			d.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}))
	})
	if err != nil {
		return err
	}

	what := " of 10 GiB, 1 % changed in blocks of " + name + ": p50"
	b.results.put("GetMetadataAllocated"+what, allocated.quantile(0.5), atMost(100, "ms"))
	b.results.put("GetMetadataDelta"+what, changed.quantile(0.5), atMost(100, "ms"))

	return nil
}

var errTooFew = errors.New("the stream told of too few bytes")

// atLeastBytes reads a stream to its end.
func atLeastBytes(least int64, stream iter.Seq2[csiclient.BlockMetadata, error]) error {
	var told int64

	for blocks, err := range stream {
		if err != nil {
			return err
		}

		for _, each := range blocks.GetBlockMetadata() {
			told += each.GetSizeBytes()
		}
	}

	if told < least {
		return fmt.Errorf("%w: %d of %d", errTooFew, told, least)
	}

	return nil
}

// fallback measures what a pool that can't reflink does, against cp.
func fallback(ctx context.Context, b *bench) error {
	d, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	source, err := d.filled(ctx, "source", 2*gib, gib)
	if err == nil {
		err = d.takeDown(ctx, source)
	}

	if err != nil {
		return err
	}

	const count = 5

	image := filepath.Join(d.root, "pool", "images", source.VolumeID+".img")
	other := filepath.Join(d.root, "copied.img")
	own, theirs := &sample{}, &sample{}

	// In turns, so that both have the same machine.
	for number := range count {
		err := theirs.time(func() error { return copyFile(ctx, image, other) })
		if err != nil {
			return err
		}

		var snapshot string

		err = own.time(func() (err error) {
			snapshot, err = d.snapshot(ctx, source.VolumeID, fmt.Sprint("copied ", number))

			return err
		})
		if err != nil {
			return err
		}

		if err := errors.Join(d.deleteSnapshot(ctx, snapshot), os.Remove(other)); err != nil {
			return err
		}
	}

	b.results.put("Snapshot of 1 GiB of data without reflink: p50", own.quantile(0.5), known("ms"))
	b.results.put("cp --sparse=always and sync of the same: p50", theirs.quantile(0.5), known("ms"))
	b.results.put("… the speed of the snapshot, cp's being 1", theirs.quantile(0.5)/own.quantile(0.5), atLeast(0.9, ""))

	return nil
}

// copyFile is what a person would do, durable as a snapshot is.
func copyFile(ctx context.Context, from, to string) error {
	for _, words := range [][]string{{"cp", "--sparse=always", from, to}, {"sync", to}} {
		if output, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", words, err, output)
		}
	}

	return nil
}

// filled makes an ext4 volume of that size, mounts it and writes a file.
func (d *driver) filled(ctx context.Context, name string, size, data int64) (*csiclient.Publication, error) {
	claim, err := d.made(ctx, name, size, mountable())
	if err != nil {
		return nil, err
	}

	if err := d.bringUp(ctx, claim); err != nil {
		return nil, err
	}

	path := filepath.Join(d.seen(claim.TargetPath), "data")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, fmt.Errorf("fill volume %s: %w", claim.VolumeID, err)
	}

	return claim, overwrite(path, data, mib, everything)
}

// raw makes a raw block volume and publishes it.
func (d *driver) raw(ctx context.Context, name string, size int64) (*csiclient.Publication, error) {
	claim, err := d.made(ctx, name, size, csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER))
	if err != nil {
		return nil, err
	}

	return claim, d.bringUp(ctx, claim)
}

func (d *driver) made(ctx context.Context, name string, size int64, capability *csi.VolumeCapability) (*csiclient.Publication, error) {
	made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
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

// seen is a path as the driver's own mount namespace has it.
func (d *driver) seen(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", d.command.Process.Pid, path)
}

func (d *driver) bringUp(ctx context.Context, claim *csiclient.Publication) error {
	for _, step := range []func(context.Context, *csiclient.Publication) error{d.Attach, d.Stage, d.Publish} {
		if err := step(ctx, claim); err != nil {
			return err
		}
	}

	return nil
}

func (d *driver) takeDown(ctx context.Context, claim *csiclient.Publication) error {
	for _, step := range []func(context.Context, *csiclient.Publication) error{d.Unpublish, d.Unstage, d.Detach} {
		if err := step(ctx, claim); err != nil {
			return err
		}
	}

	return nil
}

// snapshot returns when the snapshot can be used.
func (d *driver) snapshot(ctx context.Context, volumeID, name string) (string, error) {
	for {
		made, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volumeID})
		if err != nil {
			return "", err
		}

		if made.GetSnapshot().GetReadyToUse() {
			return made.GetSnapshot().GetSnapshotId(), nil
		}
	}
}

func (d *driver) deleteSnapshot(ctx context.Context, id string) error {
	_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

	return err
}

func (d *driver) copyOf(ctx context.Context, source *csiclient.Publication, name string, content *csi.VolumeContentSource) (string, error) {
	made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{source.Capability}, VolumeContentSource: content,
	})

	return made.GetVolume().GetVolumeId(), err
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func everything(int) bool { return true }

// overwrite writes those of the blocks, numbered from 0, that are chosen, and
// waits for the disk.
func overwrite(path string, size, block int64, chosen func(number int) bool) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("fill %s: %w", path, err)
	}
	defer file.Close()

	data := make([]byte, block)
	for i := range data {
		data[i] = byte(i*7 + i>>12)
	}

	for number := range int(size / block) {
		if !chosen(number) {
			continue
		}

		if _, err := file.WriteAt(data, int64(number)*block); err != nil {
			return fmt.Errorf("fill %s: %w", path, err)
		}
	}

	if err := file.Sync(); err != nil {
		return fmt.Errorf("fill %s: %w", path, err)
	}

	return nil
}

// touch writes a little where the volume is published.
func (d *driver) touch(claim *csiclient.Publication) error {
	path := d.seen(claim.TargetPath)
	if claim.Capability.GetMount() != nil {
		path = filepath.Join(path, "data")
	}

	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("write to volume %s: %w", claim.VolumeID, err)
	}
	defer file.Close()

	_, err = file.WriteAt(make([]byte, mib), 0)

	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const gib = 1 << 30

// embedded gives the driver a pool that can reflink, whatever the disk can.
const embedded = "TOUCHSTONE_POOL_IMAGE_SIZE=60Gi"

// copies measures what is instant on a pool that can reflink.
func copies(ctx context.Context, b *bench) (failure error) {
	d, done, err := b.start(ctx, embedded, "TOUCHSTONE_POOL_IMAGE_FS="+b.poolFS)
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
// its copies, 10 GiB each, are deleted unused.
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

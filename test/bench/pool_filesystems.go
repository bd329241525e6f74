package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	embeddedpool "github.com/touchstone-csi/touchstone/internal/pool/embedded"
)

// poolFilesystems measures the same calls and writes in an embedded pool of each filesystem. A round
// has all of them, one after the other, so that each meets the same machine.
func poolFilesystems(ctx context.Context, b *bench) error {
	for _, filesystem := range embeddedpool.Filesystems() {
		if err := b.poolFilesystem(ctx, filesystem); err != nil {
			return fmt.Errorf("%s: %w", filesystem, err)
		}
	}

	return nil
}

func (b *bench) poolFilesystem(ctx context.Context, filesystem string) (failure error) {
	d, done, err := b.start(ctx, embedded, "TOUCHSTONE_POOL_IMAGE_FS="+filesystem)
	if err != nil {
		return err
	}
	defer done()

	m := &poolMeasurement{bench: b, driver: d, filesystem: filesystem}

	empty, err := m.hostBytes()
	if err != nil {
		return err
	}

	m.put("space of an empty pool on the host", empty/mib, "MiB")

	if err := m.creates(ctx); err != nil {
		return err
	}

	claim, err := d.filled(ctx, "small", gib, 200*mib)
	if err != nil {
		return err
	}

	if err := m.copies(ctx, claim); err != nil {
		return err
	}

	err = errors.Join(d.takeDown(ctx, claim), d.delete(ctx, claim.VolumeID))
	if err == nil {
		err = m.writes(ctx)
	}

	if err != nil {
		return err
	}

	return m.returned(empty)
}

// poolMeasurement is one measurement of one filesystem.
type poolMeasurement struct {
	*bench
	*driver

	filesystem string
}

func (m *poolMeasurement) put(what string, value float64, unit string) {
	m.results.put("Pool on "+m.filesystem+", "+what, value, known(unit))
}

// hostBytes is the space that the pool's image has on the host, once all is written.
func (m *poolMeasurement) hostBytes() (float64, error) {
	unix.Sync()

	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(m.root, "pool", "pool.img"), &stat); err != nil {
		return 0, fmt.Errorf("space of the pool: %w", err)
	}

	const unit = 512

	return float64(stat.Blocks * unit), nil
}

func (m *poolMeasurement) creates(ctx context.Context) error {
	const count, together, callers = 300, 2000, 8

	alone, _, err := timed(ctx, 1, count, m.creating("alone", nil))
	if err != nil {
		return err
	}

	rate, cost, err := m.costing(ctx, callers, together, m.creating("together", nil))
	if err != nil {
		return err
	}

	m.put("CreateVolume alone: p50", alone.quantile(0.5), "ms")
	m.put("CreateVolume, 8 callers", rate, "/s")
	m.put("CreateVolume, the driver's processor time", cost, "ms")

	return nil
}

func (m *poolMeasurement) copies(ctx context.Context, source *csiclient.Publication) error {
	const count = 40

	snapshots, restores, clones := &sample{}, &sample{}, &sample{}

	for number := range count {
		if err := m.copyOnce(ctx, source, fmt.Sprint("copy ", number), snapshots, restores, clones); err != nil {
			return err
		}
	}

	m.put("snapshot of a mounted volume: p50", snapshots.quantile(0.5), "ms")
	m.put("restore: p50", restores.quantile(0.5), "ms")
	m.put("clone of a mounted volume: p50", clones.quantile(0.5), "ms")

	return nil
}

// The workload of writes: random blocks of a raw block volume that was filled once.
const (
	writtenBytes = 512 * mib
	writtenBlock = 4096
	writtenCount = 20_000
	syncedCount  = 2000
)

// writes measures a volume that was filled, the same right after a snapshot, and again once every
// block may have been written since.
func (m *poolMeasurement) writes(ctx context.Context) (failure error) {
	claim, err := m.raw(ctx, "written", writtenBytes)
	if err != nil {
		return err
	}
	defer func() {
		clean := context.WithoutCancel(ctx)
		failure = errors.Join(failure, m.takeDown(clean, claim), m.delete(clean, claim.VolumeID))
	}()

	device := m.seen(claim.TargetPath)
	if err := overwrite(device, writtenBytes, mib, everything); err != nil {
		return err
	}

	if err := m.writeRandomly(device, "volume without copies"); err != nil {
		return err
	}

	snapshot, err := m.snapshot(ctx, claim.VolumeID, "of the written")
	if err != nil {
		return err
	}

	if err := m.writeRandomly(device, "volume with a new snapshot"); err != nil {
		return err
	}

	used, err := m.hostBytes()
	if err != nil {
		return err
	}

	m.put("space on the host after these writes, with the snapshot", used/mib, "MiB")

	return m.deleteSnapshot(ctx, snapshot)
}

func (m *poolMeasurement) writeRandomly(device, what string) error {
	for _, each := range []struct {
		name  string
		flags int
		count int
	}{
		{"direct", unix.O_DIRECT, writtenCount},
		{"direct and synchronous", unix.O_DIRECT | unix.O_DSYNC, syncedCount},
		{"buffered", 0, writtenCount},
	} {
		rate, err := randomWrites(device, each.flags, each.count)
		if err != nil {
			return err
		}

		m.put(fmt.Sprintf("4 KiB random writes, %s, %s", each.name, what), rate, "/s")
	}

	return nil
}

// randomWrites returns how many blocks were written in a second, with a final sync.
func randomWrites(device string, flags, count int) (rate float64, err error) {
	file, err := os.OpenFile(device, os.O_WRONLY|flags, 0)
	if err != nil {
		return 0, fmt.Errorf("write randomly: %w", err)
	}
	defer file.Close()

	block, err := unix.Mmap(-1, 0, writtenBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, fmt.Errorf("write randomly: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(block)) }()

	random := rand.New(rand.NewPCG(1, uint64(flags)))
	began := time.Now()

	for number := range count {
		block[0], block[1] = byte(number), byte(number>>8)

		if _, err := file.WriteAt(block, random.Int64N(writtenBytes/writtenBlock)*writtenBlock); err != nil {
			return 0, fmt.Errorf("write randomly: %w", err)
		}
	}

	if err := file.Sync(); err != nil {
		return 0, fmt.Errorf("write randomly: %w", err)
	}

	return float64(count) / time.Since(began).Seconds(), nil
}

// returned measures the space on the host once every volume is deleted, after as long as a
// filesystem takes to discard it.
func (m *poolMeasurement) returned(empty float64) error {
	const limit, period = 30 * time.Second, 100 * time.Millisecond

	began := time.Now()

	for {
		used, err := m.hostBytes()
		if err != nil {
			return err
		}

		if took := time.Since(began); used < empty+10*mib || took > limit {
			m.put("space on the host above the empty pool after deletion", (used-empty)/mib, "MiB")
			m.put("time until it is returned", milliseconds(took), "ms")

			return nil
		}

		time.Sleep(period)
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/metrics"
	"github.com/touchstone-csi/touchstone/test/served"
)

// fewStaged and manyStaged are the volumes on the nodes that topic many compares.
const fewStaged, manyStaged = 10, 1000

// many measures calls on one volume of a node that has few staged ext4 volumes, and then many, the driver and
// what the kernel needs.
func many(ctx context.Context, b *bench) (failure error) {
	address := served.Address()

	d, done, err := b.start(ctx, "TOUCHSTONE_HTTP_ENDPOINT="+address)
	if err != nil {
		return err
	}
	defer done()

	claims, err := d.stageMany(ctx, fewStaged)
	if err != nil {
		return err
	}

	few, err := d.amongMounted(ctx, claims[0], address)
	if err != nil {
		return err
	}

	others := make([]*csiclient.Publication, manyStaged-fewStaged)

	defer func() {
		if undone := d.unstageMany(context.WithoutCancel(ctx), append(claims, others...)); failure == nil {
			failure = undone
		}
	}()

	before, err := kernelMemory()
	if err != nil {
		return err
	}

	_, err = together(ctx, creators, len(others), func(ctx context.Context, number int) (err error) {
		others[number], err = d.staged(ctx, fmt.Sprint("other ", number), nil)

		return err
	})
	if err != nil {
		return err
	}

	after, err := kernelMemory()
	if err != nil {
		return err
	}

	b.results.put("Memory of the kernel for each staged ext4", (after-before)*1024/float64(len(others)), known("KiB"))

	much, err := d.amongMounted(ctx, claims[0], address)
	if err != nil {
		return err
	}

	for i, each := range much {
		name := fmt.Sprintf("%s, %d staged ext4", each.name, manyStaged)

		b.results.put(name, each.value, known(each.unit))
		b.results.put(fmt.Sprintf("%s ÷ %d", name, fewStaged), each.value/few[i].value, each.ratio)
	}

	return nil
}

// quantity is one value of a node, and what its ratio to that of another one is to be.
type quantity struct {
	name, unit string
	value      float64
	ratio      target
}

// amongMounted measures calls on one volume and then the process, whose metrics are at address.
func (d *driver) amongMounted(ctx context.Context, claim *csiclient.Publication, address string) ([]quantity, error) {
	calls, err := d.callsOn(ctx, claim)
	if err != nil {
		return nil, err
	}

	process, err := d.process(ctx, address)
	if err != nil {
		return nil, err
	}

	started, err := d.startAgain(ctx, address)

	return slices.Concat(calls, process, started), err
}

// callsOn measures calls on one volume.
func (d *driver) callsOn(ctx context.Context, claim *csiclient.Publication) ([]quantity, error) {
	const calls = 300

	stats, _, err := timed(ctx, 1, calls, func(ctx context.Context, _ int) error {
		_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.StagingPath})

		return err
	})
	if err != nil {
		return nil, err
	}

	publishing, unpublishing, err := d.republish(ctx, claim, calls)
	if err != nil {
		return nil, err
	}

	deleting := &sample{}

	for number := range calls {
		made, err := d.claim(ctx, fmt.Sprint("deleted ", number), nil)
		if err != nil {
			return nil, err
		}

		if err := deleting.time(func() error { return d.delete(ctx, made.VolumeID) }); err != nil {
			return nil, err
		}
	}

	hardly := atMost(1.3, "")

	return []quantity{
		{"NodeGetVolumeStats: p50", "ms", stats.quantile(0.5), hardly},
		{"NodePublishVolume: p50", "ms", publishing.quantile(0.5), hardly},
		{"NodeUnpublishVolume: p50", "ms", unpublishing.quantile(0.5), hardly},
		{"DeleteVolume of another: p50", "ms", deleting.quantile(0.5), hardly},
	}, nil
}

// process measures what the process has, and what its metrics, at address, say.
func (d *driver) process(ctx context.Context, address string) ([]quantity, error) {
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.command.Process.Pid))
	if err != nil {
		return nil, fmt.Errorf("descriptors of the driver: %w", err)
	}

	memory, err := d.memory("VmRSS")
	if err != nil {
		return nil, err
	}

	values, err := metrics.Read(ctx, address)
	if err != nil {
		return nil, err
	}

	goroutines, err := values.Sum("go_goroutines", "")

	return []quantity{
		{"Descriptors of the driver", "", float64(len(descriptors)), known("")},
		{"Goroutines of the driver", "", goroutines, known("")},
		{"RSS of the driver", "MiB", memory, known("")},
	}, err
}

// startAgain kills the driver, starts it, and measures the start and the first probe of all volumes on the node.
func (d *driver) startAgain(ctx context.Context, address string) ([]quantity, error) {
	if err := d.restart(ctx, syscall.SIGKILL); err != nil {
		return nil, err
	}

	probing, err := firstRelist(ctx, address)

	return []quantity{
		{"Start after a kill", "s", d.took.Seconds(), known("")},
		{"Probe of all after the start", "s", probing, known("")},
	}, err
}

// firstRelist returns how long, in seconds, the first probe of all volumes on the node took, which it awaits.
func firstRelist(ctx context.Context, address string) (float64, error) {
	const metric, pace = "touchstone_health_relist_duration_seconds", 50 * time.Millisecond

	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()

	for {
		values, err := metrics.Read(ctx, address)
		if err != nil {
			return 0, err
		}

		// There is none of them until a relist has ended.
		count, err := values.Sum(metric+"_count", "node")
		if err == nil {
			sum, err := values.Sum(metric+"_sum", "node")

			return sum / count, err
		}

		if err := pause(ctx, pace); err != nil {
			return 0, fmt.Errorf("await the probe of all volumes: %w", err)
		}
	}
}

// kernelMemory returns what the kernel has allocated for itself and cannot give back, in MiB (proc_meminfo(5)); its
// stacks are among VmallocUsed.
func kernelMemory() (float64, error) {
	return mebibytes("/proc/meminfo", "SUnreclaim", "PageTables", "Percpu", "VmallocUsed")
}

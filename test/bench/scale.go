package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// few is the number of volumes that others are compared with.
const few = 100

// size is a number of volumes, and what is wanted of a driver that has them.
type size struct {
	volumes int
	name    string
	restart float64 // seconds
	memory  float64 // MiB
}

func scale(ctx context.Context, b *bench) error {
	return b.compare(ctx, size{volumes: 100_000, name: "100,000", restart: 0.7, memory: 130})
}

func million(ctx context.Context, b *bench) error {
	if !b.million {
		return nil
	}

	return b.compare(ctx, size{volumes: 1_000_000, name: "1,000,000", restart: 4, memory: 600})
}

// compare measures a driver that has few volumes and then many.
func (b *bench) compare(ctx context.Context, many size) error {
	d, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	if _, err := together(ctx, creators, few, d.creating("kept", nil)); err != nil {
		return err
	}

	withFew, err := d.churn(ctx)
	if err != nil {
		return err
	}

	_, err = together(ctx, creators, many.volumes-few, d.creating("many", nil))
	if err != nil {
		return err
	}

	volumes := many.name + " volumes"
	if err := b.putMemory(d, volumes+" just created", known("MiB")); err != nil {
		return err
	}

	withMany, err := d.churn(ctx)
	if err != nil {
		return err
	}

	b.results.put("CreateVolume with 100 volumes, alone: p50", withFew.alone, known("ms"))
	b.results.put("CreateVolume with "+volumes+", alone: p50", withMany.alone, known("ms"))
	b.results.put("… ratio of p50 with "+volumes, withMany.alone/withFew.alone, atMost(1.2, ""))
	b.results.put("CreateVolume with 100 volumes, 16 callers", withFew.rate, known("/s"))
	b.results.put("… the driver's processor time for each", withFew.cost, known("ms"))
	b.results.put("CreateVolume with "+volumes+", 16 callers", withMany.rate, known("/s"))
	b.results.put("… the driver's processor time for each, with "+volumes, withMany.cost, known("ms"))
	b.results.put("… ratio of the rates with "+volumes, withMany.rate/withFew.rate, atLeast(0.8, ""))

	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := d.restart(ctx, signal); err != nil {
			return err
		}

		after := fmt.Sprintf("with %s after %s", volumes, signalName(signal))
		b.results.put("Restart "+after, d.took.Seconds(), atMost(many.restart, "s"))

		cost, err := d.processor()
		if err != nil {
			return err
		}

		b.results.put("… "+after+", the driver's processor time until it is ready", cost.Seconds(), known("s"))

		if _, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 1}); err != nil {
			return fmt.Errorf("list volumes after the restart: %w", err)
		}

		b.results.put("… "+after+", until the condition of all volumes is known", time.Since(d.began).Seconds(), known("s"))

		if err := b.putMemory(d, "restarted "+after, atMost(many.memory, "MiB")); err != nil {
			return err
		}
	}

	return nil
}

func signalName(signal syscall.Signal) string {
	if signal == syscall.SIGKILL {
		return "SIGKILL"
	}

	return "SIGTERM"
}

// putMemory notes what the driver takes now, and the most that it ever took.
func (b *bench) putMemory(d *driver, when string, wanted target) error {
	for _, each := range []struct {
		name, quantity string
		wanted         target
	}{
		{"RSS, " + when, "VmRSS", wanted},
		{"Peak RSS, " + when, "VmHWM", known("MiB")},
	} {
		value, err := d.memory(each.quantity)
		if err != nil {
			return err
		}

		b.results.put(each.name, value, each.wanted)
	}

	return nil
}

// churned is what churn measures.
type churned struct {
	// alone is the median of calls one after the other, in milliseconds.
	alone float64
	// rate is that of many callers, per second, and cost their processor time per call, in milliseconds.
	rate, cost float64
}

// churn measures creations and takes the volumes away again. It lets many callers create several
// times as many volumes as the driver creates between two garbage collections.
func (d *driver) churn(ctx context.Context) (churned, error) {
	const count, countTogether, repeats = 500, 12_000, 4

	var (
		mu  sync.Mutex
		ids []string
	)

	creating := func(ctx context.Context, number int) error {
		claim, err := d.claim(ctx, fmt.Sprint("churned ", number), nil)
		if err != nil {
			return err
		}

		mu.Lock()
		defer mu.Unlock()

		ids = append(ids, claim.VolumeID)

		return nil
	}
	remove := func() error {
		_, err := together(ctx, creators, len(ids), func(ctx context.Context, number int) error { return d.delete(ctx, ids[number]) })
		ids = nil

		return err
	}

	calls, _, err := timed(ctx, 1, count, creating)
	if err == nil {
		err = remove()
	}

	var seconds, cost float64

	for repeat := 0; err == nil && repeat < repeats; repeat++ {
		var rate, each float64
		if rate, each, err = d.costing(ctx, creators, countTogether, creating); err == nil {
			seconds += countTogether / rate
			cost += each / repeats
			err = remove()
		}
	}

	if err != nil {
		return churned{}, err
	}

	return churned{alone: calls.quantile(0.5), rate: repeats * countTogether / seconds, cost: cost}, nil
}

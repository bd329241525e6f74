package main

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const (
	// relisting has everything probed five times as often as the default
	// while events come, so that a window of rest holds whole relists.
	relisting = "TOUCHSTONE_HEALTH_EVENTED_RELIST_PERIOD=1m"
	// restWindow holds two of them.
	restWindow = 2 * time.Minute
	// settling is for what the making of volumes has left to do.
	settling = 10 * time.Second

	healthProvisioned, healthStaged = 10_000, 1000
)

// health measures what it costs to know which volumes are unhealthy, and how
// soon it is known.
func health(ctx context.Context, b *bench) error {
	if err := b.faults(ctx); err != nil {
		return err
	}

	return b.resting(ctx)
}

// checks measures what writers notice of online checks.
func checks(ctx context.Context, b *bench) error { return b.onlineChecks(ctx) }

// resting measures drivers that are asked nothing or only asked to read: one
// with many provisioned volumes and one with many staged ones.
func (b *bench) resting(ctx context.Context) error {
	provisioned, done, err := b.start(ctx, relisting)
	if err != nil {
		return err
	}
	defer done()

	if _, err := together(ctx, creators, healthProvisioned, provisioned.creating("listed", nil)); err != nil {
		return err
	}

	if err := b.conditionLists(ctx, provisioned); err != nil {
		return err
	}

	staged, doneStaged, err := b.start(ctx, relisting)
	if err != nil {
		return err
	}
	defer doneStaged()

	claims, err := staged.stageMany(ctx, healthStaged)
	if err != nil {
		return err
	}

	if err := b.rest(ctx, provisioned, staged); err != nil {
		return err
	}

	if err := b.putStats(ctx, staged, claims); err != nil {
		return err
	}

	return staged.unstageMany(ctx, claims)
}

// rest measures both drivers without calls, at the same time: what is
// measured are processes.
func (b *bench) rest(ctx context.Context, provisioned, staged *driver) error {
	cases := []struct {
		driver *driver
		what   string
		share  target
		memory target
	}{
		{provisioned, "10,000 provisioned volumes at rest", atMost(0.5, "%"), known("MiB")},
		{staged, "1,000 staged volumes at rest", atMost(1, "%"), atMost(100, "MiB")},
	}

	if err := pause(ctx, settling); err != nil {
		return err
	}

	before := make([]time.Duration, len(cases))

	for i, each := range cases {
		var err error
		if before[i], err = each.driver.processor(); err != nil {
			return err
		}
	}

	if err := pause(ctx, restWindow); err != nil {
		return err
	}

	for i, each := range cases {
		after, err := each.driver.processor()
		if err != nil {
			return err
		}

		memory, err := each.driver.memory("VmRSS")
		if err != nil {
			return err
		}

		b.results.put("A relist a minute, "+each.what+": share of a core", 100*float64(after-before[i])/float64(restWindow), each.share)
		b.results.put("RSS, "+each.what, memory, each.memory)
	}

	return nil
}

func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}

// conditionLists lists volumes with their conditions and, of a second driver,
// without, in turns, so that both have the same machine.
func (b *bench) conditionLists(ctx context.Context, with *driver) error {
	without, done, err := b.start(ctx, relisting, "TOUCHSTONE_DISABLE_CAPABILITY=VOLUME_CONDITION")
	if err != nil {
		return err
	}
	defer done()

	if _, err := together(ctx, creators, healthProvisioned, without.creating("listed", nil)); err != nil {
		return err
	}

	const pairs, page = 100, 1000

	received := grpc.ForceCodecV2(tokenOnly{encoding.GetCodecV2(protocodec.Name)})
	drivers := []*driver{with, without}
	samples := []*sample{{}, {}}

	for number := range 2 * pairs {
		// Now the one is first, now the other.
		at := (number + number/2) % 2

		if err := samples[at].time(func() error { return drivers[at].list(ctx, page, received) }); err != nil {
			return err
		}
	}

	own, other := samples[0].quantile(0.5), samples[1].quantile(0.5)

	b.results.put("ListVolumes of 10,000 with conditions, 1,000 a page, received: p50", own, known("ms"))
	b.results.put("ListVolumes of 10,000 with VOLUME_CONDITION disabled: p50", other, known("ms"))
	b.results.put("… with conditions ÷ without", own/other, atMost(1.1, ""))

	return nil
}

func (d *driver) stageMany(ctx context.Context, count int) ([]*csiclient.Publication, error) {
	claims := make([]*csiclient.Publication, count)

	_, err := together(ctx, creators, count, func(ctx context.Context, number int) (err error) {
		claims[number], err = d.staged(ctx, fmt.Sprint("staged ", number), nil)

		return err
	})

	return claims, err
}

// unstageMany gives the devices back: those of a driver that is killed while its
// mount namespace ends are detached as well, but one after the other.
func (d *driver) unstageMany(ctx context.Context, claims []*csiclient.Publication) error {
	_, err := together(ctx, creators, len(claims), func(ctx context.Context, number int) error { return d.Unstage(ctx, claims[number]) })

	return err
}

// putStats asks for the usage of all volumes, one after the other.
func (b *bench) putStats(ctx context.Context, d *driver, claims []*csiclient.Publication) error {
	const rounds = 3

	calls, _, err := timed(ctx, 1, rounds*len(claims), func(ctx context.Context, number int) error {
		claim := claims[number%len(claims)]
		_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.StagingPath})

		return err
	})
	if err != nil {
		return err
	}

	b.results.put("NodeGetVolumeStats, any of 1,000 staged volumes: p50", calls.quantile(0.5), atMost(0.3, "ms"))
	b.results.put("NodeGetVolumeStats, any of 1,000 staged volumes: p99", calls.quantile(0.99), known("ms"))

	return nil
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const livers = 8

// livesOf is how many lifecycles of volumes of a kind are measured.
type livesOf struct {
	backing

	alone, together           target
	countAlone, countTogether int
}

func life(ctx context.Context, b *bench) error {
	ext4, directory := backings()[0], backings()[1]

	err := b.life(ctx, []livesOf{
		{ext4, atMost(8, "ms"), atLeast(180, "/s"), 60, 300},
		{backing{"xfs", nil, "xfs", 320 * mib}, known("ms"), known("/s"), 20, 100},
		{backing{"btrfs", nil, "btrfs", 320 * mib}, known("ms"), known("/s"), 20, 100},
		{directory, known("ms"), atLeast(300, "/s"), 300, 2000},
	})
	if err != nil {
		return err
	}

	ext4.name += " in an embedded pool"
	directory.name += " in an embedded pool"

	return b.life(ctx, []livesOf{
		{ext4, known("ms"), known("/s"), 60, 300}, {directory, known("ms"), known("/s"), 300, 1000},
	}, embedded)
}

func (b *bench) life(ctx context.Context, kinds []livesOf, environment ...string) error {
	d, done, err := b.start(ctx, environment...)
	if err != nil {
		return err
	}
	defer done()

	for _, each := range kinds {
		l := &lives{driver: d, backing: each.backing, steps: map[string]*sample{}, one: true}

		whole, _, err := timed(ctx, 1, each.countAlone, l.live)
		if err != nil {
			return err
		}

		b.results.put("A lifecycle, "+each.name+", alone: p50", whole.quantile(0.5), each.alone)

		for _, step := range l.order {
			b.results.put("… "+each.name+", "+step+": p50", l.steps[step].quantile(0.5), known("ms"))
		}

		l.one = false

		rate, cost, err := d.costing(ctx, livers, each.countTogether, l.live)
		if err != nil {
			return err
		}

		b.results.put(fmt.Sprintf("Lives, %s, %d callers", each.name, livers), rate, each.together)
		b.results.put("… "+each.name+", the driver's and its tools' processor time for each", cost, known("ms"))
	}

	return nil
}

// lives goes through whole lives of volumes.
type lives struct {
	*driver
	backing

	// one at a time, so that its steps are distinguished.
	one   bool
	steps map[string]*sample
	order []string
}

func (l *lives) live(ctx context.Context, number int) error {
	var claim *csiclient.Publication

	for _, step := range []csiclient.Step{
		{RPC: "CreateVolume", Call: func(ctx context.Context, _ *csiclient.Publication) (err error) {
			claim, err = l.claimOf(ctx, fmt.Sprintf("life %s %d", l.name, number), l.backing)

			return err
		}},
		{RPC: "ControllerPublishVolume", Call: l.Attach},
		{RPC: "NodeStageVolume", Call: l.Stage},
		{RPC: "NodePublishVolume", Call: l.Publish},
		{RPC: "write and read of 4 KiB", Call: l.use},
		{RPC: "NodeUnpublishVolume", Call: l.Unpublish},
		{RPC: "NodeUnstageVolume", Call: l.Unstage},
		{RPC: "ControllerUnpublishVolume", Call: l.Detach},
		{RPC: "DeleteVolume", Call: func(ctx context.Context, c *csiclient.Publication) error { return l.delete(ctx, c.VolumeID) }},
	} {
		if err := l.step(step.RPC, func() error { return step.Call(ctx, claim) }); err != nil {
			return err
		}
	}

	return l.tidy(claim)
}

func (l *lives) step(name string, do func() error) error {
	if !l.one {
		return do()
	}

	if l.steps[name] == nil {
		l.steps[name] = &sample{}
		l.order = append(l.order, name)
	}

	return l.steps[name].time(do)
}

// use writes a file and reads it, without a sync: a pod leaves dirty data to the unmount.
func (l *lives) use(_ context.Context, claim *csiclient.Publication) error {
	path := filepath.Join(l.seen(claim.TargetPath), "file")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		return fmt.Errorf("use the volume: %w", err)
	}

	if _, err := os.ReadFile(path); err != nil {
		return fmt.Errorf("use the volume: %w", err)
	}

	return nil
}

// tidy removes what the CO has made.
func (l *lives) tidy(claim *csiclient.Publication) error {
	for _, path := range []string{claim.StagingPath, filepath.Dir(claim.TargetPath)} {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("tidy up: %w", err)
		}
	}

	return nil
}

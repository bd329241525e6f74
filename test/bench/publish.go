package main

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

func publish(ctx context.Context, b *bench) error {
	d, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	const count = 500

	for _, each := range backings() {
		claim, err := d.staged(ctx, "published "+each.name, each.parameters)
		if err != nil {
			return err
		}

		publishing, unpublishing, err := d.republish(ctx, claim, count)
		if err != nil {
			return err
		}

		b.results.put("NodePublishVolume, "+each.name+": p50", publishing.quantile(0.5), atMost(2, "ms"))
		b.results.put("NodePublishVolume, "+each.name+": p99", publishing.quantile(0.99), known("ms"))
		b.results.put("NodeUnpublishVolume, "+each.name+": p50", unpublishing.quantile(0.5), atMost(2, "ms"))
		b.results.put("NodeUnpublishVolume, "+each.name+": p99", unpublishing.quantile(0.99), known("ms"))
	}

	return nil
}

// backing is one way to have a mounted volume.
type backing struct {
	name       string
	parameters map[string]string
	fsType     string
	bytes      int64
}

func backings() []backing {
	return []backing{
		{"ext4", nil, "ext4", volumeBytes},
		{"directory", map[string]string{"backing": "directory"}, "", volumeBytes},
	}
}

// republish publishes and unpublishes a staged volume again and again.
func (d *driver) republish(ctx context.Context, claim *csiclient.Publication, count int) (up, down *sample, err error) {
	up, down = &sample{}, &sample{}

	for range count {
		if err := up.time(func() error { return d.Publish(ctx, claim) }); err != nil {
			return nil, nil, err
		}

		if err := down.time(func() error { return d.Unpublish(ctx, claim) }); err != nil {
			return nil, nil, err
		}
	}

	return up, down, nil
}

package main

import (
	"context"
	"fmt"
)

// creators is how many callers there are: the external-provisioner's default
// number of workers is 100, but 16 saturate any disk here.
const creators = 16

func create(ctx context.Context, b *bench) error {
	d, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	const count, countTogether = 1000, 12_000

	for _, each := range []struct {
		name       string
		parameters map[string]string
		alone      target
		together   target
	}{
		{"image, thin", nil, atMost(2, "ms"), atLeast(3000, "/s")},
		{"directory", map[string]string{"backing": "directory"}, known("ms"), known("/s")},
	} {
		calls, _, err := timed(ctx, 1, count, d.creating(each.name+" alone", each.parameters))
		if err != nil {
			return err
		}

		b.results.put("CreateVolume, "+each.name+", alone: p50", calls.quantile(0.5), each.alone)
		b.results.put("CreateVolume, "+each.name+", alone: p99", calls.quantile(0.99), known("ms"))

		rate, cost, err := d.costing(ctx, creators, countTogether, d.creating(each.name+" together", each.parameters))
		if err != nil {
			return err
		}

		b.results.put(fmt.Sprintf("CreateVolume, %s, %d callers", each.name, creators), rate, each.together)
		b.results.put("… "+each.name+", the driver's processor time for each", cost, known("ms"))
	}

	return nil
}

// creating makes volumes whose names start with prefix.
func (d *driver) creating(prefix string, parameters map[string]string) func(context.Context, int) error {
	return func(ctx context.Context, number int) error {
		_, err := d.claim(ctx, fmt.Sprintf("%s %d", prefix, number), parameters)

		return err
	}
}

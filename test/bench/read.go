package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

func read(ctx context.Context, b *bench) error {
	d, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	const volumes, gets = 10_000, 3000

	if _, err := together(ctx, creators, volumes, d.creating("listed", nil)); err != nil {
		return err
	}

	if err := b.lists(ctx, d); err != nil {
		return err
	}

	claim, err := d.staged(ctx, "read", nil)
	if err != nil {
		return err
	}

	getting, _, err := timed(ctx, 1, gets, func(ctx context.Context, _ int) error { return d.get(ctx, claim.VolumeID) })
	if err != nil {
		return err
	}

	b.results.put("ControllerGetVolume: p50", getting.quantile(0.5), atMost(0.3, "ms"))
	b.results.put("ControllerGetVolume: p99", getting.quantile(0.99), known("ms"))

	stats, _, err := timed(ctx, 1, gets, func(ctx context.Context, _ int) error {
		_, err := d.NodeGetVolumeStats(ctx,
			&csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.StagingPath})

		return err
	})
	if err != nil {
		return err
	}

	b.results.put("NodeGetVolumeStats: p50", stats.quantile(0.5), atMost(0.3, "ms"))
	b.results.put("NodeGetVolumeStats: p99", stats.quantile(0.99), known("ms"))

	return nil
}

// lists measures whole lists with and without what the client does with them:
// a Go client takes far longer to decode a list than the driver to send it.
func (b *bench) lists(ctx context.Context, d *driver) error {
	const lists = 30

	received := grpc.ForceCodecV2(tokenOnly{encoding.GetCodecV2(protocodec.Name)})

	for _, each := range []struct {
		name    string
		entries int32
		wanted  target
		options []grpc.CallOption
	}{
		{"1,000 a page, received", 1000, atMost(25, "ms"), []grpc.CallOption{received}},
		{"1,000 a page, received and decoded", 1000, known("ms"), nil},
		{"100 a page, received", 100, known("ms"), []grpc.CallOption{received}},
		{"one page, received", 0, known("ms"), []grpc.CallOption{received}},
	} {
		listing, _, err := timed(ctx, 1, lists,
			func(ctx context.Context, _ int) error { return d.list(ctx, each.entries, each.options...) })
		if err != nil {
			return err
		}

		b.results.put("ListVolumes of 10,000, "+each.name+": p50", listing.quantile(0.5), each.wanted)
	}

	return nil
}

// list reads all pages.
func (d *driver) list(ctx context.Context, entries int32, options ...grpc.CallOption) error {
	for token := ""; ; {
		page, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: entries, StartingToken: token}, options...)
		if err != nil {
			return err
		}

		if token = page.GetNextToken(); token == "" {
			return nil
		}
	}
}

func (d *driver) get(ctx context.Context, id string) error {
	_, err := d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})

	return err
}

// nextTokenField is ListVolumesResponse.next_token's number.
const nextTokenField = 2

var errNoPage = errors.New("not a page of volumes")

// tokenOnly decodes of a page nothing but the token of the next one.
type tokenOnly struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (tokenOnly) Unmarshal(data mem.BufferSlice, into any) error {
	page, ok := into.(*csi.ListVolumesResponse)
	if !ok {
		return fmt.Errorf("%w: %T", errNoPage, into)
	}

	for wire := data.Materialize(); len(wire) > 0; {
		number, kind, length := protowire.ConsumeField(wire)
		if length < 0 {
			return fmt.Errorf("a page: %w", protowire.ParseError(length))
		}

		if number == nextTokenField && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(wire)
			page.NextToken, _ = protowire.ConsumeString(wire[tag:])
		}

		wire = wire[length:]
	}

	return nil
}

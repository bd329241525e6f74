package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// oneOfMany of the staged volumes is an ext4, the others are raw block.
const oneOfMany = 20

// staged measures a node on which very many volumes are staged, as -staged says.
func staged(ctx context.Context, b *bench) error {
	if b.staged == 0 {
		return nil
	}

	d, done, err := b.start(ctx, relisting)
	if err != nil {
		return err
	}
	defer done()

	claims := make([]*csiclient.Publication, b.staged)
	err = b.stageTenths(ctx, d, claims)

	if err == nil {
		err = b.amongStaged(ctx, d, claims)
	}

	began := time.Now()
	_, last := together(context.WithoutCancel(ctx), creators, len(claims), func(ctx context.Context, number int) error {
		if claims[number] == nil {
			return nil
		}

		return d.Unstage(ctx, claims[number])
	})
	b.results.put("Staged volumes: all are unstaged, 16 callers", time.Since(began).Seconds(), known("s"))

	if err == nil {
		err = last
	}

	return err
}

// stageTenths stages all volumes and notes what the stagings of each tenth take.
func (b *bench) stageTenths(ctx context.Context, d *driver, claims []*csiclient.Publication) error {
	const parts = 10

	for part := range parts {
		first, end := part*len(claims)/parts, (part+1)*len(claims)/parts

		calls, _, err := timed(ctx, 2, end-first, func(ctx context.Context, number int) error {
			claim, err := d.stageable(ctx, first+number)
			if err != nil {
				return err
			}

			claims[first+number] = claim

			return d.Stage(ctx, claim)
		})
		if err != nil {
			return err
		}

		b.results.put(fmt.Sprintf("Staged volumes %d to %d: create, attach, stage: p50", first, end), calls.quantile(0.5), known("ms"))
		fmt.Fprintf(os.Stderr, "%d staged: p50 %.1f ms\n", end, calls.quantile(0.5))
	}

	return b.putMemory(d, fmt.Sprintf("%d staged volumes", len(claims)), atMost(150, "MiB"))
}

// stageable is a volume that is attached.
func (d *driver) stageable(ctx context.Context, number int) (*csiclient.Publication, error) {
	capability := mountable()
	if number%oneOfMany != 0 {
		capability = csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	}

	made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: fmt.Sprint("staged ", number), VolumeCapabilities: []*csi.VolumeCapability{capability},
		CapacityRange: &csi.CapacityRange{RequiredBytes: volumeBytes},
	})
	if err != nil {
		return nil, err
	}

	id := made.GetVolume().GetVolumeId()
	claim := &csiclient.Publication{
		VolumeID: id, VolumeContext: made.GetVolume().GetVolumeContext(), Capability: capability, NodeID: nodeID,
		StagingPath: filepath.Join(d.root, "kubelet", "staging", id),
		TargetPath:  filepath.Join(d.root, "kubelet", "pods", id, "mount"),
	}

	return claim, d.Attach(ctx, claim)
}

// amongStaged measures calls and restarts of a driver that has many staged volumes.
func (b *bench) amongStaged(ctx context.Context, d *driver, claims []*csiclient.Publication) error {
	const calls = 200

	created, _, err := timed(ctx, 1, calls, d.creating("beside", nil))
	if err != nil {
		return err
	}

	stats, _, err := timed(ctx, 1, calls, func(ctx context.Context, number int) error {
		claim := claims[number*oneOfMany%len(claims)]
		_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.StagingPath})

		return err
	})
	if err != nil {
		return err
	}

	b.results.put("Staged volumes: CreateVolume beside them: p50", created.quantile(0.5), known("ms"))
	b.results.put("Staged volumes: NodeGetVolumeStats: p50", stats.quantile(0.5), known("ms"))

	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := d.restart(ctx, signal); err != nil {
			return err
		}

		b.results.put("Staged volumes: restart after "+signalName(signal), d.took.Seconds(), known("s"))
		fmt.Fprintf(os.Stderr, "restart after %s: %s\n", signalName(signal), d.took)
	}

	return b.putMemory(d, fmt.Sprintf("restarted with %d staged volumes", len(claims)), atMost(150, "MiB"))
}

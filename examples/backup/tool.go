package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

type tool struct {
	client *csiclient.Client
	dir    string
	out    io.Writer
}

// asking opens a stream of ranges that begins at an offset.
type asking func(from int64) iter.Seq2[csiclient.BlockMetadata, error]

// full keeps all ranges of the snapshot that were ever written. The others are
// zeros, as they are in a new volume.
func (t *tool) full(ctx context.Context, snapshotID, path string) error {
	return t.keep(ctx, header{Snapshot: snapshotID}, path, func(from int64) iter.Seq2[csiclient.BlockMetadata, error] {
		return t.client.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: snapshotID, StartingOffset: from})
	})
}

// incremental keeps the ranges that differ from an older snapshot. Some of them
// may hold zeros where that had data.
func (t *tool) incremental(ctx context.Context, baseID, snapshotID, path string) error {
	return t.keep(ctx, header{Snapshot: snapshotID, Base: baseID}, path, func(from int64) iter.Seq2[csiclient.BlockMetadata, error] {
		return t.client.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: baseID, TargetSnapshotId: snapshotID, StartingOffset: from,
		})
	})
}

// keep copies the ranges from a volume that is made of the snapshot, for CSI
// has no other way to read one.
func (t *tool) keep(ctx context.Context, about header, path string, ask asking) error {
	name := "backup-of-" + about.Snapshot
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: about.Snapshot},
	}}

	return t.withDevice(ctx, &csi.CreateVolumeRequest{Name: name, VolumeContentSource: source}, temporary, func(device *os.File) error {
		var err error
		if about.Capacity, err = device.Seek(0, io.SeekEnd); err != nil {
			return fmt.Errorf("size of the volume: %w", err)
		}

		archive, err := createArchive(path, about)
		if err != nil {
			return err
		}
		defer archive.abort()

		for block, err := range t.ranges(ctx, ask) {
			if err != nil {
				return err
			}

			if err := archive.add(device, block.GetByteOffset(), block.GetSizeBytes()); err != nil {
				return err
			}
		}

		if err := archive.commit(); err != nil {
			return err
		}

		fmt.Fprintf(t.out, "%s: %d ranges, %d of %d bytes\n", path, archive.ranges, archive.bytes, about.Capacity)

		return nil
	})
}

// ranges yields those of a stream, and goes on where it was interrupted: a driver
// that restarts ends it with UNAVAILABLE. Only the end without an error says that
// all were received (CSI v1.13, "Special considerations for processing a snapshot
// metadata gRPC stream").
func (t *tool) ranges(ctx context.Context, ask asking) iter.Seq2[*csi.BlockMetadata, error] {
	return func(yield func(*csi.BlockMetadata, error) bool) {
		for next, interrupted := int64(0), true; interrupted; {
			interrupted = false

			for message, err := range ask(next) {
				if interrupted = status.Code(err) == codes.Unavailable; interrupted {
					err = t.client.WaitReady(ctx)
				}

				if err != nil {
					yield(nil, err)

					return
				}

				if interrupted {
					break
				}

				for _, block := range message.GetBlockMetadata() {
					if !yield(block, nil) {
						return
					}

					next = block.GetByteOffset() + block.GetSizeBytes()
				}
			}
		}
	}
}

// restore makes a volume of a full backup and the incremental ones that follow
// it, each of the one before. CreateVolume answers with the volume of that name
// if there is one, such as that of a restore that was interrupted: whatever it
// holds goes first, since a full backup says nothing of what was zeros.
func (t *tool) restore(ctx context.Context, name string, paths []string) error {
	// Before anything is made: a torn file must not become half a volume.
	last, err := checkChain(paths)
	if err != nil {
		return err
	}

	request := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: last.Capacity}}

	return t.withDevice(ctx, request, kept, func(device *os.File) error {
		if err := zero(device, last.Capacity); err != nil {
			return err
		}

		for _, path := range paths {
			if err := apply(path, device); err != nil {
				return err
			}
		}

		if err := device.Sync(); err != nil {
			return fmt.Errorf("write what was restored: %w", err)
		}

		hash := sha256.New()
		if _, err := io.Copy(hash, io.NewSectionReader(device, 0, last.Capacity)); err != nil {
			return fmt.Errorf("read what was restored: %w", err)
		}

		fmt.Fprintf(t.out, "%s: snapshot %s, SHA-256 %x\n", name, last.Snapshot, hash.Sum(nil))

		return nil
	})
}

package metadata_test

import (
	"bytes"
	"math/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// blocksPools are the two ways to find out what has changed: by shared extents,
// and by bytes.
func blocksPools() map[string]func(*testing.T) harness.Option {
	return map[string]func(*testing.T) harness.Option{
		"reflink": func(t *testing.T) harness.Option {
			t.Helper()
			directory := testpool.Reflink(t, 2<<30)

			return func(c *driver.Config) { c.Pools = map[string]string{"default": directory} }
		},
		"plain": func(*testing.T) harness.Option { return func(*driver.Config) {} },
	}
}

// blockVolume makes a raw block volume and opens its device.
func blockVolume(t *testing.T, d *harness.Driver, name string, size int64) (*csiclient.Publication, *os.File) {
	t.Helper()

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: harness.RequiredBytes(size), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	harness.BringUp(t, d, claim)

	return claim, openDevice(t, claim)
}

func openDevice(t *testing.T, claim *csiclient.Publication) *os.File {
	t.Helper()

	device, err := os.OpenFile(claim.TargetPath, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { device.Close() })

	return device
}

// written puts random bytes on a device, down to the disk.
func written(t *testing.T, device *os.File, seed, offset, length int64) {
	t.Helper()

	data := make([]byte, length)
	rand.New(rand.NewSource(seed)).Read(data)

	_, err := device.WriteAt(data, offset)
	require.NoError(t, err)
	require.NoError(t, device.Sync())
}

// idle takes the volume out of use around f: a pool that can't reflink copies
// no raw block volume that is in use.
func idle(t *testing.T, d *harness.Driver, claim *csiclient.Publication, f func()) *os.File {
	t.Helper()

	harness.TakeDown(t, d, claim)
	f()
	require.NoError(t, d.Attach(t.Context(), claim))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))

	return openDevice(t, claim)
}

func bytesOfSnapshot(t *testing.T, d *harness.Driver, id string) []byte {
	t.Helper()

	all, err := os.ReadFile(filepath.Join(d.Pool(), "snapshots", id+".img"))
	require.NoError(t, err)

	return all
}

// blocks are the tuples of a whole stream, of which the form is checked.
func blocks(t *testing.T, stream func(yield func(csiclient.BlockMetadata, error) bool), capacity int64, most int) []*csi.BlockMetadata {
	t.Helper()

	var (
		all      []*csi.BlockMetadata
		end      int64
		messages int
	)

	for message, err := range stream {
		require.NoError(t, err)

		messages++

		require.Equal(t, csi.BlockMetadataType_VARIABLE_LENGTH, message.GetBlockMetadataType(), "want: the blocks have variable lengths")
		require.Equal(t, capacity, message.GetVolumeCapacityBytes(), "want: each message has the size of the volume")
		require.LessOrEqual(t, len(message.GetBlockMetadata()), most, "want: a message has no more blocks than asked for")

		for _, block := range message.GetBlockMetadata() {
			require.GreaterOrEqual(t, block.GetByteOffset(), end, "want: the blocks are in order and do not overlap")
			require.Positive(t, block.GetSizeBytes(), "want: each block has a size")

			end = block.GetByteOffset() + block.GetSizeBytes()
		}

		all = append(all, message.GetBlockMetadata()...)
	}

	require.LessOrEqual(t, end, capacity, "want: no block ends behind the volume")
	require.Positive(t, messages, "even an empty stream has the capacity")

	return all
}

// apply puts what the tuples name of now over before.
func apply(before, now []byte, tuples []*csi.BlockMetadata) []byte {
	result := make([]byte, len(now))
	copy(result, before)

	for _, tuple := range tuples {
		from, to := tuple.GetByteOffset(), tuple.GetByteOffset()+tuple.GetSizeBytes()
		copy(result[from:to], now[from:to])
	}

	return result
}

func sizesOf(tuples []*csi.BlockMetadata) (sum int64) {
	for _, tuple := range tuples {
		sum += tuple.GetSizeBytes()
	}

	return sum
}

// TestBackupsAreMadeFromTheStreams: of two snapshots, after their volume is gone.
func TestBackupsAreMadeFromTheStreams(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, option := range blocksPools() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, option(t))
			first, second := twoSnapshots(t, d)
			before, now := bytesOfSnapshot(t, d, first), bytesOfSnapshot(t, d, second)

			full := func(from int64, most int32) []*csi.BlockMetadata {
				return blocks(t, d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{
					SnapshotId: first, StartingOffset: from, MaxResults: most,
				}), 64*harness.MiB, atMost(most))
			}
			delta := func(from int64, most int32) []*csi.BlockMetadata {
				return blocks(t, d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{
					BaseSnapshotId: first, TargetSnapshotId: second, StartingOffset: from, MaxResults: most,
				}), 96*harness.MiB, atMost(most))
			}

			require.True(t, bytes.Equal(before, apply(nil, before, full(0, 0))), "want: the allocated blocks are the data of the first snapshot")
			require.Equal(t, int64(11*harness.MiB), sizesOf(full(0, 0)), "want: the allocated blocks have the size of the data")
			conformance.Shows(t, "GetMetadataAllocated", "the stream has ended", "every byte that is allocated")
			require.True(t, bytes.Equal(now, apply(before, now, delta(0, 0))), "want: the changed blocks turn the first snapshot into the second")
			require.Equal(t, int64(5*harness.MiB), sizesOf(delta(0, 0)), "want: the changed blocks have the size of the changes")
			conformance.Shows(t, "GetMetadataDelta", "the stream has ended", "every byte that differs")

			// However they are split into messages, and wherever one goes on.
			for _, most := range []int32{1, 2, 1 << 30} {
				require.Len(t, full(0, most), len(full(0, 0)), "want: the blocks do not depend on the size of the messages")
				require.Len(t, delta(0, most), len(delta(0, 0)), "want: the blocks do not depend on the size of the messages")
			}

			goesOn(t, full)
			goesOn(t, delta)
			require.Empty(t, full(64*harness.MiB, 0), "want: nothing is allocated behind the end")
			require.Empty(t, delta(96*harness.MiB, 0), "want: nothing has changed behind the end")
		})
	}
}

// TestBlocksOfFixedLength are those of the ranges, also from an offset within one.
func TestBlocksOfFixedLength(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const from = 9*harness.MiB + 5000

	d := harness.Start(t, func(c *driver.Config) { c.Controller.MetadataBlocks = csi.BlockMetadataType_FIXED_LENGTH })
	first, second := twoSnapshots(t, d)
	before, now := bytesOfSnapshot(t, d, first), bytesOfSnapshot(t, d, second)
	fixed := func(stream func(yield func(csiclient.BlockMetadata, error) bool)) (all []*csi.BlockMetadata) {
		for message, err := range stream {
			require.NoError(t, err)
			require.Equal(t, csi.BlockMetadataType_FIXED_LENGTH, message.GetBlockMetadataType(), "want: the blocks have one length")

			for _, block := range message.GetBlockMetadata() {
				require.EqualValues(t, 4096, block.GetSizeBytes(), "want: the blocks have one length")
				require.Zero(t, block.GetByteOffset()%4096, "want: a block begins at a multiple of its length")
			}

			all = append(all, message.GetBlockMetadata()...)
		}

		return all
	}

	all := fixed(d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: first}))
	require.True(t, bytes.Equal(before, apply(nil, before, all)), "want: the allocated blocks are the data of the first snapshot")
	require.EqualValues(t, 11*harness.MiB, sizesOf(all), "want: the allocated blocks have the size of the data")

	rest := fixed(d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: first, StartingOffset: from}))
	require.EqualValues(t, from/4096*4096, rest[0].GetByteOffset(), "want: the stream goes on with the block of the offset")
	require.Equal(t, all[len(all)-len(rest):], rest)

	changed := fixed(d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: first, TargetSnapshotId: second}))
	require.True(t, bytes.Equal(now, apply(before, now, changed)), "want: the changed blocks turn the first snapshot into the second")
	require.EqualValues(t, 5*harness.MiB, sizesOf(changed), "want: the changed blocks have the size of the changes")
}

func atMost(most int32) int {
	if most == 0 {
		return 1024
	}

	return int(most)
}

// goesOn asks again behind each tuple, as after an interruption, and within.
func goesOn(t *testing.T, ask func(from int64, most int32) []*csi.BlockMetadata) {
	t.Helper()

	all := ask(0, 0)
	require.NotEmpty(t, all, "want: there are blocks")

	for i, tuple := range all {
		rest := ask(tuple.GetByteOffset()+tuple.GetSizeBytes(), 0)
		require.Equal(t, sizesOf(all[i+1:]), sizesOf(rest), "want: the stream goes on behind a block")

		rest = ask(tuple.GetByteOffset()+4096, 0)
		require.Equal(t, sizesOf(all[i:])-4096, sizesOf(rest), "want: the stream goes on inside of a block")
		require.Equal(t, tuple.GetByteOffset()+4096, rest[0].GetByteOffset(), "want: the stream goes on at the offset")
	}
}

// twoSnapshots are of a volume that was written, discarded from and expanded in
// between, and then deleted.
func twoSnapshots(t *testing.T, d *harness.Driver) (first, second string) {
	t.Helper()

	claim, device := blockVolume(t, d, t.Name(), 64*harness.MiB)
	written(t, device, 1, 0, 1*harness.MiB)
	written(t, device, 2, 8*harness.MiB, 10*harness.MiB)
	require.NoError(t, device.Close())

	device = idle(t, d, claim, func() { first = harness.TakeSnapshot(t, d, claim.VolumeID, t.Name()+" 1") })

	written(t, device, 3, 9*harness.MiB, 1*harness.MiB)
	written(t, device, 4, 30*harness.MiB, 1*harness.MiB)
	require.NoError(t, discard(device, 12*harness.MiB, 2*harness.MiB))
	require.NoError(t, device.Close())

	expanded, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(96 * harness.MiB),
	})
	require.NoError(t, err)
	require.EqualValues(t, 96*harness.MiB, expanded.GetCapacityBytes(), "want: the volume has the larger size")

	_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.RequiredBytes(96 * harness.MiB), VolumeCapability: claim.Capability,
	})
	require.NoError(t, err)

	device = openDevice(t, claim)
	written(t, device, 5, 90*harness.MiB, 1*harness.MiB)
	require.NoError(t, device.Close())
	harness.TakeDown(t, d, claim)

	second = harness.TakeSnapshot(t, d, claim.VolumeID, t.Name()+" 2")
	harness.DeleteVolume(t, d, claim.VolumeID)

	return first, second
}

func discard(device *os.File, offset, length uint64) error {
	return unix.Fallocate(int(device.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(offset), int64(length))
}

// TestInvalidMetadataRequestsAreRefused, which no CO should make.
func TestInvalidMetadataRequestsAreRefused(t *testing.T) {
	t.Parallel()

	const unknown = "0198c0de-0000-7000-8000-000000000000"

	d := harness.Start(t)
	block := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	other := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "other"})
	files := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "files", Parameters: harness.DirectoryBacked()})

	first, second := harness.TakeSnapshot(t, d, block.VolumeID, "first"), harness.TakeSnapshot(t, d, block.VolumeID, "second")
	foreign, ofFiles := harness.TakeSnapshot(t, d, other.VolumeID, "foreign"), harness.TakeSnapshot(t, d, files.VolumeID, "files")

	allocated := func(id string, from int64, most int32) error {
		return lastError(d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: from, MaxResults: most}))
	}
	delta := func(base, target string, from int64, most int32) error {
		return lastError(d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: from, MaxResults: most,
		}))
	}

	harness.RequireCode(t, allocated("", 0, 0), codes.InvalidArgument, "snapshot_id is missing")
	harness.RequireCode(t, allocated("../up", 0, 0), codes.InvalidArgument, "snapshot_id")
	harness.RequireCode(t, allocated(unknown, 0, 0), codes.NotFound, unknown)
	harness.RequireCode(t, allocated(block.VolumeID, 0, 0), codes.NotFound, block.VolumeID)
	harness.RequireCode(t, allocated(first, -1, 0), codes.OutOfRange, "starting_offset", "-1")
	harness.RequireCode(t, allocated(first, 64*harness.MiB+1, 0), codes.OutOfRange, "starting_offset", first)
	harness.RequireCode(t, allocated(first, 0, -1), codes.InvalidArgument, "max_results", "-1")
	harness.RequireCode(t, allocated(ofFiles, 0, 0), codes.FailedPrecondition, ofFiles, "directory")
	require.NoError(t, allocated(first, 64*harness.MiB, 1))

	harness.RequireCode(t, delta("", second, 0, 0), codes.InvalidArgument, "base_snapshot_id is missing")
	harness.RequireCode(t, delta(first, "", 0, 0), codes.InvalidArgument, "target_snapshot_id is missing")
	harness.RequireCode(t, delta("a/b", second, 0, 0), codes.InvalidArgument, "base_snapshot_id")
	harness.RequireCode(t, delta(first, "a/b", 0, 0), codes.InvalidArgument, "target_snapshot_id")
	harness.RequireCode(t, delta(unknown, second, 0, 0), codes.NotFound, unknown)
	harness.RequireCode(t, delta(first, unknown, 0, 0), codes.NotFound, unknown)
	harness.RequireCode(t, delta(first, foreign, 0, 0), codes.InvalidArgument, first, foreign)
	harness.RequireCode(t, delta(first, first, 0, 0), codes.InvalidArgument, "same snapshot")
	harness.RequireCode(t, delta(second, first, 0, 0), codes.InvalidArgument, "exchange")
	harness.RequireCode(t, delta(first, second, -1, 0), codes.OutOfRange, "starting_offset")
	harness.RequireCode(t, delta(first, second, 64*harness.MiB+1, 0), codes.OutOfRange, "starting_offset", second)
	harness.RequireCode(t, delta(first, second, 0, -1), codes.InvalidArgument, "max_results")
	harness.RequireCode(t, lastError(d.ChangedBlocks(conformance.Exercise(t.Context(), conformance.Where("a snapshot of a directory",
		func(r *csi.GetMetadataDeltaRequest) bool { return r.GetBaseSnapshotId() == ofFiles })),
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: ofFiles, TargetSnapshotId: second})), codes.FailedPrecondition, "directory")
	require.NoError(t, delta(first, second, 64*harness.MiB, 0))

	// No refusal has kept a hold.
	for _, id := range []string{first, second, foreign, ofFiles} {
		_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
		require.NoError(t, err)
	}

	harness.RequireCode(t, allocated(first, 0, 0), codes.NotFound, first)
}

func lastError(stream func(yield func(csiclient.BlockMetadata, error) bool)) error {
	for _, err := range stream {
		if err != nil {
			return err
		}
	}

	return nil
}

// TestDeltaOfSnapshotsWhenTheClockWasSetBack: of two snapshots the order does not depend
// on the clock, but for records that have nothing else.
func TestDeltaOfSnapshotsWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	block := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	first, second := harness.TakeSnapshot(t, d, block.VolumeID, "first"), harness.TakeSnapshot(t, d, block.VolumeID, "second")
	delta := func(base, target string) error {
		return lastError(d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}))
	}

	harness.EditRecord(t, d, "snapshots", first, func(record map[string]any) { record["createdAt"] = time.Now().Add(365 * 24 * time.Hour) })
	require.NoError(t, delta(first, second))
	harness.RequireCode(t, delta(second, first), codes.InvalidArgument, "exchange")

	harness.EditRecord(t, d, "snapshots", first, func(record map[string]any) { delete(record, "sequence") })
	require.NoError(t, delta(second, first), "a record of an older version has only its time")
	harness.RequireCode(t, delta(first, second), codes.InvalidArgument, "exchange")
}

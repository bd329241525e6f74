package driver_test

import (
	"bytes"
	"context"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// blocksPools are the two ways to find out what has changed: by shared extents,
// and by bytes.
func blocksPools() map[string]func(*testing.T) harness.Option {
	return map[string]func(*testing.T) harness.Option{
		"reflink": func(t *testing.T) harness.Option {
			t.Helper()
			directory := harness.ReflinkPool(t, 2<<30)

			return func(c *driver.Config) { c.Pools = map[string]string{"default": directory} }
		},
		"plain": func(*testing.T) harness.Option { return func(*driver.Config) {} },
	}
}

// blockVolume makes a raw block volume and opens its device.
func blockVolume(t *testing.T, d *harness.Driver, name string, size int64) (*csiclient.Publication, *os.File) {
	t.Helper()

	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: required(size), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})
	bringUp(t, d, claim)

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

	takeDown(t, d, claim)
	f()
	require.NoError(t, d.Attach(t.Context(), claim))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))

	return openDevice(t, claim)
}

func snapshotOf(t *testing.T, d *harness.Driver, volumeID, name string) string {
	t.Helper()

	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: volumeID, Name: name})
	require.NoError(t, err)

	return made.GetSnapshot().GetSnapshotId()
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

		require.Equal(t, csi.BlockMetadataType_VARIABLE_LENGTH, message.GetBlockMetadataType())
		require.Equal(t, capacity, message.GetVolumeCapacityBytes())
		require.LessOrEqual(t, len(message.GetBlockMetadata()), most)

		for _, block := range message.GetBlockMetadata() {
			require.GreaterOrEqual(t, block.GetByteOffset(), end)
			require.Positive(t, block.GetSizeBytes())

			end = block.GetByteOffset() + block.GetSizeBytes()
		}

		all = append(all, message.GetBlockMetadata()...)
	}

	require.LessOrEqual(t, end, capacity)
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

// TestMetadata backs two snapshots up from the streams, after their
// volume is gone.
func TestMetadata(t *testing.T) {
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
				}), 64*mib, atMost(most))
			}
			delta := func(from int64, most int32) []*csi.BlockMetadata {
				return blocks(t, d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{
					BaseSnapshotId: first, TargetSnapshotId: second, StartingOffset: from, MaxResults: most,
				}), 96*mib, atMost(most))
			}

			require.True(t, bytes.Equal(before, apply(nil, before, full(0, 0))))
			require.Equal(t, int64(11*mib), sizesOf(full(0, 0)))
			require.True(t, bytes.Equal(now, apply(before, now, delta(0, 0))))
			require.Equal(t, int64(5*mib), sizesOf(delta(0, 0)))

			// However they are split into messages, and wherever one goes on.
			for _, most := range []int32{1, 2, 1 << 30} {
				require.Len(t, full(0, most), len(full(0, 0)))
				require.Len(t, delta(0, most), len(delta(0, 0)))
			}

			goesOn(t, full)
			goesOn(t, delta)
			require.Empty(t, full(64*mib, 0))
			require.Empty(t, delta(96*mib, 0))
		})
	}
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
	require.NotEmpty(t, all)

	for i, tuple := range all {
		rest := ask(tuple.GetByteOffset()+tuple.GetSizeBytes(), 0)
		require.Equal(t, sizesOf(all[i+1:]), sizesOf(rest))

		rest = ask(tuple.GetByteOffset()+4096, 0)
		require.Equal(t, sizesOf(all[i:])-4096, sizesOf(rest))
		require.Equal(t, tuple.GetByteOffset()+4096, rest[0].GetByteOffset())
	}
}

// twoSnapshots are of a volume that was written, discarded from and expanded in
// between, and then deleted.
func twoSnapshots(t *testing.T, d *harness.Driver) (first, second string) {
	t.Helper()

	claim, device := blockVolume(t, d, t.Name(), 64*mib)
	written(t, device, 1, 0, 1*mib)
	written(t, device, 2, 8*mib, 10*mib)
	require.NoError(t, device.Close())

	device = idle(t, d, claim, func() { first = snapshotOf(t, d, claim.VolumeID, t.Name()+" 1") })

	written(t, device, 3, 9*mib, 1*mib)
	written(t, device, 4, 30*mib, 1*mib)
	require.NoError(t, discard(device, 12*mib, 2*mib))
	require.NoError(t, device.Close())

	expanded, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: required(96 * mib),
	})
	require.NoError(t, err)
	require.EqualValues(t, 96*mib, expanded.GetCapacityBytes())

	_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: required(96 * mib), VolumeCapability: claim.Capability,
	})
	require.NoError(t, err)

	device = openDevice(t, claim)
	written(t, device, 5, 90*mib, 1*mib)
	require.NoError(t, device.Close())
	takeDown(t, d, claim)

	second = snapshotOf(t, d, claim.VolumeID, t.Name()+" 2")
	deleteVolume(t, d, claim.VolumeID)

	return first, second
}

func discard(device *os.File, offset, length uint64) error {
	return unix.Fallocate(int(device.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(offset), int64(length))
}

// TestMetadataRefusals is of calls that no CO should make.
func TestMetadataRefusals(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const unknown = "0198c0de-0000-7000-8000-000000000000"

	d := harness.Start(t)
	block := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})
	other := newVolume(t, d, &csi.CreateVolumeRequest{Name: "other"})
	files := newVolume(t, d, &csi.CreateVolumeRequest{Name: "files", Parameters: directoryBacked()})

	first, second := snapshotOf(t, d, block.VolumeID, "first"), snapshotOf(t, d, block.VolumeID, "second")
	foreign, ofFiles := snapshotOf(t, d, other.VolumeID, "foreign"), snapshotOf(t, d, files.VolumeID, "files")

	allocated := func(id string, from int64, most int32) error {
		return lastError(d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: from, MaxResults: most}))
	}
	delta := func(base, target string, from int64, most int32) error {
		return lastError(d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: from, MaxResults: most,
		}))
	}

	fails(t, allocated("", 0, 0), codes.InvalidArgument, "snapshot_id is missing")
	fails(t, allocated("../up", 0, 0), codes.InvalidArgument, "snapshot_id")
	fails(t, allocated(unknown, 0, 0), codes.NotFound, unknown)
	fails(t, allocated(block.VolumeID, 0, 0), codes.NotFound, block.VolumeID)
	fails(t, allocated(first, -1, 0), codes.OutOfRange, "starting_offset", "-1")
	fails(t, allocated(first, 64*mib+1, 0), codes.OutOfRange, "starting_offset", first)
	fails(t, allocated(first, 0, -1), codes.InvalidArgument, "max_results", "-1")
	fails(t, allocated(ofFiles, 0, 0), codes.FailedPrecondition, ofFiles, "directory")
	require.NoError(t, allocated(first, 64*mib, 1))

	fails(t, delta("", second, 0, 0), codes.InvalidArgument, "base_snapshot_id is missing")
	fails(t, delta(first, "", 0, 0), codes.InvalidArgument, "target_snapshot_id is missing")
	fails(t, delta("a/b", second, 0, 0), codes.InvalidArgument, "base_snapshot_id")
	fails(t, delta(first, "a/b", 0, 0), codes.InvalidArgument, "target_snapshot_id")
	fails(t, delta(unknown, second, 0, 0), codes.NotFound, unknown)
	fails(t, delta(first, unknown, 0, 0), codes.NotFound, unknown)
	fails(t, delta(first, foreign, 0, 0), codes.InvalidArgument, first, foreign)
	fails(t, delta(first, first, 0, 0), codes.InvalidArgument, "same snapshot")
	fails(t, delta(second, first, 0, 0), codes.InvalidArgument, "exchange")
	fails(t, delta(first, second, -1, 0), codes.OutOfRange, "starting_offset")
	fails(t, delta(first, second, 64*mib+1, 0), codes.OutOfRange, "starting_offset", second)
	fails(t, delta(first, second, 0, -1), codes.InvalidArgument, "max_results")
	fails(t, delta(ofFiles, second, 0, 0), codes.FailedPrecondition, "directory")
	require.NoError(t, delta(first, second, 64*mib, 0))

	// No refusal has kept a hold.
	for _, id := range []string{first, second, foreign, ofFiles} {
		_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
		require.NoError(t, err)
	}

	fails(t, allocated(first, 0, 0), codes.NotFound, first)
}

func lastError(stream func(yield func(csiclient.BlockMetadata, error) bool)) error {
	for _, err := range stream {
		if err != nil {
			return err
		}
	}

	return nil
}

// manyRanges is a snapshot with more ranges than a connection takes messages
// that no client reads: streaming one of each has to wait.
func manyRanges(t *testing.T, d *harness.Driver) (snapshotID string, ranges int) {
	t.Helper()

	const every = 8192

	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		CapacityRange: required(128 * mib), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})

	image, err := os.OpenFile(imageOf(d, claim.VolumeID), os.O_RDWR, 0)
	require.NoError(t, err)

	defer image.Close()

	for at := int64(0); at < 128*mib; at += every {
		_, err := image.WriteAt([]byte{1}, at)
		require.NoError(t, err)
	}

	return snapshotOf(t, d, claim.VolumeID, t.Name()), 128 * mib / every
}

// TestMetadataStreamIsLeft holds the snapshot until the client leaves, and no
// longer.
func TestMetadataStreamIsLeft(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, blocksPools()["reflink"](t))
	id, _ := manyRanges(t, d)

	ctx, leave := context.WithCancel(t.Context())
	defer leave()

	stream, err := d.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: 1})
	require.NoError(t, err)

	_, err = stream.Recv()
	require.NoError(t, err)

	remove := func() error {
		_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})

		return err
	}
	fails(t, remove(), codes.Aborted, id)
	require.True(t, running("metadata.(*Service)."), "want: the driver runs the stream")

	leave()
	require.Eventually(t, func() bool { return !running("metadata.(*Service).") }, time.Minute, time.Millisecond)
	require.NoError(t, remove())
}

// TestMetadataStreamThatIsNotReadEnds gives the snapshot back to be deleted though
// its client keeps the stream and reads nothing.
func TestMetadataStreamThatIsNotReadEnds(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, blocksPools()["reflink"](t), func(c *driver.Config) { c.MetadataIdle = 100 * time.Millisecond })
	id, _ := manyRanges(t, d)

	stream, err := d.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: 1})
	require.NoError(t, err)

	_, err = stream.Recv()
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})

		return err == nil
	}, time.Minute, 10*time.Millisecond, "waited for the stream to give the snapshot back")

	for err == nil {
		_, err = stream.Recv()
	}

	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
}

// running says whether a goroutine of this process, which the driver is in too,
// is in a function.
func running(function string) bool {
	stacks := make([]byte, 4*mib)

	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), function)
}

// TestMetadataStreamOfADriverThatEnds is ended, for the CO to go on elsewhere or
// later.
func TestMetadataStreamOfADriverThatEnds(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, blocksPools()["reflink"](t))
	id, ranges := manyRanges(t, d)

	stream, err := d.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: 1})
	require.NoError(t, err)

	message, err := stream.Recv()
	require.NoError(t, err)

	received := 1
	next := message.GetBlockMetadata()[0].GetByteOffset() + message.GetBlockMetadata()[0].GetSizeBytes()
	ended := make(chan struct{})

	// What waits for the end beside a stream that can't be sent.
	const waits = "metadata.(*Service).send.func1"

	require.True(t, running(waits), "want: the driver runs the stream")

	go func() {
		defer close(ended)
		d.Stop()
	}()

	require.Eventually(t, func() bool { return !running(waits) }, time.Minute, time.Millisecond)

	for err == nil {
		if message, err = stream.Recv(); err == nil {
			received++
			next = message.GetBlockMetadata()[0].GetByteOffset() + message.GetBlockMetadata()[0].GetSizeBytes()
		}
	}

	require.NotErrorIs(t, err, io.EOF, "an end that is none")
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.Less(t, received, ranges)
	await.Receive(t, ended, "the driver to stop")

	d.Restart(t)
	require.Len(t, blocks(t, d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{
		SnapshotId: id, StartingOffset: next,
	}), 128*mib, 1024), ranges-received)
}

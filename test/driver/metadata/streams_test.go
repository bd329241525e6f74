package metadata_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// manyRanges is a snapshot with more ranges than a connection takes messages
// that no client reads: streaming one of each has to wait.
func manyRanges(t *testing.T, d *harness.Driver) (snapshotID string, ranges int) {
	t.Helper()

	const every = 8192

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		CapacityRange: harness.RequiredBytes(128 * harness.MiB), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})

	image, err := os.OpenFile(harness.ImageOf(d, claim.VolumeID), os.O_RDWR, 0)
	require.NoError(t, err)

	defer image.Close()

	for at := int64(0); at < 128*harness.MiB; at += every {
		_, err := image.WriteAt([]byte{1}, at)
		require.NoError(t, err)
	}

	return harness.TakeSnapshot(t, d, claim.VolumeID, t.Name()), 128 * harness.MiB / every
}

// TestCancelledStreamReleasesTheSnapshot, which is held until the client leaves, and no longer.
func TestCancelledStreamReleasesTheSnapshot(t *testing.T) {
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
	harness.RequireCode(t, remove(), codes.Aborted, id)
	conformance.Shows(t, "DeleteSnapshot", "its metadata is being read", "Aborted")
	require.True(t, running("metadata.(*Service)."), "want: the driver runs the stream")

	leave()
	require.Eventually(t, func() bool { return !running("metadata.(*Service).") }, time.Minute, time.Millisecond, "want: the stream that was left ends")
	require.NoError(t, remove())
	conformance.Shows(t, "GetMetadataAllocated", "the client leaves", "the stream ends and holds no snapshot")
}

// TestUnreadMetadataStreamEnds, so that the snapshot can be deleted though its client keeps the
// stream and reads nothing.
func TestUnreadMetadataStreamEnds(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, blocksPools()["reflink"](t), func(c *driver.Config) { c.Controller.MetadataIdle = 100 * time.Millisecond })
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

	harness.RequireCode(t, err, codes.DeadlineExceeded)
}

// running says whether a goroutine of this process, which the driver is in too,
// is in a function.
func running(function string) bool {
	stacks := make([]byte, 4*harness.MiB)

	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), function)
}

// TestMetadataStreamEndsWithTheDriver, for the CO to go on elsewhere or later.
func TestMetadataStreamEndsWithTheDriver(t *testing.T) {
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

	// What waits for the end of a stream that can't be sent.
	const waits = "metadata.(*Service).send("

	require.True(t, running(waits), "want: the driver runs the stream")

	go func() {
		defer close(ended)
		d.Stop()
	}()

	require.Eventually(t, func() bool { return !running(waits) }, time.Minute, time.Millisecond, "want: the stream of the ending driver ends")

	for err == nil {
		if message, err = stream.Recv(); err == nil {
			received++
			next = message.GetBlockMetadata()[0].GetByteOffset() + message.GetBlockMetadata()[0].GetSizeBytes()
		}
	}

	require.NotErrorIs(t, err, io.EOF, "an end that is none")
	harness.RequireCode(t, err, codes.Unavailable)
	require.Less(t, received, ranges, "want: the stream does not end with all of its ranges")
	await.Receive(t, ended, "the driver to stop")

	d.Restart(t)
	require.Len(t, blocks(t, d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{
		SnapshotId: id, StartingOffset: next,
	}), 128*harness.MiB, 1024), ranges-received, "want: the stream goes on after the restart")
}

// TestMetadataStreamOfADamagedSnapshotFails shortens the snapshot while it is streamed: what is
// missing is no end of the stream.
func TestMetadataStreamOfADamagedSnapshotFails(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, blocksPools()["reflink"](t))
	id, ranges := manyRanges(t, d)

	stream, err := d.GetMetadataAllocated(conformance.Exercise(t.Context(), conformance.Where("a snapshot that loses its end",
		func(r *csi.GetMetadataAllocatedRequest) bool { return r.GetSnapshotId() == id })),
		&csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: 1})
	require.NoError(t, err)

	_, err = stream.Recv()
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(d.Pool(), "snapshots", id+".img"), 0))

	received := 1
	for ; err == nil; received++ {
		_, err = stream.Recv()
	}

	require.NotErrorIs(t, err, io.EOF, "an end that is none")
	harness.RequireCode(t, err, codes.Internal)
	require.Less(t, received, ranges, "want: the failed stream ends before its last range")

	err = lastError(d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id}))
	harness.RequireCode(t, err, codes.Internal, id, "0 bytes", "delete it")
}

// TestMetadataRequestsAreLimited: the limits of the spec hold for streams too.
func TestMetadataRequestsAreLimited(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	block := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	snapshot := harness.TakeSnapshot(t, d, block.VolumeID, "snapshot")

	harness.RequireCode(t, lastError(d.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{
		SnapshotId: snapshot, Secrets: map[string]string{"key": strings.Repeat("x", 2*os.Getpagesize())},
	})), codes.InvalidArgument, "secrets")
}

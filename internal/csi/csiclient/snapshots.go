package csiclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// CreateSnapshot is repeated until the snapshot is ready: soon at first, since most
	// snapshots are small, then with a doubled delay up to the longest.
	firstRetryDelay   = 50 * time.Millisecond
	longestRetryDelay = 2 * time.Second
)

// ErrNoSnapshot is returned if ListSnapshots does not contain the requested snapshot.
var ErrNoSnapshot = errors.New("no such snapshot")

// Snapshots iterates over ListSnapshots: the snapshots of one source volume, or all if
// sourceVolumeID is empty. With pageSize 0 the driver chooses. An error is yielded once, as
// the last element.
func (c *Client) Snapshots(
	ctx context.Context, sourceVolumeID string, pageSize int32,
) iter.Seq2[*csi.ListSnapshotsResponse_Entry, error] {
	return pages(ctx, func(ctx context.Context, token string) (*csi.ListSnapshotsResponse, error) {
		return c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{
			MaxEntries: pageSize, StartingToken: token, SourceVolumeId: sourceVolumeID,
		})
	})
}

// FindSnapshot calls GetSnapshot, or ListSnapshots with the id for a driver without
// GetSnapshot. Errors: the driver's NOT_FOUND of GetSnapshot, ErrNoSnapshot of the list.
func (c *Client) FindSnapshot(ctx context.Context, caps Capabilities, id string) (*csi.Snapshot, error) {
	if caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_SNAPSHOT) {
		answer, err := c.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})

		return answer.GetSnapshot(), err
	}

	answer, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id})
	if err != nil {
		return nil, err
	}

	for _, entry := range answer.GetEntries() {
		if entry.GetSnapshot().GetSnapshotId() == id {
			return entry.GetSnapshot(), nil
		}
	}

	return nil, fmt.Errorf("%w: %s", ErrNoSnapshot, id)
}

// GroupMembers returns the ids of a group's snapshots, which the calls for a group require
// beside its own id. It finds them with ListSnapshots, in no particular order.
func (c *Client) GroupMembers(ctx context.Context, groupID string) ([]string, error) {
	var ids []string

	for entry, err := range c.Snapshots(ctx, "", 0) {
		if err != nil {
			return nil, err
		}

		if entry.GetSnapshot().GetGroupSnapshotId() == groupID {
			ids = append(ids, entry.GetSnapshot().GetSnapshotId())
		}
	}

	return ids, nil
}

// CreateSnapshotAndWait calls CreateSnapshot, repeatedly as the spec requires, until the
// snapshot is ready to use. If ctx ends first, it returns the last answer with the error: the
// snapshot exists and its copy continues.
func (c *Client) CreateSnapshotAndWait(
	ctx context.Context, request *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	return waitUntilReady(ctx, func() (*csi.CreateSnapshotResponse, bool, error) {
		answer, err := c.CreateSnapshot(ctx, request)

		return answer, answer.GetSnapshot().GetReadyToUse(), err
	})
}

// CreateGroupSnapshotAndWait does the same with CreateVolumeGroupSnapshot.
func (c *Client) CreateGroupSnapshotAndWait(
	ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	return waitUntilReady(ctx, func() (*csi.CreateVolumeGroupSnapshotResponse, bool, error) {
		answer, err := c.CreateVolumeGroupSnapshot(ctx, request)

		return answer, answer.GetGroupSnapshot().GetReadyToUse(), err
	})
}

// waitUntilReady repeats a call until its object is ready. After the first answer the
// object exists, so ABORTED only means that the driver is still working on it.
func waitUntilReady[A any](ctx context.Context, call func() (answer *A, ready bool, err error)) (*A, error) {
	var latest *A

	for pause := firstRetryDelay; ; pause = min(2*pause, longestRetryDelay) {
		answer, ready, err := call()

		switch {
		case err == nil:
			latest = answer
		case latest == nil || status.Code(err) != codes.Aborted:
			return latest, err
		}

		if ready {
			return latest, nil
		}

		select {
		case <-ctx.Done():
			return latest, fmt.Errorf("wait until the snapshot is ready to use: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// BlockMetadata is one message of either stream of the SnapshotMetadata service.
type BlockMetadata interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// AllocatedBlocks iterates over GetMetadataAllocated: the ranges of a snapshot that contain
// data. An error is yielded once, as the last element.
func (c *Client) AllocatedBlocks(ctx context.Context, request *csi.GetMetadataAllocatedRequest) iter.Seq2[BlockMetadata, error] {
	return streamMessages(ctx, request, c.GetMetadataAllocated)
}

// ChangedBlocks iterates over GetMetadataDelta: the ranges in which the target differs from
// the base. An error is yielded once, as the last element.
func (c *Client) ChangedBlocks(ctx context.Context, request *csi.GetMetadataDeltaRequest) iter.Seq2[BlockMetadata, error] {
	return streamMessages(ctx, request, c.GetMetadataDelta)
}

// streamMessages yields a stream's messages, and cancels the stream when the consumer stops.
func streamMessages[R any, M BlockMetadata, S interface{ Recv() (M, error) }](
	ctx context.Context, request R, open func(context.Context, R, ...grpc.CallOption) (S, error),
) iter.Seq2[BlockMetadata, error] {
	return func(yield func(BlockMetadata, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()

		stream, err := open(ctx, request)
		if err != nil {
			yield(nil, err)

			return
		}

		for {
			message, err := stream.Recv()

			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(nil, err)

				return
			case !yield(message, nil):
				return
			}
		}
	}
}

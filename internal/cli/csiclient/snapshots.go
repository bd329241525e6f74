package csiclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// A snapshot that is not ready is asked for again: soon at first, since most
	// are small, then no more often than anybody would look.
	readyFirstPause = 50 * time.Millisecond
	readyMostPause  = 2 * time.Second
)

// ErrNoSnapshot is returned where a list does not have the snapshot that it
// was asked for.
var ErrNoSnapshot = errors.New("no such snapshot")

// Snapshots walks ListSnapshots page by page: of one source volume, or of all
// if sourceVolumeID is empty. pageSize 0 leaves it to the driver. An error is
// yielded once, as the last element.
func (o *Orchestrator) Snapshots(
	ctx context.Context, sourceVolumeID string, pageSize int32,
) iter.Seq2[*csi.ListSnapshotsResponse_Entry, error] {
	return pages(ctx, func(ctx context.Context, token string) (page[*csi.ListSnapshotsResponse_Entry], error) {
		answer, err := o.ListSnapshots(ctx, &csi.ListSnapshotsRequest{
			MaxEntries: pageSize, StartingToken: token, SourceVolumeId: sourceVolumeID,
		})

		return page[*csi.ListSnapshotsResponse_Entry]{answer.GetEntries(), answer.GetNextToken()}, err
	})
}

// Snapshot is GetSnapshot, or ListSnapshots by id of a driver that lists only.
// Errors: ErrNoSnapshot from the list, the driver's NOT_FOUND from the other.
func (o *Orchestrator) Snapshot(ctx context.Context, caps Capabilities, id string) (*csi.Snapshot, error) {
	if caps.Controls(csi.ControllerServiceCapability_RPC_GET_SNAPSHOT) {
		answer, err := o.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})

		return answer.GetSnapshot(), err
	}

	answer, err := o.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id})
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

// MembersOf are the ids of a group's snapshots, which the calls on a group
// want beside its own: found in ListSnapshots, in no order.
func (o *Orchestrator) MembersOf(ctx context.Context, groupID string) ([]string, error) {
	var ids []string

	for entry, err := range o.Snapshots(ctx, "", 0) {
		if err != nil {
			return nil, err
		}

		if entry.GetSnapshot().GetGroupSnapshotId() == groupID {
			ids = append(ids, entry.GetSnapshot().GetSnapshotId())
		}
	}

	return ids, nil
}

// SnapshotUntilReady is CreateSnapshot, made again as the spec has it until the
// snapshot is ready to use. When ctx ends first the last answer comes with the
// error: the snapshot is there and goes on.
func (o *Orchestrator) SnapshotUntilReady(
	ctx context.Context, request *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	return untilReady(ctx, func() (*csi.CreateSnapshotResponse, bool, error) {
		answer, err := o.CreateSnapshot(ctx, request)

		return answer, answer.GetSnapshot().GetReadyToUse(), err
	})
}

// GroupUntilReady is the same for CreateVolumeGroupSnapshot.
func (o *Orchestrator) GroupUntilReady(
	ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	return untilReady(ctx, func() (*csi.CreateVolumeGroupSnapshotResponse, bool, error) {
		answer, err := o.CreateVolumeGroupSnapshot(ctx, request)

		return answer, answer.GetGroupSnapshot().GetReadyToUse(), err
	})
}

// untilReady repeats a call that answers with something that may not be ready.
// Once it is cut, ABORTED only says that the driver is busy with it.
func untilReady[A any](ctx context.Context, call func() (answer *A, ready bool, err error)) (*A, error) {
	var last *A

	for pause := readyFirstPause; ; pause = min(2*pause, readyMostPause) {
		answer, ready, err := call()

		switch {
		case err == nil:
			last = answer
		case last == nil || status.Code(err) != codes.Aborted:
			return last, err
		}

		if ready {
			return last, nil
		}

		select {
		case <-ctx.Done():
			return last, fmt.Errorf("wait until the snapshot is ready to use: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Blocks is one message of a stream of the SnapshotMetadata service.
type Blocks interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// Allocated streams GetMetadataAllocated: the ranges of a snapshot that hold
// data. An error is yielded once, as the last element.
func (o *Orchestrator) Allocated(ctx context.Context, request *csi.GetMetadataAllocatedRequest) iter.Seq2[Blocks, error] {
	return received(ctx, func(ctx context.Context) (func() (Blocks, error), error) {
		stream, err := o.GetMetadataAllocated(ctx, request)
		if err != nil {
			return nil, err
		}

		return func() (Blocks, error) { return stream.Recv() }, nil
	})
}

// Changed streams GetMetadataDelta: the ranges in which the target differs
// from the base. An error is yielded once, as the last element.
func (o *Orchestrator) Changed(ctx context.Context, request *csi.GetMetadataDeltaRequest) iter.Seq2[Blocks, error] {
	return received(ctx, func(ctx context.Context) (func() (Blocks, error), error) {
		stream, err := o.GetMetadataDelta(ctx, request)
		if err != nil {
			return nil, err
		}

		return func() (Blocks, error) { return stream.Recv() }, nil
	})
}

// received yields a stream's messages and cancels it when nobody wants more.
func received(
	ctx context.Context, open func(context.Context) (receive func() (Blocks, error), err error),
) iter.Seq2[Blocks, error] {
	return func(yield func(Blocks, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()

		receive, err := open(ctx)
		if err != nil {
			yield(nil, err)

			return
		}

		for {
			message, err := receive()

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

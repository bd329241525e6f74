// Package metadata is the CSI SnapshotMetadata service: it streams which ranges of a
// snapshot hold data, and which differ from an older snapshot of the same volume.
//
// It reads snapshots that the controller keeps from deletion meanwhile (Snapshots);
// it does not know the controller.
package metadata

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/changedblocks"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

const (
	// mostBlocks of a message take 22 KiB. A client that has to go on after an
	// interruption has lost no more than that.
	mostBlocks = 1024
	// mostBlockBytes bounds the memory of a client that reads the range of one tuple
	// at once.
	mostBlockBytes = 64 << 20
)

// Snapshots are the snapshots of the controller.
type Snapshots interface {
	// LockSnapshot returns a snapshot that is ready, and prevents its deletion until
	// unlock is called. Errors: INVALID_ARGUMENT, NOT_FOUND, ABORTED.
	LockSnapshot(id string) (found *record.Snapshot, unlock func(), err error)
}

// Pools are the pools of the controller.
type Pools interface {
	// Pool returns a pool that is available. The error mentions object.
	Pool(name, object string) (*pool.Pool, error)
}

// Service is the SnapshotMetadata service (CSI v1.13, Snapshot Metadata Service
// RPCs). It needs only the snapshots: their volume may have been deleted.
//
// Ranges are of VARIABLE_LENGTH by default, so that one tuple describes what would
// be 16 thousand blocks of 4 KiB.
//
// It is safe for concurrent use.
type Service struct {
	csi.UnimplementedSnapshotMetadataServer

	snapshots Snapshots
	pools     Pools

	// idle is how long a client may leave a message unread.
	idle   time.Duration
	blocks csi.BlockMetadataType
	// draining ends when drain is called.
	draining context.Context //nolint:containedctx // it is the driver's
	drain    context.CancelFunc
}

// DefaultIdle is how long a client may leave a message unread before its
// stream ends: it keeps the snapshot from being deleted.
const DefaultIdle = time.Minute

// New returns the service of the snapshots. A stream ends when its client leaves a
// message unread for idle; 0 is DefaultIdle. Without a type of blocks it is VARIABLE_LENGTH.
func New(snapshots Snapshots, pools Pools, idle time.Duration, blocks csi.BlockMetadataType) *Service {
	draining, drain := context.WithCancel(context.Background())

	return &Service{
		snapshots: snapshots, pools: pools, draining: draining, drain: drain,
		idle: cmp.Or(idle, DefaultIdle), blocks: cmp.Or(blocks, csi.BlockMetadataType_VARIABLE_LENGTH),
	}
}

// Drain ends all streams with UNAVAILABLE: the spec has the CO go on where a
// stream was interrupted, so none needs to be waited for.
func (m *Service) Drain(context.Context) error {
	m.drain()

	return nil
}

// GetMetadataAllocated streams the ranges of a snapshot that were ever written
// (CSI v1.13, GetMetadataAllocated). Errors: INVALID_ARGUMENT, NOT_FOUND,
// OUT_OF_RANGE, ABORTED while the snapshot is being copied or deleted,
// FAILED_PRECONDITION for that of a directory.
func (m *Service) GetMetadataAllocated(
	request *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	asked := page{request.GetStartingOffset(), request.GetMaxResults()}
	if err := asked.check(); err != nil {
		return err
	}

	snapshot, err := m.open("snapshot_id", request.GetSnapshotId())
	if err != nil {
		return err
	}

	return m.answer(stream.Context(), asked, snapshot, func(blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: m.blocks, VolumeCapacityBytes: snapshot.record.SizeBytes, BlockMetadata: blocks,
		})
	}, func(ctx context.Context, found *tuples) error {
		return changedblocks.Allocated(ctx, snapshot.image, asked.from, found.add)
	})
}

// GetMetadataDelta streams the ranges in which the target snapshot differs from
// the base, which is an older one of the same volume (CSI v1.13,
// GetMetadataDelta). Errors: as GetMetadataAllocated, and INVALID_ARGUMENT for
// two snapshots that are not such a pair.
func (m *Service) GetMetadataDelta(
	request *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	asked := page{request.GetStartingOffset(), request.GetMaxResults()}
	if err := asked.check(); err != nil {
		return err
	}

	base, target, err := m.openPair(request)
	if err != nil {
		return err
	}

	return m.answer(stream.Context(), asked, target, func(blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: m.blocks, VolumeCapacityBytes: target.record.SizeBytes, BlockMetadata: blocks,
		})
	}, func(ctx context.Context, found *tuples) error {
		return changedblocks.Changed(ctx, base.image, target.image, asked.from, found.add)
	})
}

// answer sends what walk finds about a snapshot, and closes the snapshot when walk ends.
func (m *Service) answer(
	stream context.Context, asked page, snapshot *opened, send func([]*csi.BlockMetadata) error, walk func(context.Context, *tuples) error,
) error {
	if err := asked.within(snapshot.record); err != nil {
		snapshot.close()

		return err
	}

	found := newTuples(asked, snapshot.record, send)

	return m.send(stream, found, func(ctx context.Context) error {
		defer snapshot.close()

		return walk(ctx, found)
	})
}

// send calls walk. It returns as soon as the client leaves, leaves a message unread for too long, or the
// driver drains; that ends a message that is being sent, and with it the walk.
func (m *Service) send(stream context.Context, found *tuples, walk func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(stream)
	defer cancel(nil)
	defer context.AfterFunc(m.draining, func() { //nolint:contextcheck // it ends with the driver
		cancel(rpc.Errorf(codes.Unavailable, "%w: go on behind the last range when it is back", operation.ErrDraining))
	})()

	found.fixed = m.blocks == csi.BlockMetadataType_FIXED_LENGTH
	m.limitSends(ctx, cancel, found)

	_, err := operation.Await(ctx, func() (struct{}, error) {
		if err := walk(ctx); err != nil {
			return struct{}{}, err
		}

		return struct{}{}, found.end()
	})

	return cmp.Or(context.Cause(ctx), err)
}

// limitSends ends the stream when one message takes longer than idle.
func (m *Service) limitSends(ctx context.Context, cancel context.CancelCauseFunc, found *tuples) {
	send := found.send
	found.send = func(blocks []*csi.BlockMetadata) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		timer := time.AfterFunc(m.idle, func() {
			cancel(rpc.Errorf(codes.DeadlineExceeded,
				"a message was not read within %s; call again with the offset behind the last range", m.idle))
		})
		defer timer.Stop()

		return send(blocks)
	}
}

// opened is a snapshot whose bytes stay until close, as do those of the base that it is compared with.
type opened struct {
	record  *record.Snapshot
	image   *os.File
	release func()
	// base is nil unless there is one.
	base *opened
}

func (o *opened) close() {
	_ = o.image.Close()
	o.release()

	if o.base != nil {
		o.base.close()
	}
}

// open holds a snapshot that the request names in field. Errors:
// INVALID_ARGUMENT, NOT_FOUND, ABORTED, FAILED_PRECONDITION.
func (m *Service) open(field, id string) (*opened, error) {
	if err := rpc.CheckID(field, id); err != nil {
		return nil, err
	}

	found, release, err := m.snapshots.LockSnapshot(id)
	if err != nil {
		return nil, err
	}

	image, err := m.image(found)
	if err != nil {
		release()

		return nil, err
	}

	return &opened{record: found, image: image, release: release}, nil
}

func (m *Service) image(snapshot *record.Snapshot) (*os.File, error) {
	// The spec's code for storage without this information; it has the CO make a
	// full backup, which is what can be done with files.
	if !snapshot.Parameters.Backing.HasDevice() {
		return nil, rpc.Errorf(codes.FailedPrecondition, "snapshot %s is of a directory, which has no blocks; back up its files", snapshot.ID)
	}

	p, err := m.pools.Pool(snapshot.Parameters.Pool, "snapshot "+snapshot.ID)
	if err != nil {
		return nil, err
	}

	image, err := p.Open(snapshot.Object())
	if err != nil {
		return nil, err
	}

	// Ranges that it has lost would be taken for ones that were never written.
	info, err := image.Stat()
	if err != nil {
		return nil, errors.Join(err, image.Close())
	}

	if info.Size() < snapshot.SizeBytes {
		err := rpc.Errorf(codes.Internal, "the image of snapshot %s has %d bytes instead of %d; delete it and take another",
			snapshot.ID, info.Size(), snapshot.SizeBytes)

		return nil, errors.Join(err, image.Close())
	}

	return image, nil
}

// openPair holds both snapshots until target is closed.
func (m *Service) openPair(request *csi.GetMetadataDeltaRequest) (base, target *opened, err error) {
	if err := rpc.CheckID("target_snapshot_id", request.GetTargetSnapshotId()); err != nil {
		return nil, nil, err
	}

	if base, err = m.open("base_snapshot_id", request.GetBaseSnapshotId()); err != nil {
		return nil, nil, err
	}

	if target, err = m.open("target_snapshot_id", request.GetTargetSnapshotId()); err != nil {
		base.close()

		return nil, nil, err
	}

	target.base = base
	if err := checkPair(base.record, target.record); err != nil {
		target.close()

		return nil, nil, err
	}

	return base, target, nil
}

// checkPair returns INVALID_ARGUMENT unless target is "a second snapshot in the
// same volume, created after the base snapshot".
func checkPair(base, target *record.Snapshot) error {
	switch {
	case base.SourceVolumeID != target.SourceVolumeID:
		return rpc.Invalid("snapshot %s is of volume %s and %s of %s: only snapshots of one volume can be compared",
			base.ID, base.SourceVolumeID, target.ID, target.SourceVolumeID)
	case base.ID == target.ID:
		return rpc.Invalid("base and target are the same snapshot %s", base.ID)
	case target.TakenBefore(base):
		return rpc.Invalid("target %s was created before the base %s: exchange them", target.ID, base.ID)
	default:
		return nil
	}
}

// page is which part of the metadata is asked for.
type page struct {
	from int64
	most int32
}

func (p page) check() error {
	switch {
	case p.from < 0:
		return rpc.Errorf(codes.OutOfRange, "starting_offset is %d; it must not be negative", p.from)
	case p.most < 0:
		return rpc.Invalid("max_results is %d; it must not be negative", p.most)
	default:
		return nil
	}
}

// within accepts the end of the volume: a client that continues after the last range
// asks there.
func (p page) within(snapshot *record.Snapshot) error {
	if p.from > snapshot.SizeBytes {
		return rpc.Errorf(codes.OutOfRange, "starting_offset is %d, behind the end of snapshot %s of %d bytes",
			p.from, snapshot.ID, snapshot.SizeBytes)
	}

	return nil
}

// tuples makes messages of ranges.
type tuples struct {
	send func([]*csi.BlockMetadata) error
	// size is the volume's, and most how many go into one message.
	size int64
	most int
	// fixed: each range is the block of 4 KiB at its offset.
	fixed bool

	blocks []*csi.BlockMetadata
	sent   bool
}

func newTuples(asked page, of *record.Snapshot, send func([]*csi.BlockMetadata) error) *tuples {
	most := mostBlocks
	if asked.most > 0 {
		most = min(most, int(asked.most))
	}

	return &tuples{send: send, size: of.SizeBytes, most: most}
}

func (t *tuples) add(found extent.Range) error {
	// An expansion that has not been acknowledged yet may have made the image
	// larger than the volume.
	end := min(found.End(), t.size)

	offset, most := found.Offset, int64(mostBlockBytes)
	if t.fixed {
		// Volumes end with a block. Only the first range, where a client continues, may begin within one.
		most = changedblocks.BlockBytes
		offset -= offset % most
	}

	for ; offset < end; offset += most {
		t.blocks = append(t.blocks, &csi.BlockMetadata{ByteOffset: offset, SizeBytes: min(most, end-offset)})

		if len(t.blocks) == t.most {
			if err := t.flush(); err != nil {
				return err
			}
		}
	}

	return nil
}

// end sends the remaining blocks. A stream has at least one message, because it
// contains the volume's size.
func (t *tuples) end() error {
	if t.sent && len(t.blocks) == 0 {
		return nil
	}

	return t.flush()
}

func (t *tuples) flush() error {
	// Interceptors may read a message after it was sent: it is not used again.
	blocks := t.blocks
	t.blocks, t.sent = nil, true

	return t.send(blocks)
}

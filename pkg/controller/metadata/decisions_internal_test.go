package metadata

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestPageIsValidated: which parts of the metadata can be asked for.
func TestPageIsValidated(t *testing.T) {
	t.Parallel()

	snapshot := &record.Snapshot{SizeBytes: 100}

	for asked, want := range map[page]codes.Code{
		{0, 0}: codes.OK, {99, 1}: codes.OK, {100, 0}: codes.OK, {101, 0}: codes.OutOfRange, {-1, 0}: codes.OutOfRange,
		{0, -1}: codes.InvalidArgument, {-1, -1}: codes.OutOfRange,
	} {
		err := asked.check()
		if err == nil {
			err = asked.within(snapshot)
		}

		rpccode.Require(t, err, want, "from %d, at most %d", asked.from, asked.most)
	}
}

// TestSnapshotPairIsValidated: the target is a second snapshot of the volume, taken after the base.
func TestSnapshotPairIsValidated(t *testing.T) {
	t.Parallel()

	base := &record.Snapshot{ID: "a", SourceVolumeID: "v", Sequence: 2}

	for name, test := range map[string]struct {
		target record.Snapshot
		want   codes.Code
	}{
		"a later one":       {record.Snapshot{ID: "b", SourceVolumeID: "v", Sequence: 3}, codes.OK},
		"an earlier one":    {record.Snapshot{ID: "b", SourceVolumeID: "v", Sequence: 1}, codes.InvalidArgument},
		"the same":          {*base, codes.InvalidArgument},
		"of another volume": {record.Snapshot{ID: "b", SourceVolumeID: "w", Sequence: 3}, codes.InvalidArgument},
	} {
		rpccode.Require(t, rpc.Status(checkPair(base, &test.target)), test.want, "%s", name)
	}
}

// locked counts the snapshots that are locked, which have no image.
type locked struct {
	held    int
	backing volume.Backing
	missing bool
	// pool is nil unless it can be used. sources are the volumes of snapshots, if not the same.
	pool    *pool.Pool
	sources map[string]string
}

func (l *locked) LockSnapshot(id string) (found *record.Snapshot, release func(), err error) {
	if l.missing && id == "target" {
		return nil, nil, rpc.Errorf(codes.NotFound, "snapshot %s does not exist", id)
	}

	l.held++

	return &record.Snapshot{ID: id, SourceVolumeID: l.sources[id], Parameters: volume.Parameters{Backing: l.backing}}, func() { l.held-- }, nil
}

func (l *locked) Pool(string, string) (*pool.Pool, error) {
	if l.pool == nil {
		return nil, pool.ErrUnavailable
	}

	return l.pool, nil
}

// stream is one whose client has gone.
type stream[T any] struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // it is that of a stream
}

func (s stream[T]) Context() context.Context { return s.ctx }

func (stream[T]) Send(*T) error { return errWalk }

// TestSnapshotsAreReleased when their stream ends, or is refused once they are held.
func TestSnapshotsAreReleased(t *testing.T) {
	t.Parallel()

	p, err := pool.Open("default", t.TempDir(), pool.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })

	base, target, other := volume.NewID(), volume.NewID(), volume.NewID()
	held := &locked{backing: volume.BackingImage, pool: p, sources: map[string]string{other: "other"}}
	m := New(held, held, 0, 0)

	for _, each := range []string{base, target, other} {
		require.NoError(t, os.WriteFile(p.ObjectPath(pool.Object{ID: each, Backing: volume.BackingImage, Snapshot: true}), nil, 0o600))
	}

	for name, test := range map[string]struct {
		base, target string
		from         int64
		want         codes.Code
	}{
		"sent":               {base, target, 0, codes.Internal},
		"behind the end":     {base, target, 1, codes.OutOfRange},
		"of another volume":  {base, other, 0, codes.InvalidArgument},
		"a target is no one": {base, volume.NewID(), 0, codes.NotFound},
	} {
		err := m.GetMetadataDelta(&csi.GetMetadataDeltaRequest{
			BaseSnapshotId: test.base, TargetSnapshotId: test.target, StartingOffset: test.from,
		}, stream[csi.GetMetadataDeltaResponse]{ctx: t.Context()})
		rpccode.Require(t, err, test.want, "%s", name)
		require.Zero(t, held.held, "want: no snapshot is held, %s", name)

		if test.target == other {
			continue
		}

		err = m.GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: test.target, StartingOffset: test.from},
			stream[csi.GetMetadataAllocatedResponse]{ctx: t.Context()})
		rpccode.Require(t, err, test.want, "%s", name)
		require.Zero(t, held.held, "want: no snapshot is held, %s", name)
	}

	opened, err := m.open("snapshot_id", base)
	require.NoError(t, err)
	opened.close()
	require.ErrorIs(t, opened.image.Close(), fs.ErrClosed, "want: its image is closed")
}

// TestRefusedRequestsLockNothing: whatever a request is refused for, its snapshots can be deleted.
func TestRefusedRequestsLockNothing(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		snapshots *locked
		base      string
		target    string
		want      codes.Code
	}{
		"no target":          {&locked{backing: volume.BackingImage}, "base", "", codes.InvalidArgument},
		"no base":            {&locked{backing: volume.BackingImage}, "", "target", codes.InvalidArgument},
		"an impossible base": {&locked{backing: volume.BackingImage}, "a/b", "target", codes.InvalidArgument},
		"of directories":     {&locked{backing: volume.BackingDirectory}, "base", "target", codes.FailedPrecondition},
		"a pool that failed": {&locked{backing: volume.BackingImage}, "base", "target", codes.Unavailable},
		"a missing target":   {&locked{missing: true}, "target", "target", codes.NotFound},
	} {
		m := New(test.snapshots, test.snapshots, 0, 0)
		require.Equal(t, DefaultIdle, m.idle, "the default")

		_, _, err := m.openPair(&csi.GetMetadataDeltaRequest{BaseSnapshotId: test.base, TargetSnapshotId: test.target})
		rpccode.Require(t, err, test.want, "%s", name)
		require.Zero(t, test.snapshots.held, "want: %s leaves no snapshot locked", name)

		if test.base == test.target || test.target == "" {
			continue
		}

		err = m.GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: test.base}, nil)
		rpccode.Require(t, err, test.want, "%s", name)
		require.Zero(t, test.snapshots.held, "want: %s leaves no snapshot locked", name)
	}

	rpccode.Require(t, New(&locked{}, &locked{}, time.Second, 0).GetMetadataDelta(&csi.GetMetadataDeltaRequest{StartingOffset: -1}, nil), codes.OutOfRange)
	rpccode.Require(t, New(&locked{}, &locked{}, time.Second, 0).GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{MaxResults: -1}, nil), codes.InvalidArgument)
}

// TestStreamsWithoutRangesHaveAMessage, and one that fails returns the failure of its last message.
func TestStreamsWithoutRangesHaveAMessage(t *testing.T) {
	t.Parallel()

	sent, failure := 0, errors.New("gone")
	made := newTuples(page{}, &record.Snapshot{SizeBytes: 1}, func([]*csi.BlockMetadata) error {
		sent++

		return failure
	})

	require.ErrorIs(t, made.end(), failure)
	require.Equal(t, 1, sent, "want: a message with the size")
	require.NoError(t, made.end())
	require.Equal(t, 1, sent, "want: a message was sent already")
}

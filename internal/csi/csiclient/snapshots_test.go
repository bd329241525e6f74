package csiclient_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// copier is a driver of snapshots: one of its three is listed on each page, two
// are of a group, and a new one is ready at the third call.
type copier struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedSnapshotMetadataServer

	calls int
	// fails is how the calls of a snapshot's creation end, in order.
	fails []error
	// unlisted is how each listing ends, unless it is nil.
	unlisted error
	// left receives the reason why a stream's client ended.
	left chan error
}

func (c *copier) register(server grpc.ServiceRegistrar) {
	csi.RegisterControllerServer(server, c)
	csi.RegisterGroupControllerServer(server, c)
	csi.RegisterSnapshotMetadataServer(server, c)
}

func (c *copier) answer() (ready bool, err error) {
	const waitLimit = 3

	c.calls++
	if c.calls <= len(c.fails) {
		err = c.fails[c.calls-1]
	}

	return c.calls >= waitLimit, err
}

func (c *copier) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	ready, err := c.answer()

	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: req.GetName(), ReadyToUse: ready}}, err
}

func (c *copier) CreateVolumeGroupSnapshot(
	_ context.Context, req *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	ready, err := c.answer()

	return &csi.CreateVolumeGroupSnapshotResponse{
		GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: req.GetName(), ReadyToUse: ready},
	}, err
}

func (*copier) GetSnapshot(_ context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	return &csi.GetSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: req.GetSnapshotId(), SizeBytes: 1}}, nil
}

func (c *copier) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	const last = 3

	if c.unlisted != nil {
		return nil, c.unlisted
	}

	if id := req.GetSnapshotId(); id != "" && id != "s1" {
		return &csi.ListSnapshotsResponse{}, nil
	}

	number := 1
	if token := req.GetStartingToken(); token != "" {
		number, _ = strconv.Atoi(token)
	}

	snapshot := &csi.Snapshot{SnapshotId: "s" + strconv.Itoa(number), SourceVolumeId: req.GetSourceVolumeId()}
	if number > 1 {
		snapshot.GroupSnapshotId = "g"
	}

	answer := &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshot}}}
	if number < last && req.GetSnapshotId() == "" {
		answer.NextToken = strconv.Itoa(number + 1)
	}

	return answer, nil
}

func (*copier) GetMetadataAllocated(
	req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	for offset := range int64(2) {
		if err := stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadata: []*csi.BlockMetadata{{ByteOffset: offset, SizeBytes: 1}},
		}); err != nil {
			return err
		}
	}

	if req.GetSnapshotId() == "broken" {
		return status.Error(codes.Internal, "lost my place")
	}

	return nil
}

// GetMetadataDelta never ends by itself.
func (c *copier) GetMetadataDelta(
	_ *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	if err := stream.Send(&csi.GetMetadataDeltaResponse{VolumeCapacityBytes: 1}); err != nil {
		return err
	}

	<-stream.Context().Done()
	c.left <- stream.Context().Err()

	return stream.Context().Err()
}

func startCopier(t *testing.T, opts ...grpc.DialOption) (*copier, *csiclient.Client) {
	t.Helper()

	co, socket := connect(t, opts...)
	driver := &copier{left: make(chan error, 1)}
	serveAt(t, socket, driver.register)

	return driver, co
}

func TestUntilReadyPolls(t *testing.T) {
	busy := status.Error(codes.Aborted, "it is being copied")
	full := status.Error(codes.ResourceExhausted, "the pool is full")

	for name, test := range map[string]struct {
		fails []error
		calls int
		want  codes.Code
	}{
		"at the third call":                  {nil, 3, codes.OK},
		"busy after it is taken":             {[]error{nil, busy, busy}, 4, codes.OK},
		"busy with something else":           {[]error{busy}, 1, codes.Aborted},
		"failed":                             {[]error{full}, 1, codes.ResourceExhausted},
		"failed after the cut, which counts": {[]error{nil, full}, 2, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			driver, co := startCopier(t)
			driver.fails = test.fails

			answer, err := co.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "n"})
			rpccode.Require(t, err, test.want)
			require.Equal(t, test.calls, driver.calls, "want: the snapshot is asked for again until it is ready or refused")
			require.Equal(t, test.want == codes.OK, answer.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready where the call succeeds")

			driver.calls = 0
			group, err := co.CreateGroupSnapshotAndWait(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "n"})
			rpccode.Require(t, err, test.want)
			require.Equal(t, test.calls, driver.calls, "want: the group snapshot is asked for again until it is ready or refused")
			require.Equal(t, test.want == codes.OK, group.GetGroupSnapshot().GetReadyToUse(), "want: the group snapshot is ready where the call succeeds")
		})
	}
}

func TestCancelledWaitReturnsTheSnapshot(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	driver, co := startCopier(t, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			defer cancel() // After the answer, before the next call.

			return invoke(ctx, method, req, reply, conn, opts...)
		}))

	answer, err := co.CreateSnapshotAndWait(ctx, &csi.CreateSnapshotRequest{Name: "n"})
	require.ErrorIs(t, err, context.Canceled)
	errtext.Require(t, err, "ready to use")
	require.Equal(t, "n", answer.GetSnapshot().GetSnapshotId())
	require.Equal(t, 1, driver.calls, "want: a caller that gives up makes no further call")
}

func TestSnapshotsAreListedAndGroupsFound(t *testing.T) {
	_, co := startCopier(t)

	var ids []string
	for entry, err := range co.Snapshots(t.Context(), "v", 1) {
		require.NoError(t, err)
		require.Equal(t, "v", entry.GetSnapshot().GetSourceVolumeId())
		ids = append(ids, entry.GetSnapshot().GetSnapshotId())
	}

	require.Equal(t, []string{"s1", "s2", "s3"}, ids)

	members, err := co.GroupMembers(t.Context(), "g")
	require.NoError(t, err)
	require.Equal(t, []string{"s2", "s3"}, members)
}

// TestAFailedListIsNoEmptyOne: what cannot be listed is neither missing nor without members.
func TestAFailedListIsNoEmptyOne(t *testing.T) {
	driver, co := startCopier(t)
	driver.unlisted = status.Error(codes.Unavailable, "the pool is busy")

	_, err := co.FindSnapshot(t.Context(), csiclient.Capabilities{}, "s1")
	rpccode.Require(t, err, codes.Unavailable, "FindSnapshot")

	_, err = co.GroupMembers(t.Context(), "g")
	rpccode.Require(t, err, codes.Unavailable, "GroupMembers")
}

func TestFindSnapshotListsOrGets(t *testing.T) {
	_, co := startCopier(t)

	var listing, getting csiclient.Capabilities
	getting.Controller = []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		}},
	}}

	listed, err := co.FindSnapshot(t.Context(), listing, "s1")
	require.NoError(t, err)
	require.Zero(t, listed.GetSizeBytes(), "want: the snapshot comes from the list, which has no size")

	got, err := co.FindSnapshot(t.Context(), getting, "s1")
	require.NoError(t, err)
	require.EqualValues(t, 1, got.GetSizeBytes(), "want: the snapshot comes from GetSnapshot, which has a size")

	_, err = co.FindSnapshot(t.Context(), listing, "none")
	require.ErrorIs(t, err, csiclient.ErrNoSnapshot)
}

func TestBrokenStreamNamesItsRPC(t *testing.T) {
	_, co := startCopier(t)

	offsets := func(id string) (found []int64, last error) {
		for message, err := range co.AllocatedBlocks(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id}) {
			last = err
			if err == nil {
				found = append(found, message.GetBlockMetadata()[0].GetByteOffset())
			}
		}

		return found, last
	}

	found, err := offsets("whole")
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, found)

	found, err = offsets("broken")
	require.Equal(t, []int64{0, 1}, found, "what came before stands")
	require.EqualError(t, err, "GetMetadataAllocated: INTERNAL: lost my place")
}

func TestStreamEndsWithItsReader(t *testing.T) {
	driver, co := startCopier(t)

	for message, err := range co.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{}) {
		require.NoError(t, err)
		require.EqualValues(t, 1, message.GetVolumeCapacityBytes(), "want: the first message of the stream arrives")

		break
	}

	require.ErrorIs(t, await.Receive(t, driver.left, "the stream to end at the driver"), context.Canceled)
}

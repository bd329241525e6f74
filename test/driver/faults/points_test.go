package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// lifecycle has the steps of one volume's lifecycle, each of which is one RPC.
type lifecycle struct {
	f     *faulty
	claim *csiclient.Publication
}

// step makes the call; it may be repeated.
func (l *lifecycle) step(t *testing.T, rpc string) error {
	t.Helper()

	ctx, co, err := t.Context(), l.f.co, error(nil)

	switch rpc {
	case "CreateVolume":
		var made *csi.CreateVolumeResponse

		made, err = co.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: "v", CapacityRange: harness.RequiredBytes(64 * harness.MiB),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4")},
		})
		if err == nil {
			l.claim = l.f.Claim(t, made.GetVolume().GetVolumeId())
			l.claim.VolumeContext = made.GetVolume().GetVolumeContext()
			l.claim.Capability = csiclient.MountCapability(harness.Writer, "ext4")
		}
	case "ControllerPublishVolume":
		err = co.Attach(ctx, l.claim)
	case "NodeStageVolume":
		err = co.Stage(ctx, l.claim)
	case "NodePublishVolume":
		err = co.Publish(ctx, l.claim)
	case "ControllerExpandVolume":
		_, err = co.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: l.claim.VolumeID, CapacityRange: harness.RequiredBytes(128 * harness.MiB),
		})
	case "CreateSnapshot":
		_, err = co.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: l.claim.VolumeID})
	case "NodeUnpublishVolume":
		err = co.Unpublish(ctx, l.claim)
	case "NodeUnstageVolume":
		err = co.Unstage(ctx, l.claim)
	case "ControllerUnpublishVolume":
		err = co.Detach(ctx, l.claim)
	case "DeleteVolume":
		_, err = co.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: l.claim.VolumeID})
	}

	return err
}

var steps = []string{
	"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "ControllerExpandVolume", "CreateSnapshot",
	"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume",
}

// TestOperationsFailAtEachPoint lets the RPC fail at each point; its repetition succeeds, and at the
// end nothing is left.
func TestOperationsFailAtEachPoint(t *testing.T) {
	eachPoint(t, start(t), func(t *testing.T, l *lifecycle, rpc string, point faults.Point) {
		l.f.add(t, fmt.Sprintf("{match: {at: %s}, until: {hits: 1}, act: {before: {code: ABORTED, message: on command}, delay: {before: 1ms}}}", point))
		harness.RequireCode(t, l.step(t, rpc), codes.Aborted, "on command")
		require.Equal(t, 1, l.f.status(t).Hits, "want: the rule is hit once")
	})
}

// TestCrashAtEachPoint ends the process at each point. The next start and the repetition of the RPC
// complete the operation or undo it.
func TestCrashAtEachPoint(t *testing.T) {
	whole, f := t, connect(t, harness.StartProcess(t, enabled))

	eachPoint(t, f, func(t *testing.T, l *lifecycle, rpc string, point faults.Point) {
		rules := faults.Client{Connection: f.co.Conn()}
		_, err := rules.Add(t.Context(), fmt.Sprintf("{match: {at: %s}, act: {crash: true}}", point))
		require.NoError(t, err)
		// What the last crash has left may still be being removed.
		harness.RequireCode(t, repeat(t, l, rpc), codes.Unavailable)
		f.Kill(whole)
	})
}

func eachPoint(t *testing.T, f *faulty, try func(*testing.T, *lifecycle, string, faults.Point)) {
	t.Helper()

	l, tried := &lifecycle{f: f}, 0

	for _, rpc := range steps {
		if rpc == "NodeStageVolume" {
			namespace.NeedRoot(t)
		}

		for _, point := range faults.Points() {
			if !slices.Contains(strings.Split(point.RPC, ", "), rpc) {
				continue
			}

			tried++

			t.Run(string(point.Point), func(t *testing.T) { try(t, l, rpc, point.Point) })
		}

		for _, at := range []faults.Point{faults.AtRequest, faults.AtResponse} {
			if rpc == "NodePublishVolume" {
				t.Run(rpc+" "+string(at), func(t *testing.T) { tryAt(t, l, rpc, at, try) })
			}
		}

		require.NoError(t, repeat(t, l, rpc), rpc)
	}

	require.Equal(t, len(faults.Points()), tried, "want: each point is tried")
	require.Empty(t, harness.ListAll(t, f.Driver), "want: no volume is left")
	t.Logf("%d points", tried)
}

// tryAt crashes at the points of every call, where an error has another code.
func tryAt(t *testing.T, l *lifecycle, rpc string, at faults.Point, try func(*testing.T, *lifecycle, string, faults.Point)) {
	t.Helper()

	if l.f.PID() == 0 {
		return
	}

	try(t, l, rpc, at)
}

// repeat makes the call until it has another answer than that an operation goes on: a volume that is
// being removed by recovery.
func repeat(t *testing.T, l *lifecycle, rpc string) error {
	t.Helper()

	for deadline := time.Now().Add(await.Limit); time.Now().Before(deadline); {
		if err := l.step(t, rpc); status.Code(err) != codes.Aborted {
			return err
		}
	}

	require.FailNow(t, "still ABORTED", "%s, for %s", rpc, await.Limit)

	return nil
}

// TestAGroupFailsAtItsSecondMember leaves no snapshot.
func TestAGroupFailsAtItsSecondMember(t *testing.T) {
	f := start(t)
	first := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "a", Parameters: harness.DirectoryBacked()})
	second := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "b", Parameters: harness.DirectoryBacked()})
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{first.VolumeID, second.VolumeID}}

	f.add(t, "{match: {at: snapshot-copied, calls: 2}, act: {before: {code: RESOURCE_EXHAUSTED}}}")

	_, err := f.co.CreateVolumeGroupSnapshot(t.Context(), request)
	harness.RequireCode(t, err, codes.ResourceExhausted)
	require.Equal(t, 2, f.status(t).Calls, "want: the rule sees both members")

	listed, err := f.co.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries(), "want: no snapshot of the failed group is listed")

	_, err = f.co.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)
}

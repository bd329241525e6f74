package copies_test

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestSnapshotOfARemotelyAttachedVolume: its node is none of this process.
func TestSnapshotOfARemotelyAttachedVolume(t *testing.T) {
	t.Parallel()

	for sort, options := range copyPools() {
		t.Run(sort, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, options(t), harness.TwoNodes)
			claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
			claim.NodeID = harness.SecondNode
			require.NoError(t, d.Attach(t.Context(), claim))

			request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: claim.VolumeID}
			clone := harness.MountRequest("ext4", 64*harness.MiB)
			clone.Name, clone.VolumeContentSource = "clone", harness.FromVolume(claim.VolumeID)

			_, err := d.CreateSnapshot(t.Context(), request)
			_, cloning := d.CreateVolume(t.Context(), clone)

			if sort == "reflink" {
				require.NoError(t, err)
				require.NoError(t, cloning)

				return
			}

			harness.RequireCode(t, err, codes.FailedPrecondition, harness.SecondNode, "consistency: none")
			harness.RequireCode(t, cloning, codes.FailedPrecondition, harness.SecondNode, "consistency: none")
			harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0, "images": 1})

			rough := proto.CloneOf(clone)
			rough.Name, rough.Parameters = "rough", map[string]string{"consistency": "none"}
			_, err = d.CreateVolume(t.Context(), rough)
			require.NoError(t, err)

			request.Parameters = map[string]string{"consistency": "none"}
			_, err = d.CreateSnapshot(t.Context(), request)
			require.NoError(t, err)

			require.NoError(t, d.Detach(t.Context(), claim))

			_, err = d.CreateVolume(t.Context(), clone)
			require.NoError(t, err)

			// A reader does not disturb.
			claim.ReadOnly = true
			require.NoError(t, d.Attach(t.Context(), claim))

			_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "t", SourceVolumeId: claim.VolumeID})
			require.NoError(t, err)
		})
	}
}

// TestARefusedSnapshotLeavesItsName asks for it again at once, in the way that
// the refusal says.
func TestARefusedSnapshotLeavesItsName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.BringUp(t, d, claim)

	free := cheapVolume(t, d, "free")
	ctx := conformance.Exercise(t.Context(), conformance.Where("a directory that is in use",
		func(r *csi.CreateSnapshotRequest) bool { return r.GetSourceVolumeId() == claim.VolumeID }))

	for round := range 8 {
		request := &csi.CreateSnapshotRequest{Name: strconv.Itoa(round), SourceVolumeId: claim.VolumeID}

		_, err := d.CreateSnapshot(ctx, request)
		harness.RequireCode(t, err, codes.FailedPrecondition, "consistency: none")

		if round%2 == 0 {
			request.Parameters = map[string]string{"consistency": "none"}
		} else {
			request.SourceVolumeId = free
		}

		_, err = d.CreateSnapshot(t.Context(), request)
		require.NoError(t, err)
	}

	harness.RequireEntries(t, d, map[string]int{"snapshots": 8, "scratch": 0})
}

// TestACloneOfADirectoryInUse is made where the class does not require a point-in-time
// copy; the same class makes and restores any other volume as well.
func TestACloneOfADirectoryInUse(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.BringUp(t, d, claim)
	harness.WriteBlock(t, claim)

	request := func(name string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name: name, Parameters: harness.DirectoryBacked(), VolumeContentSource: harness.FromVolume(claim.VolumeID),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
		}
	}

	_, err := d.CreateVolume(t.Context(), request("exact"))
	harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, "consistency: none")

	rough := request("rough")
	rough.Parameters["consistency"] = "none"
	clone := harness.NewVolume(t, d, rough)
	require.NotContains(t, clone.VolumeContext, "consistency")

	rough.Name, rough.VolumeContentSource = "fresh", nil
	harness.NewVolume(t, d, rough)

	harness.BringUp(t, d, clone)
	harness.RequireBlock(t, clone)
}

// TestUnrecordedSnapshotIsKept: the directory of snapshots has files without a record in the state.
func TestUnrecordedSnapshotIsKept(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: cheapVolume(t, d, "source")})
	require.NoError(t, err)

	d.Stop()
	d.Leaves("the stranger", leftover.Entry)

	stranger := filepath.Join(d.Pool(), "snapshots", "01900000-0000-7000-8000-000000000000.img")
	harness.WriteFile(t, stranger, "another's")
	d.Restart(t)
	require.FileExists(t, stranger)

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{made.GetSnapshot().GetSnapshotId()}, snapshotIDs(listed.GetEntries()))
}

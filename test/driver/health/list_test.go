package health_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestUnhealthyVolumesAreListedInPages pages through volumes of which every second one has lost
// its directory, while some recover and some are deleted.
func TestUnhealthyVolumesAreListedInPages(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	d.Leaves("directories that were moved away", leftover.Entry)

	var all, sick []string

	for i := range 12 {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: fmt.Sprint("volume ", i), Parameters: harness.DirectoryBacked()})
		all = append(all, claim.VolumeID)

		if i%2 == 0 {
			sick = append(sick, claim.VolumeID)
			require.NoError(t, os.Rename(placeOf(d, claim.VolumeID), placeOf(d, claim.VolumeID)+".away"))
		}
	}

	awaitSick(t, d, sick)

	listed := sickList(t, d, 0, "")
	require.Empty(t, listed.GetNextToken(), "want: all unhealthy volumes are on one page")
	conformance.Shows(t, "ControllerListVolumeHealth", "plain", "every unhealthy volume")

	for _, entry := range listed.GetEntries() {
		require.Len(t, entry.GetHealthStatuses(), 1, "want: each volume has one condition")
		require.Equal(t, csi.VolumeHealthErrorType_INACCESSIBLE, entry.GetHealthStatuses()[0].GetStatus(), "want: a volume without an image is inaccessible")
		require.Equal(t, string(health.VolumeNotFound), entry.GetHealthStatuses()[0].GetReason())
		require.NotEmpty(t, entry.GetHealthStatuses()[0].GetMessage(), "want: the condition has a message")
	}

	first := sickList(t, d, 2, "")
	require.Equal(t, sick[:2], idsOf(first))
	require.Equal(t, sick[1], first.GetNextToken())

	// The token's volume is deleted, the next one recovers.
	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: sick[1]})
	require.NoError(t, err)
	require.NoError(t, os.Rename(placeOf(d, sick[2])+".away", placeOf(d, sick[2])))
	awaitSick(t, d, slices.Concat(sick[:1], sick[3:]))

	second := sickList(t, d, 2, first.GetNextToken())
	require.Equal(t, sick[3:5], idsOf(second))

	third := sickList(t, d, 2, second.GetNextToken())
	require.Equal(t, sick[5:], idsOf(third))
	require.Empty(t, third.GetNextToken(), "want: the last page has no next one")

	require.Empty(t, idsOf(sickList(t, d, 2, all[len(all)-1])), "want: the page after the last volume is empty")
	conformance.Shows(t, "ControllerListVolumeHealth", "in pages", "every unhealthy volume once")
}

// TestEveryPageOfVolumesHasItsConditions requires each volume's condition beside that
// volume, wherever a page begins and whatever else its status says.
func TestEveryPageOfVolumesHasItsConditions(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, harness.TwoNodes)
	d.Leaves("directories that were moved away", leftover.Entry)

	wanted := map[string]string{}

	var sick []string

	for i := range 9 {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: fmt.Sprint("volume ", i), Parameters: harness.DirectoryBacked()})
		wanted[claim.VolumeID] = "healthy"

		if i%3 > 0 {
			require.NoError(t, d.Attach(t.Context(), claim))
			t.Cleanup(func() { harness.TakeDown(t, d, claim) })
		}

		if i%2 > 0 {
			sick = append(sick, claim.VolumeID)
			wanted[claim.VolumeID] = `VolumeNotFound: its directory is not in pool "default"; put it back, or restore a backup`
			require.NoError(t, os.Rename(placeOf(d, claim.VolumeID), placeOf(d, claim.VolumeID)+".away"))
		}
	}

	awaitSick(t, d, sick)

	for size := range int32(5) {
		reported := map[string]string{}

		for entry, err := range d.Volumes(t.Context(), size) {
			require.NoError(t, err)

			id := entry.GetVolume().GetVolumeId()
			is := legacyIn(t, entry.GetStatus())
			require.Equal(t, slices.Contains(sick, id), is.Abnormal, "want: an unhealthy volume is abnormal in the list")

			reported[id] = is.Message

			got, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
			require.NoError(t, err)
			require.Equal(t, is, legacyIn(t, got.GetStatus()))
			require.Equal(t, got.GetStatus().GetPublishedNodeIds(), entry.GetStatus().GetPublishedNodeIds())
		}

		require.Equal(t, wanted, reported)
	}
}

func TestMissingVolumesAreReported(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})

	healthOf := func(id string) (*csi.ControllerGetVolumeHealthResponse, error) {
		return d.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{
			VolumeId: id, Secrets: map[string]string{"unknown": "secret"},
		})
	}

	reported, err := healthOf(claim.VolumeID)
	require.NoError(t, err)
	require.Equal(t, claim.VolumeID, reported.GetVolumeHealth().GetVolumeId())
	require.Empty(t, reported.GetVolumeHealth().GetHealthStatuses(), "want: a healthy volume has no condition")

	_, err = healthOf("")
	harness.RequireCode(t, err, codes.InvalidArgument, "volume_id")

	_, err = healthOf("../etc")
	harness.RequireCode(t, err, codes.InvalidArgument, "volume_id")

	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)

	_, err = healthOf(claim.VolumeID)
	harness.RequireCode(t, err, codes.NotFound, claim.VolumeID)

	_, err = d.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})
	harness.RequireCode(t, err, codes.InvalidArgument, "max_entries")

	_, err = d.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{StartingToken: "17"})
	harness.RequireCode(t, err, codes.Aborted, "starting_token")
}

func placeOf(d *harness.Driver, id string) string { return filepath.Join(d.Pool(), "directories", id) }

func sickList(t *testing.T, d *harness.Driver, most int32, token string) *csi.ControllerListVolumeHealthResponse {
	t.Helper()

	listed, err := d.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{
		MaxEntries: most, StartingToken: token, Secrets: map[string]string{"unknown": "secret"},
	})
	require.NoError(t, err)

	return listed
}

func idsOf(listed *csi.ControllerListVolumeHealthResponse) []string {
	var ids []string
	for _, entry := range listed.GetEntries() {
		ids = append(ids, entry.GetVolumeId())
	}

	return ids
}

// legacyIn reads the condition of a status, which has it where the statistics have
// theirs.
func legacyIn(t *testing.T, status proto.Message) legacyCondition {
	t.Helper()

	carrier := &csi.NodeGetVolumeStatsResponse{}
	carrier.ProtoReflect().SetUnknown(status.ProtoReflect().GetUnknown())

	abnormal, message := harness.ConditionIn(t, carrier)

	return legacyCondition{Abnormal: abnormal, Message: message}
}

func awaitSick(t *testing.T, d *harness.Driver, ids []string) {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Equal(ids, idsOf(sickList(t, d, 0, ""))) }, await.Limit, 10*time.Millisecond, "want: all unhealthy volumes are listed")
}

// TestTheReportHasEmptyListsForHealthyVolumes: it reads the JSON without Go's types: a list that is empty, and none
// that is missing, for a volume that both views know.
func TestTheReportHasEmptyListsForHealthyVolumes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	harness.BringUp(t, d, harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: t.Name()}))

	answer := &wrapperspb.BytesValue{}
	require.NoError(t, d.Conn().Invoke(t.Context(), "/"+health.ServiceName+"/Report", &emptypb.Empty{}, answer))
	require.Contains(t, string(answer.GetValue()), `"conditions":[]`)
	require.NotContains(t, string(answer.GetValue()), `:null`)
}

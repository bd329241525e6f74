package health_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// legacyCondition is what a client of CSI v1.12 reads; nil is none.
type legacyCondition struct {
	Abnormal bool   `json:"abnormal"`
	Message  string `json:"message"`
}

// legacyAnswers is what test/legacy prints.
type legacyAnswers struct {
	Controller bool                        `json:"controller"`
	Node       bool                        `json:"node"`
	Listed     map[string]*legacyCondition `json:"listed"`
	Got        map[string]*legacyCondition `json:"got"`
	Stats      map[string]*legacyCondition `json:"stats"`
}

// TestAClientOfAnEarlierSpecReadsTheCondition: it was compiled against CSI v1.12, and reads fields that later
// versions reserve.
func TestAClientOfAnEarlierSpecReadsTheCondition(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	client := buildLegacy(t)
	d := harness.Start(t)

	sick := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "unhealthy"})
	well := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "well"})

	for _, claim := range []*csiclient.Publication{sick, well} {
		harness.BringUp(t, d, claim)
	}

	image := filepath.Join(d.Pool(), "images", sick.VolumeID+".img")
	require.NoError(t, os.Rename(image, image+".away"))

	ask := func() legacyAnswers {
		return askLegacy(t, client, d, sick.VolumeID+"="+sick.TargetPath, well.VolumeID+"="+well.TargetPath)
	}

	require.Eventually(t, func() bool {
		reported := ask()

		return reported.Listed[sick.VolumeID].Abnormal && reported.Got[sick.VolumeID].Abnormal && reported.Stats[sick.VolumeID].Abnormal
	}, time.Minute, 10*time.Millisecond, "want: the missing image is abnormal in each call")

	reported := ask()
	require.True(t, reported.Controller, "want: the controller advertises VOLUME_CONDITION")
	require.True(t, reported.Node, "want: the node advertises VOLUME_CONDITION")

	for _, conditions := range []map[string]*legacyCondition{reported.Listed, reported.Got, reported.Stats} {
		require.Len(t, conditions, 2, "want: both volumes are reported")
		require.Contains(t, conditions[sick.VolumeID].Message, "BackingFileMissing: ")
		require.Equal(t, &legacyCondition{Message: "healthy"}, conditions[well.VolumeID])
	}

	require.NoError(t, os.Rename(image+".away", image))
	require.Eventually(t, func() bool {
		reported := ask()

		return !reported.Listed[sick.VolumeID].Abnormal && !reported.Got[sick.VolumeID].Abnormal && !reported.Stats[sick.VolumeID].Abnormal
	}, time.Minute, 10*time.Millisecond, "want: the restored image is healthy in each call")

	d.Restart(t, harness.WithoutCapabilities("VOLUME_CONDITION"))

	reported = ask()
	require.False(t, reported.Controller, "want: the controller does not advertise VOLUME_CONDITION")
	require.False(t, reported.Node, "want: the node does not advertise VOLUME_CONDITION")

	for _, conditions := range []map[string]*legacyCondition{reported.Listed, reported.Got, reported.Stats} {
		require.Equal(t, map[string]*legacyCondition{sick.VolumeID: nil, well.VolumeID: nil}, conditions)
	}
}

// buildLegacy builds the client, which is a module of its own.
func buildLegacy(t *testing.T) string {
	t.Helper()

	binary := filepath.Join(t.TempDir(), "legacy")
	output, err := child.Go(t, filepath.Join("..", "..", "legacy"), "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", output)

	return binary
}

func askLegacy(t *testing.T, client string, d *harness.Driver, volumes ...string) legacyAnswers {
	t.Helper()

	var problems strings.Builder

	ask := child.Command(t, client, append([]string{"-endpoint", d.Config.Endpoint}, volumes...)...)
	ask.Stderr = &problems

	answer, err := ask.Output()
	require.NoError(t, err, problems.String())

	var reported legacyAnswers

	require.NoError(t, json.Unmarshal(answer, &reported))

	return reported
}

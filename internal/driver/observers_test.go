package driver_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

// TestObserversSeeEachCall of the CO, with what it gets: an answer, a refusal, a panic, or a stream that
// ends. Calls of other services are not the CO's.
func TestObserversSeeEachCall(t *testing.T) {
	t.Parallel()

	address, log := served.Address(), filepath.Join(t.TempDir(), "calls")
	staging := withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
		panic("on purpose")
	})
	r := start(t, func(config *driver.Config) {
		staging(config)
		config.HTTPEndpoint, config.CallLog, config.Strict, config.Disabled = address, log, "observe", []string{"LIST_VOLUMES"}
	})

	co := csi.NewControllerClient(r.conn)
	_, err := co.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "the-volume"})
	require.NoError(t, err)

	_, err = co.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	rpccode.Require(t, err, codes.Unimplemented)

	_, err = csi.NewNodeClient(r.conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "the-staged"})
	rpccode.Require(t, err, codes.Internal)

	stream, err := csi.NewSnapshotMetadataClient(r.conn).GetMetadataAllocated(t.Context(),
		&csi.GetMetadataAllocatedRequest{SnapshotId: "the-snapshot"})
	require.NoError(t, err)

	_, err = stream.Recv()
	rpccode.Require(t, err, codes.NotFound)

	_, err = health.NewClient(r.conn).Report(t.Context())
	require.NoError(t, err)

	code, metrics := get(t, "http://"+address+"/metrics")
	require.Equal(t, http.StatusOK, code, "want: the metrics are served")
	require.Contains(t, metrics, "touchstone_call_log_lost_total 0")
	require.Regexp(t, `touchstone_co_violations_total\{[^}]*\} [1-9]`, metrics)

	r.stop()
	require.NoError(t, r.wait(t))

	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.NotContains(t, string(text), health.ServiceName)

	for method, said := range map[string][]string{
		csi.Controller_DeleteVolume_FullMethodName:               {"the-volume", `"OK"`},
		csi.Controller_ListVolumes_FullMethodName:                {"UNIMPLEMENTED"},
		csi.Node_NodeStageVolume_FullMethodName:                  {"the-staged", "INTERNAL"},
		csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName: {"the-snapshot", "NOT_FOUND"},
	} {
		var lines []string

		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, method) {
				lines = append(lines, line)
			}
		}

		require.Len(t, lines, 1, "want: %s is recorded once", method)

		for _, part := range said {
			require.Contains(t, lines[0], part, method)
		}
	}
}

func TestARefusingObserverRefusesUnadvertisedCalls(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) {
		config.Strict, config.Disabled = "refuse", []string{"LIST_VOLUMES"}
	})

	_, err := csi.NewControllerClient(r.conn).ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	errtext.Require(t, err, "not advertised")

	_, err = csi.NewControllerClient(r.conn).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"})
	require.NoError(t, err)
	require.Contains(t, r.log.String(), "not advertised")
}

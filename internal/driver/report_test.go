package driver_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

func TestSocketAndPageAgree(t *testing.T) {
	t.Parallel()

	address := served.Address()
	r := start(t, func(config *driver.Config) { config.HTTPEndpoint = address })
	client := health.NewClient(r.conn)

	made, err := csi.NewControllerClient(r.conn).CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-1", Parameters: map[string]string{"backing": "directory"},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	})
	require.NoError(t, err)

	id := made.GetVolume().GetVolumeId()
	require.NoError(t, os.RemoveAll(filepath.Join(r.config.Pools["default"], "directories", id)))

	var report *health.Report

	require.Eventually(t, func() bool {
		report, err = client.Report(t.Context())
		require.NoError(t, err)
		require.Len(t, report.Volumes, 1, "want: the report has the volume")

		return len(report.Volumes[0].Conditions) > 0 && len(report.Changes) > 0 && report.Sources["controller"][0].Connected
	}, waitLimit, 10*time.Millisecond, "want: the report has the condition and the change")

	volume := report.Volumes[0]
	require.Equal(t, []string{id, "pvc-1", "default", "directory"}, []string{volume.ID, volume.Name, volume.Pool, string(volume.Backing)})
	require.Equal(t, health.VolumeNotFound, volume.Conditions[0].Reason)
	require.Equal(t, "controller", volume.Conditions[0].View)
	require.False(t, volume.Conditions[0].Since.IsZero(), "want: the condition says since when")
	require.Equal(t, health.VolumeNotFound, report.Changes[0].Reason)
	require.Equal(t, []string{id, "pvc-1"}, []string{report.Changes[0].Subject, report.Changes[0].Name}, "want: the name beside the id")
	require.Equal(t, []string{"csi.example.org", "v0", "node-a", "controller"}, []string{report.Driver, report.Version, report.Node, report.Mode})
	require.Contains(t, report.Sources, "controller")
	require.NotContains(t, report.Sources, "node")

	require.Len(t, report.Storage, 2, "want: the report has the pool and the state directory")
	require.Equal(t, "default", report.Storage[0].Name)
	require.Positive(t, report.Storage[0].Bytes.Total, "want: the pool has a size")
	require.Equal(t, "state", report.Storage[1].Kind)
	require.Equal(t, r.config.StateDir, report.Storage[1].Path)

	code, body := get(t, "http://"+address+"/health.json")
	require.Equal(t, http.StatusOK, code, "want: /health.json answers")

	var page health.Report

	require.NoError(t, json.Unmarshal([]byte(body), &page))
	require.False(t, page.At.Before(report.At), "want: the page is not older than the report")
	page.At, page.Storage[0].Bytes = report.At, report.Storage[0].Bytes // others use the disk meanwhile
	require.Equal(t, report, &page)

	code, body = get(t, "http://"+address+"/")
	require.Equal(t, http.StatusOK, code, "want: the page answers")
	require.Contains(t, body, "<!DOCTYPE html>")

	_, body = get(t, "http://"+address+"/metrics")
	require.Contains(t, body, `touchstone_pool_bytes{kind="total",pool="default"} `)
	require.Contains(t, body, `touchstone_volume_conditions{reason="VolumeNotFound",status="INACCESSIBLE",view="controller"} 1`)
}

// TestRecoveredPoolIsServedAgain: while it is gone it has a condition, and its calls fail. Another
// pool at its path is not.
func TestRecoveredPoolIsServedAgain(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) { config.Health.RelistPeriod = 20 * time.Millisecond })
	client, co := health.NewClient(r.conn), csi.NewControllerClient(r.conn)
	at := r.config.Pools["default"]
	aside := at + ".aside"

	awaitCondition := func(says string) {
		require.Eventually(t, func() bool {
			report, err := client.Report(t.Context())
			require.NoError(t, err)

			conditions := report.Storage[0].Conditions
			if says == "" {
				return len(conditions) == 0
			}

			return len(conditions) == 1 && conditions[0].Reason == health.PoolUnreachable && strings.Contains(conditions[0].Message, says)
		}, waitLimit, 10*time.Millisecond, "want: the condition of the pool says %q", says)
	}

	_, err := co.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	})
	require.NoError(t, err)

	// The volumes of the pool are probed at once, long before the next relist of all.
	awaitVolume := func(healthy bool) {
		require.Eventually(t, func() bool {
			report, err := client.Report(t.Context())
			require.NoError(t, err)

			return len(report.Volumes) == 1 && (len(report.Volumes[0].Conditions) == 0) == healthy
		}, waitLimit, 10*time.Millisecond, "want: the volume has the condition of its pool")
	}

	require.NoError(t, os.Rename(at, aside))
	awaitCondition("no such file or directory; repair, or mount, the filesystem of " + at)

	awaitVolume(false)

	_, err = co.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	rpccode.Require(t, err, codes.Unavailable)

	require.NoError(t, os.Mkdir(at, 0o750))
	awaitCondition("is not the one in the state")

	_, err = co.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	rpccode.Require(t, err, codes.Unavailable)

	require.NoError(t, os.RemoveAll(at))
	require.NoError(t, os.Rename(aside, at))
	awaitCondition("")
	awaitVolume(true)

	_, err = co.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)
}

func TestReportHasNoNulls(t *testing.T) {
	t.Parallel()

	address := served.Address()
	start(t, func(config *driver.Config) { config.HTTPEndpoint, config.Health.PollingOnly = address, true })

	code, body := get(t, "http://"+address+"/health.json")
	require.Equal(t, http.StatusOK, code, "want: /health.json answers")
	require.NotContains(t, body, "null")
	require.Contains(t, body, `"controller":[]`)
}

func TestCheckNeedsTheNodeService(t *testing.T) {
	t.Parallel()

	r := start(t, nil)

	_, err := health.NewClient(r.conn).Check(t.Context(), health.CheckRequest{VolumeID: "v", How: "offline"})
	rpccode.Require(t, err, codes.Unimplemented)
	errtext.Require(t, err, "no node service")
}

func TestPageShowsThatTheDriverIsNotReady(t *testing.T) {
	t.Parallel()

	errtext.Require(t, driver.ReportBeforeReady(), "starting")
}

package driver_test

import (
	"net/http"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/served"
)

func TestHTTPServesMetricsOfEachCall(t *testing.T) {
	t.Parallel()

	address := served.Address()
	r := start(t, func(config *driver.Config) { config.HTTPEndpoint = address })

	_, err := csi.NewControllerClient(r.conn).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		code, body := get(t, "http://"+address+path)
		require.Equal(t, http.StatusOK, code, body)
	}
	_, body := get(t, "http://"+address+"/metrics")
	require.Contains(t, body, `csi_plugin_operations_seconds_count{driver_name="csi.example.org",`+
		`grpc_status_code="InvalidArgument",method_name="/csi.v1.Controller/DeleteVolume"} 1`)
	require.Contains(t, body, `touchstone_call_duration_seconds_bucket{code="InvalidArgument",method="DeleteVolume",le="0.5"} 1`)
	require.Contains(t, body, "go_goroutines ")
	require.Regexp(t, `touchstone_build_info{commit="",goversion="go.*",version="v0"} 1`, body)
	require.Contains(t, body, "process_start_time_seconds ")
}

func TestProfilesAreServedOnlyIfAsked(t *testing.T) {
	t.Parallel()

	for profiling, want := range map[bool]int{true: http.StatusOK, false: http.StatusNotFound} {
		address := served.Address()
		start(t, func(config *driver.Config) { config.HTTPEndpoint, config.Profiling = address, profiling })

		code, _ := get(t, "http://"+address+"/debug/pprof/goroutine?debug=1")
		require.Equal(t, want, code)
	}
}

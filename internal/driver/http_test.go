package driver_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

func TestHTTPServesMetricsOfEachCall(t *testing.T) {
	t.Parallel()

	address := served.Address()
	r := start(t, func(config *driver.Config) { config.HTTPEndpoint = address })

	_, err := csi.NewControllerClient(r.conn).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{})
	rpccode.Require(t, err, codes.InvalidArgument)

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
		require.Equal(t, want, code, "want: profiles are served only if asked for")
	}
}

// TestHTTPIsServedToKnownHostsOnly: a web page whose name was made to resolve to this machine sends
// its own name, and reads nothing.
func TestHTTPIsServedToKnownHostsOnly(t *testing.T) {
	t.Parallel()

	address := served.Address()
	start(t, func(config *driver.Config) {
		config.HTTPEndpoint, config.HTTPHosts, config.Profiling = address, []string{"touchstone.example.org", "metrics.svc"}, true
	})

	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	for host, want := range map[string]int{
		address: http.StatusOK, "127.0.0.1": http.StatusOK, "localhost:" + port: http.StatusOK, "LOCALHOST.": http.StatusOK,
		// The pod's address in the kubelet's probes and Prometheus' scrapes.
		"10.1.2.3:9808": http.StatusOK, "[fd00::1]:9808": http.StatusOK, "[::1]": http.StatusOK,
		"touchstone.example.org": http.StatusOK, "Metrics.svc.:80": http.StatusOK,

		"attacker.example": http.StatusMisdirectedRequest, "attacker.example:" + port: http.StatusMisdirectedRequest,
		"localhost.attacker.example": http.StatusMisdirectedRequest, "127.0.0.1.attacker.example": http.StatusMisdirectedRequest,
		"sub.touchstone.example.org": http.StatusMisdirectedRequest, "0x7f000001": http.StatusMisdirectedRequest, "127.1": http.StatusMisdirectedRequest,
	} {
		for _, path := range []string{"/", "/health.json", "/metrics", "/healthz", "/livez", "/readyz", "/debug/pprof/"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
			require.NoError(t, err)

			request.Host = host
			answer, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, want, answer.StatusCode, "%s of %s", path, host)
		}
	}
}

func TestUnusableHTTPSettingsAreRefused(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(*driver.Config){
		"no port":         func(c *driver.Config) { c.HTTPEndpoint = "garbage" },
		"port by name":    func(c *driver.Config) { c.HTTPEndpoint = ":http" },
		"port too large":  func(c *driver.Config) { c.HTTPEndpoint = "127.0.0.1:65536" },
		"no host's name":  func(c *driver.Config) { c.HTTPEndpoint = "a b:80" },
		"host with port":  func(c *driver.Config) { c.HTTPEndpoint, c.HTTPHosts = ":0", []string{"a.b:80"} },
		"empty host":      func(c *driver.Config) { c.HTTPEndpoint, c.HTTPHosts = ":0", []string{""} },
		"host without":    func(c *driver.Config) { c.HTTPHosts = []string{"a.b"} },
		"profile without": func(c *driver.Config) { c.Profiling = true },
	} {
		config, _ := configFor(t)
		change(&config)

		_, err := driver.New(t.Context(), config)
		require.ErrorIs(t, err, driver.ErrConfig, name)
	}
}

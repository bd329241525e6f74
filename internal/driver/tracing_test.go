package driver_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/served"
)

// TestCallsAreTraced: the collector gets the spans of the calls, at the end of the driver at the
// latest.
func TestCallsAreTraced(t *testing.T) {
	t.Parallel()

	endpoint, spans := served.Collect(t)
	r := start(t, func(config *driver.Config) { config.OTLPEndpoint = endpoint })
	_, err := csi.NewIdentityClient(r.conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)

	r.stop()
	require.NoError(t, r.wait(t))
	require.Contains(t, spans(), "csi.v1.Identity/GetPluginInfo")
}

// TestSilentCollectorDelaysNothing, neither calls nor the end.
func TestSilentCollectorDelaysNothing(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) { config.OTLPEndpoint = "http://127.0.0.1:1" })
	_, err := csi.NewIdentityClient(r.conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)

	r.stop()
	require.NoError(t, r.wait(t))
}

package modes_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// throughProxy returns a client that reaches the driver by way of a proxy, and
// what ends both.
func throughProxy(t *testing.T, d *harness.Driver) (client *csiclient.Client, stop func()) {
	t.Helper()

	config := driver.Defaults()
	config.Endpoint, config.ReadyFile = "unix://"+filepath.Join(d.Root, "proxy.sock"), filepath.Join(d.Root, "proxy.ready")

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- driver.Forward(ctx, config, d.Config.Endpoint) }()

	client, err := csiclient.Connect(config.Endpoint, awaitcall.Options(t)...)
	require.NoError(t, err)
	harness.AwaitReady(t, client)

	return client, func() {
		require.NoError(t, client.Close())
		cancel()
		require.NoError(t, await.Receive(t, ended, "the proxy to end"))
		require.NoFileExists(t, filepath.Join(d.Root, "proxy.sock"))
		require.NoFileExists(t, config.ReadyFile)
	}
}

// TestLifecycleThroughProxy is TestLifecycle with every call forwarded.
func TestLifecycleThroughProxy(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	direct := d.Client
	client, stop := throughProxy(t, d)
	d.Client = client

	defer func() { d.Client = direct; stop() }()

	volume := harness.NewLifecycle(t, d, harness.Kinds()[0])
	volume.Up()
	sum := volume.Write()
	volume.Expand()
	volume.Holds(sum)

	// What is refused is so in the driver's words.
	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: volume.Claim.VolumeID})
	harness.RequireCode(t, err, codes.FailedPrecondition, harness.NodeID)
	volume.Down()
	volume.Delete()
	conformance.Shows(t, "NodePublishVolume", "through the proxy's socket", "the volume can be written")
}

func TestProxyOutlivesItsUpstream(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	client, stop := throughProxy(t, d)
	d.Stop()

	_, err := client.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	harness.RequireCode(t, err, codes.Unavailable, "csi.sock")

	d.Restart(t)
	harness.AwaitReady(t, client)

	_, err = client.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)

	stop()

	// The proxy has only been in between.
	_, err = d.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
}

func TestProxyToItselfIsRefused(t *testing.T) {
	t.Parallel()

	endpoint := "unix://" + filepath.Join(t.TempDir(), "csi.sock")

	// A proxy that is not refused serves until this ends.
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	err := driver.Forward(ctx, driver.Config{Endpoint: endpoint, Log: slog.New(slog.DiscardHandler)}, endpoint)
	require.ErrorIs(t, err, socket.ErrAddress, "a proxy to its own socket is not refused")
	errtext.Require(t, err, endpoint)
}

package requests_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestProbeReportsReadiness: a driver reads its state slowly, one serves, and one has a state that
// cannot be written any more.
func TestProbeReportsReadiness(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })
	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	d.Stop()

	served.Inject(t, faults.Fault{Ops: faults.Reads, Hang: true})
	t.Cleanup(func() { served.Release(t) })

	started := make(chan struct{})

	go func() {
		d.Restart(t)
		close(started)
	}()

	client, err := csiclient.Connect(d.Config.Endpoint, append(awaitcall.Options(t), conformance.Observe(t, d.World)...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		probed, err := client.Probe(t.Context(), &csi.ProbeRequest{})
		require.NoError(c, err)
		require.NotNil(c, probed.GetReady(), "an absent value means ready")
		require.False(c, probed.GetReady().GetValue(), "Probe says ready while the driver reads its state")
	}, await.Limit, 10*time.Millisecond, "want: the driver is ready")

	served.Release(t)
	await.Receive(t, started, "the driver to start")

	probed, err := d.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.True(t, probed.GetReady().GetValue(), "want: Probe says that the driver is ready")

	served.Inject(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})

	_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "refused", Parameters: harness.DirectoryBacked(),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
	})
	harness.RequireCode(t, err, codes.Unavailable, "state")

	_, err = d.Probe(t.Context(), &csi.ProbeRequest{})
	harness.RequireCode(t, err, codes.FailedPrecondition, "state")
	conformance.Shows(t, "Probe", "while the state cannot be written", codes.FailedPrecondition.String())
}

package removal_test

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestRecordsOfRemovedVolumesGo has the state run out of space while a volume is removed: once there is
// space again the volume takes none of the pool's, without a restart.
func TestRecordsOfRemovedVolumesGo(t *testing.T) {
	namespace.NeedRoot(t)

	directory, space := t.TempDir(), harness.NewStateSpace(t)
	require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { harness.Unmount(t, directory) })

	d := harness.Start(t, space.Option, func(c *driver.Config) {
		c.EnableFaults = true
		c.Pools["second"] = directory
	})
	rules, inSecond := faults.Client{Connection: d.Conn()}, map[string]string{"pool": "second"}

	available := func() int64 {
		capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: inSecond})
		require.NoError(t, err)

		return capacity.GetAvailableCapacity()
	}

	before := available()
	removed := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "removed", Parameters: inSecond, CapacityRange: harness.RequiredBytes(16 * harness.MiB),
	})
	require.Less(t, available(), before, "want: the volume takes its size")

	_, err := rules.Add(t.Context(), "{match: {at: volume-removed, volume: "+removed.VolumeID+"}, act: {hold: here}}")
	require.NoError(t, err)

	ended := make(chan error, 1)

	go func() {
		_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: removed.VolumeID})
		ended <- err
	}()

	require.Eventually(t, func() bool {
		listed, err := rules.List(t.Context())

		return err == nil && listed.Rules[0].Holding == 1
	}, await.Limit, time.Millisecond, "waited for the removal to be held")

	space.Fill(t, d)

	_, err = rules.Clear(t.Context(), "")
	require.NoError(t, err)
	require.NoError(t, await.Receive(t, ended, "the deletion to end"), "the volume is gone for the CO")

	space.Free(t)
	require.Eventually(t, func() bool { return available() == before }, await.Limit, 10*time.Millisecond,
		"waited for the record of the volume to be removed")
}

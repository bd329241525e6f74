package access_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
)

const podUID = "7f0a1f5e-0000-4000-8000-0123456789ab"

// limits returns the limits of the pod, without the number of the volume's device, "" without any.
func (f *fixture) limits(t *testing.T) string {
	t.Helper()

	content, err := os.ReadFile(f.ioMax)
	require.NoError(t, err)

	return strings.TrimPrefix(strings.TrimSpace(string(content)), fmt.Sprintf("7:%d ", f.status(t).Number))
}

func (f *fixture) readAhead(t *testing.T) string {
	t.Helper()

	content, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/queue/read_ahead_kb", f.status(t).Number))
	require.NoError(t, err)

	return strings.TrimSpace(string(content))
}

// TestParametersAreAppliedToDevicesAndPods has the mutable parameters of a volume set before it is
// used, and changed while it is.
func TestParametersAreAppliedToDevicesAndPods(t *testing.T) {
	const limited, unlimited = "rbps=max wbps=max riops=3 wiops=max", "rbps=max wbps=max riops=max wiops=max"

	image := parametersOf(t, volume.BackingImage)
	iops := volume.Mutable{volume.KeyReadIOPS: "3", volume.KeyReadAheadKiB: "64"}

	for name, test := range map[string]struct {
		v    staged.Volume
		pod  string
		want string
		// ended means that the pod is not there, which keeps a volume with limits from being published.
		ended bool
	}{
		"mounted":         {v: staged.Volume{Parameters: image}, pod: podUID, want: limited},
		"raw":             {v: staged.Volume{Parameters: image, Capability: volume.Capability{Block: true}}, pod: podUID, want: limited},
		"of no known pod": {v: staged.Volume{Parameters: image}},
		"of an ended pod": {v: staged.Volume{Parameters: image}, pod: "7f0a1f5e-0000-4000-8000-0123456789ff", ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.v)
			f.Publication.Pod = test.pod
			f.Store(t)
			require.NoError(t, f.pool.SetMutable(f.V.VolumeID, volume.Mutable{volume.KeyReadAheadKiB: "32"}))
			require.NoError(t, f.Stage(t))
			require.Equal(t, "32", f.readAhead(t))
			require.NoError(t, f.Publish(t))
			require.Empty(t, f.limits(t), "want: a volume without limits sets none")

			require.NoError(t, f.pool.SetMutable(f.V.VolumeID, iops))
			require.NoError(t, f.ways.Tune(t.Context(), f.V))
			require.Equal(t, "64", f.readAhead(t))
			require.Equal(t, test.want, f.limits(t))

			require.NoError(t, f.pool.SetMutable(f.V.VolumeID, volume.Mutable{}))
			require.NoError(t, f.ways.Tune(t.Context(), f.V))
			require.Contains(t, []string{"", unlimited}, f.limits(t), "want: no limits are left")
			require.NoError(t, f.Unpublish(t))

			require.NoError(t, f.pool.SetMutable(f.V.VolumeID, iops))

			err := f.Publish(t)
			require.Equal(t, test.ended, err != nil, "want: the volume is published with its limits, or not at all: %v", err)
			require.Equal(t, test.want, f.limits(t))

			require.NoError(t, f.Unpublish(t))
			require.Contains(t, []string{"", unlimited}, f.limits(t), "want: no limits are left")
			require.NoError(t, f.Way.Unstage(t.Context(), f.V))
		})
	}
}

// TestOnlyStoredImagesHaveParameters has volumes whose parameters no pool has.
func TestOnlyStoredImagesHaveParameters(t *testing.T) {
	f := newFixtureOf(t, staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)}, loopsys.New(t, nil).Loops())
	require.NoError(t, f.ways.Tune(t.Context(), f.V), "want: a directory has no parameters")

	f.V.Parameters = parametersOf(t, volume.BackingImage)
	require.NoError(t, f.ways.Tune(t.Context(), f.V), "want: a volume without devices and publications needs none")

	f.V.Parameters.Pool = "other"
	require.Error(t, f.ways.Tune(t.Context(), f.V), "want: the parameters are unknown without the pool")

	f.V.Ephemeral = true
	require.NoError(t, f.ways.Tune(t.Context(), f.V), "want: an inline volume has no parameters")
	require.NoFileExists(t, filepath.Join(f.pool.MutablePath(), f.V.VolumeID))
}

// TestUntunableDeviceIsNotUsed: the kernel does not know the scheduler.
func TestUntunableDeviceIsNotUsed(t *testing.T) {
	for name, v := range map[string]staged.Volume{
		"mounted": {Parameters: parametersOf(t, volume.BackingImage)},
		"raw":     {Parameters: parametersOf(t, volume.BackingImage), Capability: volume.Capability{Block: true}},
	} {
		l := &life{fixture: newFixture(t, v), t: t}
		l.Store(t)
		require.NoError(t, l.pool.SetMutable(l.V.VolumeID, volume.Mutable{volume.KeyIOScheduler: "none-such"}))
		errtext.Require(t, l.Stage(t), "none-such", name)
		l.requireDetached()
		require.NoError(t, os.WriteFile(filepath.Join(l.pool.MutablePath(), l.V.VolumeID), []byte("no JSON"), 0o600))
		require.Error(t, l.Stage(t), "want: the parameters are unknown: %s", name)
		l.requireDetached()

		require.NoError(t, l.pool.SetMutable(l.V.VolumeID, volume.Mutable{}))
		require.NoError(t, l.Stage(t))
		require.NoError(t, l.pool.SetMutable(l.V.VolumeID, volume.Mutable{volume.KeyIOScheduler: "none-such"}))
		errtext.Require(t, l.ways.Tune(t.Context(), l.V), "none-such", name)
		l.end()
	}
}

package monitoring_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/metrics"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/served"
)

// waitLimit is no verdict on speed: it only ends a test that would hang.
const waitLimit = time.Minute

// watched is a driver with one ext4 volume in use, and its address for people.
type watched struct {
	*harness.Driver

	address string
	claim   *csiclient.Publication
	// binary is the command, once it is built.
	binary string
}

func start(t *testing.T) *watched {
	t.Helper()
	namespace.NeedRoot(t)

	w, registrations, rules := &watched{address: served.Address()}, t.TempDir(), filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("{match: {method: GetPluginInfo}, act: {delay: {before: 1ms}}}"), 0o600))

	w.Driver = harness.Start(t, func(config *driver.Config) {
		config.HTTPEndpoint, config.Registration.Directory = w.address, registrations
		config.CallLog, config.Strict, config.Faults = driver.CallLogRing, strict.Observe, rules // all metrics
	})

	made, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-" + t.Name(), CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")},
	})
	require.NoError(t, err)

	w.claim = w.Claim(t, made.GetVolume().GetVolumeId())
	w.claim.VolumeContext = made.GetVolume().GetVolumeContext()
	w.claim.Capability = csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")

	require.NoError(t, w.Attach(t.Context(), w.claim))
	require.NoError(t, w.Stage(t.Context(), w.claim))
	require.NoError(t, w.Publish(t.Context(), w.claim))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, w.Unpublish(ctx, w.claim))
		require.NoError(t, w.Unstage(ctx, w.claim))
		require.NoError(t, w.Detach(ctx, w.claim))
	})

	// A probe follows the staging.
	require.Eventually(t, func() bool { return len(w.scrape(t)["touchstone_volume_bytes"]) > 0 }, waitLimit, 10*time.Millisecond, "want: the usage of the volume is exposed")

	return w
}

func (w *watched) get(t *testing.T, path string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	text, err := served.Get(ctx, w.address, path)
	require.NoError(t, err)

	return text
}

func (w *watched) check(t *testing.T) *health.VolumeCheck {
	t.Helper()

	found, err := health.NewClient(w.Conn()).Check(t.Context(), health.CheckRequest{VolumeID: w.claim.VolumeID, How: "online"})
	require.NoError(t, err)

	return found
}

// series are the labels of each series, by the metric's name.
type series map[string][]map[string]string

// scrape reads what Prometheus would.
func (w *watched) scrape(t *testing.T) series {
	t.Helper()

	exposed := series{}

	values, err := metrics.Read(t.Context(), w.address)
	require.NoError(t, err)

	for _, each := range values {
		name, labels := "", map[string]string{}

		for label, value := range each.Metric {
			if label == model.MetricNameLabel {
				name = string(value)
			} else {
				labels[string(label)] = string(value)
			}
		}

		exposed[name] = append(exposed[name], labels)
	}

	return exposed
}

// values are those that a label has among the series of a metric.
func (s series) values(metric, label string) []string {
	var values []string

	for _, labels := range s[metric] {
		if value, ok := labels[label]; ok {
			values = append(values, value)
		}
	}

	return values
}

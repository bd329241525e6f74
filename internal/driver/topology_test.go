package driver_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestNamesFollowTheSpec's rules for GetPluginInfoResponse.name and for Topology.
func TestNamesFollowTheSpec(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("n", 64)

	for name, test := range map[string]struct {
		change  func(c *driver.Config)
		problem string
	}{
		"as it is":          {func(*driver.Config) {}, ""},
		"driver, dots":      {func(c *driver.Config) { c.DriverName = "a..b" }, "domain name"},
		"driver, dash":      {func(c *driver.Config) { c.DriverName = "a.-b" }, "domain name"},
		"driver, long":      {func(c *driver.Config) { c.DriverName = long }, "domain name"},
		"zone":              {func(c *driver.Config) { c.Topology = map[string]string{"zone": "z1"} }, ""},
		"own prefix":        {func(c *driver.Config) { c.Topology = map[string]string{"topology.touchstone.dev/zone": "z1"} }, ""},
		"two prefixes":      {func(c *driver.Config) { c.Topology = map[string]string{"example.org/zone": "z1"} }, "different prefixes"},
		"shared, a prefix":  {func(c *driver.Config) { c.Shared, c.Topology = true, map[string]string{"example.org/zone": "z1"} }, ""},
		"capital prefix":    {func(c *driver.Config) { c.Shared, c.Topology = true, map[string]string{"Example.org/zone": "z"} }, "lower-case"},
		"differ by case":    {func(c *driver.Config) { c.Topology = map[string]string{"zone": "a", "Zone": "b"} }, "only by case"},
		"key with a space":  {func(c *driver.Config) { c.Topology = map[string]string{"bad key": "a"} }, "letters and digits"},
		"long key":          {func(c *driver.Config) { c.Topology = map[string]string{long: "a"} }, "letters and digits"},
		"value, space":      {func(c *driver.Config) { c.Topology = map[string]string{"zone": "x y"} }, "letters and digits"},
		"value, empty":      {func(c *driver.Config) { c.Topology = map[string]string{"zone": ""} }, "letters and digits"},
		"node id, colon":    {func(c *driver.Config) { c.NodeID = "host:8080" }, "--node-id"},
		"node id, long":     {func(c *driver.Config) { c.NodeID = long }, "--node-id"},
		"node id, shared":   {func(c *driver.Config) { c.Shared, c.NodeID = true, "host:8080" }, ""},
		"node id, 257":      {func(c *driver.Config) { c.Shared, c.NodeID = true, strings.Repeat("n", 257) }, "257 bytes"},
		"node id, disabled": {func(c *driver.Config) { c.NodeID, c.Disabled = "host:8080", []string{"TOPOLOGY"} }, ""},
		"offline, no controller": {
			func(c *driver.Config) { c.Disabled = []string{"ONLINE", "CONTROLLER_SERVICE"} }, "EXPAND_VOLUME needs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config, _ := configFor(t)
			test.change(&config)

			_, err := driver.New(t.Context(), config)
			if test.problem == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, driver.ErrConfig)
				errtext.Require(t, err, test.problem)
			}
		})
	}
}

// TestConstraintsAreAdvertisedWithATopologyOnly has volumes that each node can reach, for which a CO
// needs no topology.
func TestConstraintsAreAdvertisedWithATopologyOnly(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(c *driver.Config)
		want   bool
	}{
		"a node's own pools":    {func(*driver.Config) {}, true},
		"shared pools":          {func(c *driver.Config) { c.Shared = true }, false},
		"shared pools, a zone":  {func(c *driver.Config) { c.Shared, c.Topology = true, map[string]string{"zone": "a"} }, true},
		"a topology left out":   {func(c *driver.Config) { c.Disabled = []string{"TOPOLOGY"} }, false},
		"left out, with a zone": {func(c *driver.Config) { c.Disabled, c.Topology = []string{"TOPOLOGY"}, map[string]string{"zone": "a"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			r := start(t, test.change)

			answer, err := csi.NewIdentityClient(r.conn).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
			require.NoError(t, err)

			var advertised []csi.PluginCapability_Service_Type
			for _, each := range answer.GetCapabilities() {
				advertised = append(advertised, each.GetService().GetType())
			}

			require.Equal(t, test.want, slices.Contains(advertised, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
				"want: volumes have constraints where a topology is known: %v", advertised)
		})
	}
}

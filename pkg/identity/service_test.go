package identity_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/pkg/identity"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)

	return c
}

// probed is a service with a check that counts, and returns a given result.
type probed struct {
	*identity.Service

	checks  atomic.Int32
	failure atomic.Pointer[error]
	log     bytes.Buffer
}

func newProbed(ready <-chan struct{}) *probed {
	p := &probed{}
	p.Service = identity.New(identity.Config{
		Name: "csi.example.org", Version: "v1", Ready: ready,
		Check: func() error {
			p.checks.Add(1)

			if err := p.failure.Load(); err != nil {
				return *err
			}

			return nil
		},
		Log: slog.New(slog.NewTextHandler(&p.log, nil)),
	})

	return p
}

func (p *probed) fail(err error) { p.failure.Store(&err) }

func TestGetPluginInfoNamesThePlugin(t *testing.T) {
	t.Parallel()

	s := identity.New(identity.Config{
		Name: "csi.example.org", Version: "v1.2", Manifest: map[string]string{"mode": "node"}, Log: slog.New(slog.DiscardHandler),
	})
	info, err := s.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "csi.example.org", info.GetName())
	require.Equal(t, "v1.2", info.GetVendorVersion())
	require.Equal(t, map[string]string{"mode": "node"}, info.GetManifest())

	// Further entries change, and leave the manifest as it is.
	config := identity.Config{
		Name: "csi.example.org", Manifest: map[string]string{"mode": "node"}, MoreManifest: func() map[string]string { return map[string]string{"more": "1"} },
	}

	info, err = identity.New(config).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"mode": "node", "more": "1"}, info.GetManifest())
	require.Equal(t, map[string]string{"mode": "node"}, config.Manifest)
}

// TestGetPluginCapabilitiesOmitsDisabledOnes: what is disabled is not advertised.
func TestGetPluginCapabilitiesOmitsDisabledOnes(t *testing.T) {
	t.Parallel()

	for _, disabled := range []string{
		"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS", "GROUP_CONTROLLER_SERVICE", "SNAPSHOT_METADATA_SERVICE",
		"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "EXPAND_VOLUME", "ONLINE",
	} {
		set, err := capability.Without(disabled)
		require.NoError(t, err, disabled)

		response, err := identity.New(identity.Config{Topology: true, Capabilities: set}).
			GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
		require.NoError(t, err)

		expansions := 0

		for _, each := range response.GetCapabilities() {
			require.NotEqual(t, disabled, each.GetService().GetType().String())

			if expansion := each.GetVolumeExpansion(); expansion != nil {
				expansions++

				require.Equal(t, disabled == "ONLINE", expansion.GetType() == csi.PluginCapability_VolumeExpansion_OFFLINE,
					"want: offline only without ONLINE")
			}
		}

		require.Equal(t, disabled != "EXPAND_VOLUME", expansions == 1, "want: one kind of expansion, or none")
	}
}

func TestGetPluginCapabilitiesFollowsTheConfig(t *testing.T) {
	t.Parallel()

	const (
		controller = csi.PluginCapability_Service_CONTROLLER_SERVICE
		topology   = csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS
		groups     = csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
		metadata   = csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE
		snapshots  = csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS
	)

	for name, test := range map[string]struct {
		config identity.Config
		want   []csi.PluginCapability_Service_Type
	}{
		"a node each": {
			identity.Config{Topology: true},
			[]csi.PluginCapability_Service_Type{controller, topology, groups, metadata, snapshots},
		},
		"shared": {identity.Config{}, []csi.PluginCapability_Service_Type{controller, groups, metadata}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			response, err := identity.New(test.config).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
			require.NoError(t, err)

			var (
				services   []csi.PluginCapability_Service_Type
				expansions []csi.PluginCapability_VolumeExpansion_Type
			)

			for _, capability := range response.GetCapabilities() {
				if service := capability.GetService(); service != nil {
					services = append(services, service.GetType())
				}

				if expansion := capability.GetVolumeExpansion(); expansion != nil {
					expansions = append(expansions, expansion.GetType())
				}
			}

			require.Equal(t, test.want, services)
			require.Equal(t, []csi.PluginCapability_VolumeExpansion_Type{csi.PluginCapability_VolumeExpansion_ONLINE}, expansions)
		})
	}
}

func TestProbeIsNotReadyWhileInitializingAndDoesNotCheck(t *testing.T) {
	t.Parallel()

	ready := make(chan struct{})
	p := newProbed(ready)
	p.fail(errors.New("too early to ask"))

	response, err := p.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.False(t, response.GetReady().GetValue(), "Probe says ready while the plugin initializes")
	require.NotNil(t, response.GetReady(), "an absent value means ready")
	require.Zero(t, p.checks.Load(), "want: Probe does not check while the plugin initializes")

	close(ready)

	_, err = p.Probe(t.Context(), &csi.ProbeRequest{})
	rpccode.Require(t, err, codes.FailedPrecondition)
}

func TestProbeFailsWhileTheCheckFails(t *testing.T) {
	t.Parallel()

	p := newProbed(closed())

	response, err := p.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.True(t, response.GetReady().GetValue(), "want: Probe says that the driver is ready")

	p.fail(errors.New("state: read-only file system"))

	_, err = p.Probe(t.Context(), &csi.ProbeRequest{})
	rpccode.Require(t, err, codes.FailedPrecondition)
	errtext.Require(t, err, "state: read-only file system")

	p.failure.Store(nil)

	_, err = p.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
}

func TestProbeLogsAReasonOnce(t *testing.T) {
	t.Parallel()

	p := newProbed(closed())
	p.fail(errors.New("store: no space left on device"))

	for range 5 {
		_, err := p.Probe(t.Context(), &csi.ProbeRequest{})
		require.Error(t, err, "Probe with a store that fails")
	}

	p.failure.Store(nil)

	_, err := p.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(p.log.String(), "no space left on device"), "want: the reason is logged once")
	require.Equal(t, 1, strings.Count(p.log.String(), "healthy again"), "want: the recovery is logged once")
}

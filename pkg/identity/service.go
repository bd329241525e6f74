package identity

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// Config configures the Identity service.
type Config struct {
	// Name and Version are those of GetPluginInfo.
	Name, Version string
	// Manifest is opaque to a CO, and for a person's eyes.
	Manifest map[string]string
	// MoreManifest returns further entries, which may change; nil has none.
	MoreManifest func() map[string]string
	// Capabilities are those that the plugin advertises.
	Capabilities capability.Set
	// Topology: not every volume is accessible from every node.
	Topology bool
	// Ready is closed once the plugin has finished initializing.
	Ready <-chan struct{}
	// Check returns why the plugin is unhealthy, or nil. Each Probe calls it, so it must
	// neither block nor be expensive.
	Check func() error
	Log   *slog.Logger
}

// Service is the CSI Identity service.
type Service struct {
	csi.UnimplementedIdentityServer

	config Config

	mu sync.Mutex
	// logged is the last reason that went to the log.
	logged string
}

// New returns the service.
func New(config Config) *Service { return &Service{config: config} }

// GetPluginInfo names the plugin and its version.
func (s *Service) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	manifest := s.config.Manifest
	if s.config.MoreManifest != nil {
		manifest = maps.Clone(manifest)
		maps.Copy(manifest, s.config.MoreManifest())
	}

	return &csi.GetPluginInfoResponse{Name: s.config.Name, VendorVersion: s.config.Version, Manifest: manifest}, nil
}

// GetPluginCapabilities returns the services and plugin-wide capabilities. It returns the same
// set in each process of a plugin, whether that serves the node, the controller or both
// (CSI v1.13, GetPluginCapabilities).
func (s *Service) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: s.config.Capabilities.Plugin(s.config.Topology)}, nil
}

// Probe returns ready, or ready false while initializing, or, as the spec requires for
// an unhealthy plugin, fails with the reason.
func (s *Service) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	ready, err := s.Health(ctx)
	if err != nil {
		return nil, rpc.Errorf(codes.FailedPrecondition, "unhealthy: %w", err)
	}

	return &csi.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}

// Health is Probe's answer as plain values: ready is false without an error
// while the plugin is initializing.
func (s *Service) Health(ctx context.Context) (ready bool, err error) {
	select {
	case <-s.config.Ready:
	default:
		return false, nil
	}

	err = s.config.Check()
	s.logChange(ctx, err)

	return err == nil, err
}

// logChange logs a new reason, not every probe.
func (s *Service) logChange(ctx context.Context, err error) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}

	s.mu.Lock()
	changed := reason != s.logged
	s.logged = reason
	s.mu.Unlock()

	switch {
	case !changed:
	case err != nil:
		s.config.Log.ErrorContext(ctx, "the plugin is unhealthy, Probe fails", "error", err)
	default:
		s.config.Log.InfoContext(ctx, "the plugin is healthy again")
	}
}

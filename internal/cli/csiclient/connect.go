package csiclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// probeInterval is how long WaitReady lets a driver be that answers
	// "not ready".
	probeInterval = 20 * time.Millisecond

	// The socket is local and a restarted driver is back within milliseconds:
	// gRPC's default of waiting a second before it redials would only hide how
	// fast it is.
	redialBaseDelay = 5 * time.Millisecond
	redialMaxDelay  = 100 * time.Millisecond
	redialGrowth    = 1.6
	redialTimeout   = 5 * time.Second
)

// ErrNotReady is in the error of WaitReady when the driver answered until the
// end that it is not ready, rather than not at all.
var ErrNotReady = errors.New("the driver says that it is not ready")

// Orchestrator talks to one CSI socket. The services' clients are there for
// calls that need no help.
type Orchestrator struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	csi.GroupControllerClient
	csi.SnapshotMetadataClient

	conn *grpc.ClientConn
}

// Connect prepares a connection to endpoint, such as
// unix:///run/touchstone/csi.sock. It does not dial: the first call does, and
// fails with UNAVAILABLE where nobody listens.
func Connect(endpoint string, opts ...grpc.DialOption) (*Orchestrator, error) {
	conn, err := grpc.NewClient(endpoint, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(nameFailedCalls),
		grpc.WithChainStreamInterceptor(nameFailedStreams),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  redialBaseDelay,
				MaxDelay:   redialMaxDelay,
				Multiplier: redialGrowth,
			},
			MinConnectTimeout: redialTimeout,
		}),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}

	return &Orchestrator{
		IdentityClient:         csi.NewIdentityClient(conn),
		ControllerClient:       csi.NewControllerClient(conn),
		NodeClient:             csi.NewNodeClient(conn),
		GroupControllerClient:  csi.NewGroupControllerClient(conn),
		SnapshotMetadataClient: csi.NewSnapshotMetadataClient(conn),
		conn:                   conn,
	}, nil
}

// Conn is the connection, for what a driver serves on its socket beside CSI.
func (o *Orchestrator) Conn() grpc.ClientConnInterface { return o.conn }

// Close ends the connection; calls that are under way fail.
func (o *Orchestrator) Close() error {
	if err := o.conn.Close(); err != nil {
		return fmt.Errorf("close the connection: %w", err)
	}

	return nil
}

// WaitReady returns when Probe says that the driver is ready, and waits for
// the socket to appear if need be. When ctx ends first, the error names the
// last answer.
func (o *Orchestrator) WaitReady(ctx context.Context) error {
	for {
		last := o.probe(ctx)
		if last == nil {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the driver is ready: %w (%w)", last, ctx.Err())
		case <-time.After(probeInterval):
		}
	}
}

func (o *Orchestrator) probe(ctx context.Context) error {
	answer, err := o.Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}

	// An absent ready means yes (CSI v1.13, Probe).
	if ready := answer.GetReady(); ready != nil && !ready.GetValue() {
		return ErrNotReady
	}

	return nil
}

// Capabilities are what a driver says that it can do, of all its services.
type Capabilities struct {
	Plugin          []*csi.PluginCapability
	Controller      []*csi.ControllerServiceCapability
	GroupController []*csi.GroupControllerServiceCapability
	Node            []*csi.NodeServiceCapability
	// HasNode tells a node service without capabilities from none at all.
	HasNode bool
}

// Capabilities asks each service that is behind the socket. A controller-only
// or node-only driver is not an error.
func (o *Orchestrator) Capabilities(ctx context.Context) (Capabilities, error) {
	var all Capabilities

	plugin, err := o.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return Capabilities{}, err
	}

	all.Plugin = plugin.GetCapabilities()

	if all.HasController() {
		controller, err := o.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		if err != nil {
			return Capabilities{}, err
		}

		all.Controller = controller.GetCapabilities()
	}

	if all.Serves(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE) {
		groups, err := o.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
		if err != nil {
			return Capabilities{}, err
		}

		all.GroupController = groups.GetCapabilities()
	}

	node, err := o.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})

	switch status.Code(err) {
	case codes.OK:
		all.Node, all.HasNode = node.GetCapabilities(), true
	case codes.Unimplemented:
		// No plugin capability announces a node service: this is how one finds out.
	default:
		return Capabilities{}, err
	}

	return all, nil
}

// HasController says whether a controller service is behind the socket.
func (c Capabilities) HasController() bool {
	return c.Serves(csi.PluginCapability_Service_CONTROLLER_SERVICE)
}

// Serves says whether the plugin advertises the service, or what the spec makes
// a service's capability of it.
func (c Capabilities) Serves(want csi.PluginCapability_Service_Type) bool {
	for _, capability := range c.Plugin {
		if capability.GetService().GetType() == want {
			return true
		}
	}

	return false
}

// Controls says whether the controller service advertises the capability.
func (c Capabilities) Controls(want csi.ControllerServiceCapability_RPC_Type) bool {
	for _, capability := range c.Controller {
		if capability.GetRpc().GetType() == want {
			return true
		}
	}

	return false
}

// Nodes says whether the node service advertises the capability.
func (c Capabilities) Nodes(want csi.NodeServiceCapability_RPC_Type) bool {
	for _, capability := range c.Node {
		if capability.GetRpc().GetType() == want {
			return true
		}
	}

	return false
}

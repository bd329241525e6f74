package csiclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// probeInterval is the time between two Probe calls of WaitReady.
	probeInterval = 20 * time.Millisecond

	// The socket is local and a driver restarts within milliseconds: gRPC's default
	// of one second before it redials would delay every caller.
	redialBaseDelay = 5 * time.Millisecond
	redialMaxDelay  = 100 * time.Millisecond
	redialGrowth    = 1.6
	redialTimeout   = 5 * time.Second
)

// ErrNotReady is wrapped by WaitReady's error if the driver answered until the end,
// but not that it is ready.
var ErrNotReady = errors.New("the driver reports that it is not ready")

// Client is a connection to one CSI socket. It embeds the generated clients of all
// services.
type Client struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	csi.GroupControllerClient
	csi.SnapshotMetadataClient

	conn *grpc.ClientConn
}

// Connect prepares a connection to endpoint, such as
// unix:///run/touchstone/csi.sock. It does not dial: the first call does, and
// fails with UNAVAILABLE if no server listens.
func Connect(endpoint string, opts ...grpc.DialOption) (*Client, error) {
	conn, err := grpc.NewClient(endpoint, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(nameFailedCalls),
		grpc.WithChainStreamInterceptor(nameFailedStreams),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialBaseDelay, MaxDelay: redialMaxDelay, Multiplier: redialGrowth},
			MinConnectTimeout: redialTimeout,
		}),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}

	return &Client{
		IdentityClient:         csi.NewIdentityClient(conn),
		ControllerClient:       csi.NewControllerClient(conn),
		NodeClient:             csi.NewNodeClient(conn),
		GroupControllerClient:  csi.NewGroupControllerClient(conn),
		SnapshotMetadataClient: csi.NewSnapshotMetadataClient(conn),
		conn:                   conn,
	}, nil
}

// Conn returns the connection, for services other than CSI's on the same socket.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Close closes the connection; calls under way fail.
func (c *Client) Close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("close the connection: %w", err)
	}

	return nil
}

// WaitReady calls Probe until the driver answers that it is ready; it waits for the
// socket to appear if necessary. If ctx ends first, the error contains the last answer.
func (c *Client) WaitReady(ctx context.Context) error {
	for {
		last := c.probe(ctx)
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

func (c *Client) probe(ctx context.Context) error {
	answer, err := c.Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}

	// An absent ready means yes (CSI v1.13, Probe).
	if ready := answer.GetReady(); ready != nil && !ready.GetValue() {
		return ErrNotReady
	}

	return nil
}

// Capabilities contains the capabilities that all services of a driver advertise.
type Capabilities struct {
	Plugin          []*csi.PluginCapability
	Controller      []*csi.ControllerServiceCapability
	GroupController []*csi.GroupControllerServiceCapability
	Node            []*csi.NodeServiceCapability
	// HasController and HasNode are true where the service is served, even without capabilities.
	HasController, HasNode bool
}

// Capabilities gets the capabilities of each service on the socket. A controller-only
// or node-only driver is not an error.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	var all Capabilities

	plugin, err := c.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return Capabilities{}, err
	}

	all.Plugin = plugin.GetCapabilities()

	controller, err := c.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if all.HasController, err = served(err); err != nil {
		return Capabilities{}, err
	}

	groups, err := c.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
	if _, err = served(err); err != nil {
		return Capabilities{}, err
	}

	node, err := c.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if all.HasNode, err = served(err); err != nil {
		return Capabilities{}, err
	}

	all.Controller, all.GroupController, all.Node = controller.GetCapabilities(), groups.GetCapabilities(), node.GetCapabilities()

	return all, nil
}

// served reports whether the service of a call that returned err is served on this socket. What
// the plugin advertises says so for all of its sockets together.
func served(err error) (bool, error) {
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}

	return err == nil, err
}

// HasControllerRPC reports whether the controller service advertises the capability.
func (c Capabilities) HasControllerRPC(want csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.ContainsFunc(c.Controller, func(capability *csi.ControllerServiceCapability) bool {
		return capability.GetRpc().GetType() == want
	})
}

// HasNodeRPC reports whether the node service advertises the capability.
func (c Capabilities) HasNodeRPC(want csi.NodeServiceCapability_RPC_Type) bool {
	return slices.ContainsFunc(c.Node, func(capability *csi.NodeServiceCapability) bool {
		return capability.GetRpc().GetType() == want
	})
}

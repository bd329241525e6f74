package modes_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// freePort returns a loopback address on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())

	return listener.Addr().String()
}

func TestATCPEndpointIsOnTheLoopback(t *testing.T) {
	t.Parallel()

	address := freePort(t)
	d := harness.Start(t, func(c *driver.Config) { c.SimulateNode, c.TCPEndpoint = true, address })

	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)

	info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, d.Config.DriverName, info.GetName())
	require.NoError(t, conn.Close())

	config := d.Config
	config.TCPEndpoint, config.Endpoint = "0.0.0.0:0", "unix://"+filepath.Join(d.Root, "other.sock")
	config.StateDir = filepath.Join(d.Root, "other")
	_, err = driver.New(t.Context(), config)
	require.ErrorIs(t, err, socket.ErrAddress)
}

// TestAPairedProxyJoinsTwoThatDial has a CSI server that only dials serve the calls of a CO that only dials.
func TestAPairedProxyJoinsTwoThatDial(t *testing.T) {
	t.Parallel()

	const warning = "every process of this machine can act as the CSI server"

	t.Run("unix", func(t *testing.T) {
		t.Parallel()

		path := filepath.Join(t.TempDir(), "made", "server.sock")
		log := pairedProxy(t, "unix://"+path, func() {
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.Equal(t, fs.ModeSocket|0o600, info.Mode(), "other users cannot connect")
		})
		require.NotContains(t, log, warning)
		require.NoFileExists(t, path)
	})
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		require.Contains(t, pairedProxy(t, freePort(t), func() {}), warning)
	})
}

// pairedProxy serves one call through a proxy that a CSI server connects to at the address, and
// returns the proxy's log. ready is called when the proxy is.
func pairedProxy(t *testing.T, address string, ready func()) string {
	t.Helper()

	log := &logs.Buffer{}
	config := driver.Defaults()
	config.Endpoint, config.ReadyFile = "unix://"+filepath.Join(t.TempDir(), "csi.sock"), filepath.Join(t.TempDir(), "ready")
	config.Log = slog.New(slog.NewTextHandler(log, nil))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- driver.ForwardPaired(ctx, config, address) }()

	require.Eventually(t, func() bool {
		_, err := os.Stat(config.ReadyFile)

		return err == nil
	}, await.Limit, time.Millisecond, "want: the proxy is ready")
	ready()

	client, err := csiclient.Connect(config.Endpoint, awaitcall.Options(t)...)
	require.NoError(t, err)

	embedded := grpc.NewServer()
	csi.RegisterIdentityServer(embedded, embeddedIdentity{})

	dialed := &dialer{address: address, closed: make(chan struct{})}
	served := make(chan error, 1)

	go func() { served <- embedded.Serve(dialed) }()

	info, err := client.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "embedded", info.GetName())

	embedded.Stop()
	require.NoError(t, await.Receive(t, served, "the embedded server to end"))
	require.NoError(t, client.Close())
	cancel()
	require.NoError(t, await.Receive(t, ended, "the proxy to end"))

	return log.String()
}

// TestPairedProxyAddresses has those refused at which other machines could connect, and the
// proxy's own endpoint.
func TestPairedProxyAddresses(t *testing.T) {
	t.Parallel()

	config := driver.Config{Endpoint: filepath.Join(t.TempDir(), "csi.sock")}
	for _, address := range []string{"192.0.2.1:1", "0.0.0.0:1", ":1", "garbage", "127.0.0.1:x", config.Endpoint} {
		require.ErrorIs(t, driver.ForwardPaired(t.Context(), config, address), socket.ErrAddress, address)
	}
}

type embeddedIdentity struct {
	csi.UnimplementedIdentityServer
}

func (embeddedIdentity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "embedded"}, nil
}

// dialer is a listener whose connections are dialed: it accepts the next one when the proxy has
// joined the one before, which its first byte shows.
type dialer struct {
	address string
	closed  chan struct{}
	used    chan struct{}
	// idle is the connection that no caller was joined with; a server does not end before it.
	idle atomic.Pointer[net.Conn]
}

func (d *dialer) Accept() (net.Conn, error) {
	if d.used != nil {
		select {
		case <-d.used:
		case <-d.closed:
			return nil, io.EOF
		}
	}

	d.used = make(chan struct{})

	for {
		conn, err := dialServer(d.address)
		if err == nil {
			d.idle.Store(&conn)

			return &joined{Conn: conn, used: d.used}, nil
		}

		select {
		case <-d.closed:
			return nil, errors.Join(io.EOF, err)
		default: // the proxy does not listen yet
		}
	}
}

func dialServer(address string) (net.Conn, error) {
	network, target, err := socket.ParseAddress(address)
	if err != nil {
		return nil, err
	}

	return net.Dial(network, target)
}

func (d *dialer) Close() error {
	close(d.closed)

	return (*d.idle.Load()).Close()
}

func (d *dialer) Addr() net.Addr { return &net.TCPAddr{} }

type joined struct {
	net.Conn

	used chan struct{}
	read bool
}

func (j *joined) Read(into []byte) (int, error) {
	n, err := j.Conn.Read(into)
	if n > 0 && !j.read {
		j.read = true
		close(j.used)
	}

	return n, err
}

// TestSimulatedCapacityIsProvisioned: the configured size of the pool is smaller, and larger, than
// its disk.
func TestSimulatedCapacityIsProvisioned(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) {
		c.SimulateNode, c.Capacities = true, map[string]int64{"default": harness.GiB, "huge": 1 << 50}
		c.Pools["huge"] = filepath.Join(filepath.Dir(c.Pools["default"]), "huge")
	})
	require.EqualValues(t, harness.GiB, harness.AvailableCapacity(t, d), "want: the capacity is the simulated one")

	huge, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": "huge"}})
	require.NoError(t, err)
	require.EqualValues(t, 1<<50, huge.GetAvailableCapacity(), "want: the capacity is the simulated one of the pool")

	first := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "first", CapacityRange: harness.RequiredBytes(768 * harness.MiB)})
	_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "second", CapacityRange: harness.RequiredBytes(512 * harness.MiB),
		VolumeCapabilities: []*csi.VolumeCapability{first.Capability},
	})
	harness.RequireCode(t, err, codes.ResourceExhausted)

	harness.DeleteVolume(t, d, first.VolumeID)
	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "second", CapacityRange: harness.RequiredBytes(512 * harness.MiB)})
}

// TestOneServiceAloneExpands expands an ext4 volume in use where only the controller, or only the
// node, has EXPAND_VOLUME.
func TestOneServiceAloneExpands(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const wanted = 128 * harness.MiB

	t.Run("controller", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, harness.WithoutCapabilities("node:EXPAND_VOLUME"))
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
		harness.BringUp(t, d, claim)

		answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(wanted),
		})
		require.NoError(t, err)
		require.False(t, answer.GetNodeExpansionRequired(), "want: the controller alone expands the volume")

		_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
		harness.RequireCode(t, err, codes.Unimplemented)
	})

	t.Run("node", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, harness.WithoutCapabilities("controller:EXPAND_VOLUME"))
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
		})
		harness.BringUp(t, d, claim)

		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(wanted),
		})
		harness.RequireCode(t, err, codes.Unimplemented)

		_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.Between(wanted, wanted-1),
		})
		harness.RequireCode(t, err, codes.InvalidArgument)

		answer, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.RequiredBytes(wanted),
		})
		require.NoError(t, err)
		require.EqualValues(t, wanted, answer.GetCapacityBytes(), "want: the volume has the larger size")
	})
}

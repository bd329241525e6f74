package modes_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/kubelet"
)

// errNotReady is what a kubelet must never find.
var errNotReady = errors.New("the driver was not ready when its registration came")

func registersIn(directory string) harness.Option {
	return func(c *driver.Config) { c.Registration.Directory = directory }
}

func takes(volumes int64) harness.Option {
	return func(c *driver.Config) { c.MaxVolumesPerNode = volumes }
}

// nodes are the answers to NodeGetInfo that a kubelet has got.
type nodes chan *csi.NodeGetInfoResponse

// register does what the kubelet does at once with a CSI plugin, at the path that
// it is announced.
func (n nodes) register(ctx context.Context, info *registerapi.PluginInfo) error {
	client, err := csiclient.Connect("unix://" + info.GetEndpoint())
	if err != nil {
		return err
	}
	defer client.Close()

	probed, err := client.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return err
	}

	if !probed.GetReady().GetValue() {
		return errNotReady
	}

	node, err := client.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err == nil {
		n <- node
	}

	return err
}

func TestRegistrationWithTheKubelet(t *testing.T) {
	t.Parallel()

	for _, mode := range []driver.Mode{driver.ModeAll, driver.ModeNode} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()

			found, directory := make(nodes, 16), t.TempDir()
			plugins := kubelet.Watch(t, directory, found.register)
			d := harness.Start(t, harness.InMode(mode), registersIn(directory), takes(7))

			event := plugins.Next(kubelet.Registered)
			require.Equal(t, filepath.Join(directory, d.Config.DriverName+"-reg.sock"), event.Socket)
			require.Equal(t, d.Config.DriverName, event.Info.GetName())
			require.Equal(t, strings.TrimPrefix(d.Config.Endpoint, "unix://"), event.Info.GetEndpoint())

			node := await.Receive(t, found, "a registration with the limit of volumes")
			require.Equal(t, d.Config.NodeID, node.GetNodeId())
			require.EqualValues(t, 7, node.GetMaxVolumesPerNode(), "want: the registration has the limit of volumes")

			reported, err := health.NewClient(d.Conn()).Report(t.Context())
			require.NoError(t, err)
			require.NotNil(t, reported.Registered, "want: the report has the registration")
			require.True(t, *reported.Registered, "want: the report says that the driver is registered")

			// A restart is how the kubelet learns of other limits.
			d.Restart(t, takes(9))
			plugins.Next(kubelet.Gone)
			plugins.Next(kubelet.Registered)
			require.EqualValues(t, 9, await.Receive(t, found, "the registration after the restart").GetMaxVolumesPerNode(), "want: the registration after the restart has the new limit")

			require.NoError(t, os.Remove(event.Socket))
			plugins.Next(kubelet.Gone)
			plugins.Next(kubelet.Registered)

			plugins.Stop()
			again := kubelet.Watch(t, directory, found.register)
			again.Next(kubelet.Registered)

			d.Stop()
			again.Next(kubelet.Gone)
			require.True(t, again.Quiet(), "want: no plugin comes or goes")
		})
	}
}

func TestRegistrationAfterAKill(t *testing.T) {
	t.Parallel()

	found, directory := make(nodes, 16), t.TempDir()
	d := harness.StartProcess(t, registersIn(directory))
	plugins := kubelet.Watch(t, directory, found.register)
	plugins.Next(kubelet.Registered)

	d.Kill(t)
	plugins.Await(kubelet.Gone)
	plugins.Await(kubelet.Registered)
	d.Stop()
	plugins.Await(kubelet.Gone)
}

// TestRegistrationInAnotherDirectory: what is one path here may be another on the host.
func TestRegistrationInAnotherDirectory(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	plugins := kubelet.Watch(t, directory, nil)
	d := harness.Start(t, registersIn(directory), func(c *driver.Config) {
		c.Registration.Endpoint = "unix:///var/lib/kubelet/plugins/csi.touchstone.dev/csi.sock"
	})
	require.Equal(t, "/var/lib/kubelet/plugins/csi.touchstone.dev/csi.sock", plugins.Next(kubelet.Registered).Info.GetEndpoint())
	d.Stop()
}

func TestBadRegistrationIsRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(*driver.Config)
		says   string
	}{
		"mode controller":                 {harness.InMode(driver.ModeController), "mode controller"},
		"no directory":                    {func(c *driver.Config) { c.Registration.Directory += "/absent" }, "no such file"},
		"relative":                        {registersIn("plugins_registry"), "absolute"},
		"without the kubelet's directory": {func(c *driver.Config) { c.Registration.Directory, c.Registration.Endpoint = "", "/csi.sock" }, "without"},
		"no unix endpoint":                {func(c *driver.Config) { c.Registration.Endpoint = "tcp://127.0.0.1:1" }, "unix"},
		"relative endpoint":               {func(c *driver.Config) { c.Registration.Endpoint = "csi.sock" }, "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config := harness.Start(t, registersIn(t.TempDir())).Config
			test.change(&config)

			_, err := driver.New(t.Context(), config)
			require.ErrorIs(t, err, driver.ErrConfig)
			errtext.Require(t, err, test.says)
		})
	}
}

// sidecar is a node-driver-registrar: a process of its own that registers the
// driver.
type sidecar struct {
	registerapi.UnimplementedRegistrationServer

	endpoint string
}

func (s *sidecar) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	client, err := csiclient.Connect("unix://" + s.endpoint)
	if err != nil {
		return nil, err
	}
	defer client.Close()

	reported, err := client.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})

	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: reported.GetName(), Endpoint: s.endpoint, SupportedVersions: []string{"1.0.0"},
	}, err
}

func (s *sidecar) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func TestRegistrationBesideARegistrar(t *testing.T) {
	t.Parallel()

	found, directory := make(nodes, 16), t.TempDir()
	d := harness.Start(t)
	other := &sidecar{endpoint: strings.TrimPrefix(d.Config.Endpoint, "unix://")}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, other)

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(directory, d.Config.DriverName+"-reg.sock"))
	require.NoError(t, err)

	ended := make(chan error, 1)

	go func() { ended <- server.Serve(listener) }()

	plugins := kubelet.Watch(t, directory, found.register)
	plugins.Next(kubelet.Registered)
	d.Restart(t)
	require.True(t, plugins.Quiet(), "the kubelet got no message about the restart")

	// Both at once is a mistake, and the one who came second says so.
	d.Stop()

	config := d.Config
	config.Registration.Directory, config.ReadyFile = directory, filepath.Join(d.Root, "ready")
	second, err := driver.New(t.Context(), config)
	require.NoError(t, err)

	err = second.Run(t.Context())
	require.ErrorAs(t, err, new(*socket.InUseError))
	errtext.Require(t, err, "node-driver-registrar")
	require.NoFileExists(t, config.ReadyFile)
	require.FileExists(t, listener.Addr().String())
	require.True(t, plugins.Quiet(), "want: no plugin comes or goes")

	server.Stop()
	require.NoError(t, await.Receive(t, ended, "the server to end"))
}

package driver_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

// waitLimit is no verdict on speed: it only ends a test that would hang.
const waitLimit = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a driver in mode controller (which needs no root), with a Node
// service of the test's beside it.
type running struct {
	*driver.Driver

	config driver.Config
	conn   *grpc.ClientConn
	log    *logs.Buffer
	stop   context.CancelFunc
	done   chan error
}

func configFor(t *testing.T) (driver.Config, *logs.Buffer) {
	t.Helper()

	dir := t.TempDir()
	log := &logs.Buffer{}

	config := driver.Defaults()
	config.Mode, config.DriverName, config.Version, config.NodeID = driver.ModeController, "csi.example.org", "v0", "node-a"
	config.Endpoint, config.ReadyFile = "unix://"+filepath.Join(dir, "csi.sock"), filepath.Join(dir, "ready")
	config.StateDir, config.Pools = filepath.Join(dir, "state"), map[string]string{"default": filepath.Join(dir, "pool")}
	config.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.Level(-9)}))

	return config, log
}

func start(t *testing.T, change func(*driver.Config)) *running {
	t.Helper()

	config, log := configFor(t)
	if change != nil {
		change(&config)
	}

	built, err := driver.New(t.Context(), config)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(context.Background())
	r := &running{Driver: built, config: config, log: log, stop: stop, done: make(chan error, 1)}

	go func() { r.done <- built.Run(ctx) }()

	t.Cleanup(func() { stop(); r.wait(t) })
	r.awaitFile(t, config.ReadyFile)

	path, err := driver.SocketPath(config.Endpoint)
	require.NoError(t, err)

	r.conn, err = grpc.NewClient("unix://"+path, append(awaitcall.Options(t), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.conn.Close()) })

	return r
}

// awaitFile waits for a file, or for the driver to have failed.
func (r *running) awaitFile(t *testing.T, path string) {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case err := <-r.done:
			r.done <- err
			require.NoError(t, err, "the driver has ended")
		default:
		}

		_, err := os.Stat(path)

		return err == nil
	}, waitLimit, time.Millisecond, "want: the driver makes the file")
}

// wait returns Run's result, as often as it is asked for.
func (r *running) wait(t *testing.T) error {
	t.Helper()

	select {
	case err := <-r.done:
		r.done <- err

		return err
	case <-time.After(waitLimit):
		require.Fail(t, "the driver does not end")

		return nil
	}
}

func (r *running) socket() string { return strings.TrimPrefix(r.config.Endpoint, "unix://") }

// fakeNode is a Node service that does what the test says.
type fakeNode struct {
	csi.UnimplementedNodeServer

	stage func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error)
}

func (n *fakeNode) NodeStageVolume(
	ctx context.Context, request *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	return n.stage(ctx, request)
}

func withStage(
	stage func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error),
) func(*driver.Config) {
	return func(config *driver.Config) {
		config.Also = func(to grpc.ServiceRegistrar) { csi.RegisterNodeServer(to, &fakeNode{stage: stage}) }
	}
}

func TestDriverServesItsModeAndNothingElse(t *testing.T) {
	t.Parallel()

	r := start(t, nil)

	info, err := csi.NewIdentityClient(r.conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "csi.example.org", info.GetName())
	require.Equal(t, "controller", info.GetManifest()["mode"])

	probe, err := csi.NewIdentityClient(r.conn).Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.True(t, probe.GetReady().GetValue(), "want: Probe says that the driver is ready")

	_, err = csi.NewControllerClient(r.conn).ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	require.NoError(t, err)

	_, err = csi.NewNodeClient(r.conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	rpccode.Require(t, err, codes.Unimplemented)
}

func TestEachModeRegistersItsServices(t *testing.T) {
	t.Parallel()

	const identity, controller, group, node = "csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController", "csi.v1.Node"
	const metadata = "csi.v1.SnapshotMetadata"

	for mode, want := range map[driver.Mode][]string{
		driver.ModeAll:        {controller, group, identity, node, metadata, kata.ServiceName, health.ServiceName, names.ServiceName, persistent.ServiceName, progress.ServiceName},
		driver.ModeController: {controller, group, identity, metadata, health.ServiceName, names.ServiceName, progress.ServiceName},
		driver.ModeNode:       {identity, node, kata.ServiceName, health.ServiceName, persistent.ServiceName},
	} {
		config, _ := configFor(t)
		config.Mode, config.KubeletDir = mode, t.TempDir()

		built, err := driver.New(t.Context(), config)
		require.NoError(t, err)
		require.Equal(t, want, built.Services(), mode)

		// Run gives back what New has opened.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, built.Run(ctx))
	}
}

func TestDriverNamesEveryProblemOfItsConfiguration(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	config.Mode, config.DriverName, config.NodeID, config.Overcommit = "both", "-x-", strings.Repeat("n", 257), 0
	config.StateDir, config.Pools = "relative", nil

	_, err := driver.New(t.Context(), config)
	require.ErrorIs(t, err, driver.ErrConfig)

	for _, problem := range []string{`mode "both"`, `driver-name "-x-"`, "node-id", "overcommit", "state-dir", "pool is empty"} {
		errtext.Require(t, err, problem)
	}
}

func TestPanicIsInternalAndTheProcessGoesOn(t *testing.T) {
	t.Parallel()

	r := start(t, withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
		panic("a defect with a detail")
	}))

	for range 2 {
		_, err := csi.NewNodeClient(r.conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
		rpccode.Require(t, err, codes.Internal)
		require.NotContains(t, err.Error(), "a detail", "what panicked is for the log")
	}

	require.Contains(t, r.log.String(), "a defect with a detail")
	require.Contains(t, r.log.String(), "driver_test.go", "the stack names the line")
}

// TestPanicOfAFaultRuleIsInternal: rules are outside of the handlers.
func TestPanicOfAFaultRuleIsInternal(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) {
		config.EnableFaults, config.Crash = true, func() { panic("a defect with a detail") }
	})
	_, err := faults.Client{Connection: r.conn}.Add(t.Context(), "{match: {method: DeleteVolume}, act: {crash: true}}")
	require.NoError(t, err)

	for range 2 {
		_, err := csi.NewControllerClient(r.conn).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"})
		rpccode.Require(t, err, codes.Internal)
		require.NotContains(t, err.Error(), "a detail", "what panicked is for the log")
	}

	require.Contains(t, r.log.String(), "a defect with a detail")
}

func TestStartNamesTheOwnerOfALockedStore(t *testing.T) {
	t.Parallel()

	first := start(t, nil)
	config, _ := configFor(t)
	config.StateDir = first.config.StateDir

	second, err := driver.New(t.Context(), config)
	require.NoError(t, err)

	err = second.Run(t.Context())
	errtext.Require(t, err, "csi.example.org at "+first.config.Endpoint)
	require.NoFileExists(t, strings.TrimPrefix(config.Endpoint, "unix://"))
}

// TestMissingPoolLeavesTheDriverReady: the calls for it fail, the others don't.
func TestMissingPoolLeavesTheDriverReady(t *testing.T) {
	t.Parallel()

	address := served.Address()
	r := start(t, func(config *driver.Config) {
		config.HTTPEndpoint, config.Health.RelistPeriod = address, 10*time.Millisecond
	})
	require.NoError(t, os.RemoveAll(r.config.Pools["default"]))

	var err error

	require.Eventually(t, func() bool {
		_, err = csi.NewControllerClient(r.conn).GetCapacity(t.Context(), &csi.GetCapacityRequest{})

		return status.Code(err) == codes.Unavailable
	}, waitLimit, 10*time.Millisecond, "GetCapacity does not fail with UNAVAILABLE")
	errtext.Require(t, err, `pool "default"`)
	errtext.Require(t, err, "no such")

	probe, err := csi.NewIdentityClient(r.conn).Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.True(t, probe.GetReady().GetValue(), "want: Probe says that the driver is ready")

	code, body := get(t, "http://"+address+"/readyz")
	require.Equal(t, http.StatusOK, code, body)
}

func TestTakenHTTPAddressFailsTheStart(t *testing.T) {
	t.Parallel()

	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	defer taken.Close()

	config, _ := configFor(t)
	config.HTTPEndpoint = taken.Addr().String()

	built, err := driver.New(t.Context(), config)
	require.NoError(t, err)
	errtext.Require(t, built.Run(t.Context()), "http-endpoint "+taken.Addr().String())
	require.NoFileExists(t, strings.TrimPrefix(config.Endpoint, "unix://"))
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)

	client := &http.Client{Timeout: waitLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)

	defer response.Body.Close()

	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)

	return response.StatusCode, string(body)
}

package registration_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/kubelet"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/served"
)

// waitLimit is no verdict on speed: it only ends a test that would hang.
const waitLimit = time.Minute

func TestMain(m *testing.M) {
	namespace.Enter()
	goleak.VerifyTestMain(m)
}

func configFor(t *testing.T) (registration.Config, *logs.Buffer) {
	t.Helper()

	log := &logs.Buffer{}

	return registration.Config{
		Directory: t.TempDir(), DriverName: "csi.example.org", Endpoint: "/var/lib/kubelet/plugins/csi.example.org/csi.sock",
		RetryPause: time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)),
	}, log
}

func socketOf(config registration.Config) string {
	return filepath.Join(config.Directory, config.DriverName+"-reg.sock")
}

// running is a registrar that is kept until stop.
type running struct {
	*registration.Registrar

	stop func()
}

func start(t *testing.T, config registration.Config) *running {
	t.Helper()

	registrar, err := registration.Listen(t.Context(), config)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())

	var ended sync.WaitGroup

	ended.Go(func() { registrar.Run(ctx) })

	r := &running{Registrar: registrar, stop: func() {
		cancel()
		await.Return(t, ended.Wait, "the registrar's Run to return after its context ended")
	}}
	t.Cleanup(r.stop)

	return r
}

func (r *running) awaitRegistered(t *testing.T) {
	t.Helper()
	require.Eventually(t, r.Registered, waitLimit, time.Millisecond, "want: the kubelet registers the driver")
}

func eventually(t *testing.T, log *logs.Buffer, words ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, word := range words {
			if !strings.Contains(log.String(), word) {
				return false
			}
		}

		return true
	}, waitLimit, time.Millisecond, "%v", words)
}

func TestKubeletRegistersTheDriver(t *testing.T) {
	t.Parallel()

	config, log := configFor(t)
	succeeded := make(chan struct{}, 1)
	config.Succeeded = succeeded
	plugins := kubelet.Watch(t, config.Directory, nil)
	r := start(t, config)

	event := plugins.Next(kubelet.Registered)
	await.Receive(t, succeeded, "the signal of the registration")
	require.Equal(t, socketOf(config), event.Socket)
	require.Equal(t, "CSIPlugin", event.Info.GetType())
	require.Equal(t, config.DriverName, event.Info.GetName())
	require.Equal(t, config.Endpoint, event.Info.GetEndpoint())
	require.Equal(t, []string{"1.0.0"}, event.Info.GetSupportedVersions())
	require.True(t, r.Registered(), "want: the registrar is registered")
	require.Contains(t, log.String(), "registered with the kubelet")

	info, err := os.Lstat(socketOf(config))
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode(), "want: the socket is for its owner only")

	// A restarted kubelet finds the socket by itself.
	plugins.Stop()
	again := kubelet.Watch(t, config.Directory, nil)
	again.Next(kubelet.Registered)

	r.stop()
	again.Next(kubelet.Gone)
	require.False(t, r.Registered(), "want: the registrar is not registered")
	require.True(t, again.Quiet(), "want: no plugin comes or goes")

	left, err := os.ReadDir(config.Directory)
	require.NoError(t, err)
	require.Empty(t, left, "want: the registrar removes its socket")
}

func TestRefusalIsLoggedAndRetried(t *testing.T) {
	t.Parallel()

	const refusals = 3

	config, log := configFor(t)

	var attempts atomic.Int32

	plugins := kubelet.Watch(t, config.Directory, func(context.Context, *registerapi.PluginInfo) error {
		if attempts.Add(1) <= refusals {
			return errors.New("no node service at that path")
		}

		return nil
	})
	r := start(t, config)

	for range refusals {
		plugins.Next(kubelet.Refused)
		plugins.Next(kubelet.Gone)
	}

	plugins.Next(kubelet.Registered)
	require.True(t, r.Registered(), "want: the registrar is registered")
	require.Equal(t, refusals, strings.Count(log.String(), "level=ERROR"), "want: each refusal is logged once")
	require.Equal(t, refusals, strings.Count(log.String(), `error="no node service at that path"`), "want: each refusal is logged with its reason")
	require.Contains(t, log.String(), config.Endpoint)
}

// TestUnremovableSocketIsRetried: a refusal arrives while the kubelet's directory takes no changes,
// which ends.
func TestUnremovableSocketIsRetried(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	config, log := configFor(t)
	remount := func(flags uintptr) error { return unix.Mount("", config.Directory, "", unix.MS_REMOUNT|flags, "") }

	require.NoError(t, unix.Mount("test", config.Directory, "tmpfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(config.Directory, unix.MNT_DETACH)) })

	var attempts atomic.Int32

	plugins := kubelet.Watch(t, config.Directory, func(context.Context, *registerapi.PluginInfo) error {
		if attempts.Add(1) == 1 {
			return errors.Join(errors.New("not now"), remount(unix.MS_RDONLY))
		}

		return nil
	})
	r := start(t, config)

	plugins.Next(kubelet.Refused)
	eventually(t, log, "the kubelet cannot see the driver", unix.EROFS.Error())
	require.NoError(t, remount(0))
	plugins.Await(kubelet.Registered)
	r.awaitRegistered(t)
	r.stop()
	require.NoFileExists(t, socketOf(config))
}

// TestKubeletsRetryNeedsNoNewSocket, as current kubelets do: no new socket is needed then.
func TestKubeletsRetryNeedsNoNewSocket(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	config.RetryPause = time.Hour
	r := start(t, config)
	before, err := os.Lstat(socketOf(config))
	require.NoError(t, err)

	conn, err := grpc.NewClient("unix://"+socketOf(config),
		append(awaitcall.Options(t), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer conn.Close()

	client := registerapi.NewRegistrationClient(conn)

	for _, registered := range []bool{false, true, false, true} {
		_, err = client.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: registered})
		require.NoError(t, err)
		require.Equal(t, registered, r.Registered(), "want: the registrar follows the kubelet's status")
	}

	after, err := os.Lstat(socketOf(config))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "want: the file is the one that was there before")
}

func TestRemovedSocketIsMadeAgain(t *testing.T) {
	t.Parallel()

	for name, strike := range map[string]func(t *testing.T, path string){
		"removed": func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.Remove(path))
		},
		"moved away": func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.Rename(path, filepath.Join(t.TempDir(), "aside")))
		},
		"replaced by a stale one": func(t *testing.T, path string) {
			t.Helper()
			served.Ended(t, path+".new")
			require.NoError(t, os.Rename(path+".new", path))
		},
		"gone with its directory": func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.Rename(filepath.Dir(path), filepath.Join(t.TempDir(), "aside")))
			require.NoError(t, os.Mkdir(filepath.Dir(path), 0o750))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config, _ := configFor(t)
			r := start(t, config)

			before := kubelet.Watch(t, config.Directory, nil)
			before.Next(kubelet.Registered)
			before.Stop()
			strike(t, socketOf(config))
			require.Eventually(t, func() bool { return !r.Registered() }, waitLimit, time.Millisecond,
				"Registered stays true: the socket is a new one, and no kubelet has registered it")

			plugins := kubelet.Watch(t, config.Directory, nil)
			require.Equal(t, socketOf(config), plugins.Await(kubelet.Registered).Socket)
			r.awaitRegistered(t)
			r.stop()
			require.NoFileExists(t, socketOf(config))
		})
	}
}

func TestOldSocketIsReplaced(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	served.Ended(t, socketOf(config))
	start(t, config)
	kubelet.Watch(t, config.Directory, nil).Next(kubelet.Registered)
}

func TestServedSocketIsRefused(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	first := start(t, config)

	_, err := registration.Listen(t.Context(), config)

	var inUse *socket.InUseError

	require.ErrorAs(t, err, &inUse)
	require.EqualValues(t, os.Getpid(), inUse.PID, "want: the error has the process that serves the socket")
	errtext.Require(t, err, "the registration of csi.example.org")
	errtext.Require(t, err, "--kubelet-registration-dir")

	kubelet.Watch(t, config.Directory, nil).Next(kubelet.Registered)
	require.True(t, first.Registered(), "want: the registrar is registered")
}

// TestAnotherRegistrarsSocketIsKept: another registrar takes the path, as a node-driver-registrar
// does at its start without a question.
func TestAnotherRegistrarsSocketIsKept(t *testing.T) {
	t.Parallel()

	config, log := configFor(t)
	r := start(t, config)

	// In one step, so that there is no moment in which ours comes back.
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketOf(config) + ".new"})
	require.NoError(t, err)
	other.SetUnlinkOnClose(false)

	server, ended := grpc.NewServer(), make(chan error, 1)
	go func() { ended <- server.Serve(other) }()

	t.Cleanup(server.Stop)
	require.NoError(t, os.Rename(socketOf(config)+".new", socketOf(config)))

	theirs, err := os.Lstat(socketOf(config))
	require.NoError(t, err)
	eventually(t, log, "level=ERROR", "already served by another process", "leave out --kubelet-registration-dir")

	kept, err := os.Lstat(socketOf(config))
	require.NoError(t, err)
	require.True(t, os.SameFile(theirs, kept), "want: the file is the one that was there before")
	require.False(t, r.Registered(), "want: the registrar is not registered")

	server.Stop()
	require.NoError(t, await.Receive(t, ended, "the other registrar to end"))

	plugins := kubelet.Watch(t, config.Directory, nil)

	// A retry of the registrar may have removed it already, as nothing listens there any more.
	if err := os.Remove(socketOf(config)); !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}

	require.Equal(t, config.DriverName, plugins.Await(kubelet.Registered).Info.GetName())
	r.awaitRegistered(t)
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(*registration.Config)
		says   string
	}{
		"relative directory": {func(c *registration.Config) { c.Directory = "plugins" }, "absolute"},
		"no directory":       {func(c *registration.Config) { c.Directory += "/absent" }, "no such file"},
		"a file":             {func(c *registration.Config) { c.Directory = "/proc/self/stat" }, "is no directory"},
		"relative endpoint":  {func(c *registration.Config) { c.Endpoint = "csi.sock" }, "absolute"},
		"endpoint too long":  {func(c *registration.Config) { c.Endpoint = "/" + strings.Repeat("x", 107) }, "108 bytes"},
		"path too long":      {func(c *registration.Config) { c.DriverName = strings.Repeat("x", 107) }, "socket path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config, _ := configFor(t)
			test.change(&config)

			_, err := registration.Listen(t.Context(), config)
			require.ErrorIs(t, err, registration.ErrConfig)
			errtext.Require(t, err, test.says)
		})
	}
}

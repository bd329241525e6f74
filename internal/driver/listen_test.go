package driver_test

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/served"
)

func TestOnlyUnixEndpointsHaveASocketPath(t *testing.T) {
	t.Parallel()

	for endpoint, want := range map[string]string{
		"unix:///run/csi.sock": "/run/csi.sock",
		"unix:/run/csi.sock":   "/run/csi.sock",
		"unix:csi.sock":        "csi.sock",
		"/run/csi.sock":        "/run/csi.sock",
	} {
		path, err := driver.SocketPath(endpoint)
		require.NoError(t, err, endpoint)
		require.Equal(t, want, path)
	}

	for _, endpoint := range []string{"", "unix://", "tcp://127.0.0.1:1", "unix:///run/", "/" + strings.Repeat("x", 107)} {
		_, err := driver.SocketPath(endpoint)
		require.ErrorIs(t, err, driver.ErrEndpoint, endpoint)
	}
}

func TestSocketIsPrivateInANewDirectory(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) {
		config.Endpoint = "unix://" + filepath.Join(filepath.Dir(config.StateDir), "a", "b", "csi.sock")
	})

	info, err := os.Lstat(r.socket())
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode(), "want: the socket is for its owner only")
	conformance.Shows(t, "Probe", "endpoint unix://PATH", "a UNIX socket at PATH")

	info, err = os.Stat(filepath.Dir(r.socket()))
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o007, "others have no business there")

	r.stop()
	require.NoError(t, r.wait(t))
	require.NoFileExists(t, r.socket())
}

func TestUnservedSocketIsReplaced(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) {
		served.Ended(t, strings.TrimPrefix(config.Endpoint, "unix://"))
	})
	require.FileExists(t, r.config.ReadyFile)
}

// leaveTo makes TestSocketLeftToAChild the process that does so.
const leaveTo = "TOUCHSTONE_TEST_LEAVE_SOCKET"

func TestSocketLeftToAChild(t *testing.T) {
	t.Parallel()

	path := os.Getenv(leaveTo)
	if path == "" {
		t.Skip("a part of TestSocketOfAnEndedProcessIsReplaced")
	}

	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	listener.SetUnlinkOnClose(false)

	file, err := listener.File()
	require.NoError(t, err)

	sleeper := exec.Command("sleep", "600") // it is to outlive this process
	sleeper.ExtraFiles = []*os.File{file}
	require.NoError(t, sleeper.Start())
	require.NoError(t, os.WriteFile(path+".pid", []byte(strconv.Itoa(sleeper.Process.Pid)), 0o600))
}

func TestSocketOfAnEndedProcessIsReplaced(t *testing.T) {
	t.Parallel()

	r := start(t, func(config *driver.Config) {
		path := strings.TrimPrefix(config.Endpoint, "unix://")
		leaver := child.Command(t, "/proc/self/exe", "-test.run=^TestSocketLeftToAChild$")
		leaver.Env = append(os.Environ(), leaveTo+"="+path)
		require.NoError(t, leaver.Run())

		text, err := os.ReadFile(path + ".pid")
		require.NoError(t, err)

		pid, err := strconv.Atoi(string(text))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Kill(pid, unix.SIGKILL)) })

		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
		require.NoError(t, err, "the child has it open")
		require.NoError(t, conn.Close())
	})
	require.FileExists(t, r.config.ReadyFile)
}

func TestServedSocketIsRefused(t *testing.T) {
	t.Parallel()

	first := start(t, nil)
	config, _ := configFor(t)
	config.Endpoint = first.config.Endpoint

	second, err := driver.New(t.Context(), config)
	require.NoError(t, err)

	err = second.Run(t.Context())

	var inUse *socket.InUseError

	require.ErrorAs(t, err, &inUse)
	require.EqualValues(t, os.Getpid(), inUse.PID, "want: the error has the process that serves the socket")
	require.Equal(t, "csi.example.org v0", inUse.Driver)
	require.FileExists(t, first.socket(), "the first's socket is left alone")
	require.NoFileExists(t, config.ReadyFile)
}

func TestOtherFileAtTheSocketPathIsKept(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	path := strings.TrimPrefix(config.Endpoint, "unix://")
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))

	built, err := driver.New(t.Context(), config)
	require.NoError(t, err)
	require.ErrorIs(t, built.Run(t.Context()), driver.ErrEndpoint)

	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", string(kept))
}

func TestAnotherDriversSocketIsNotRemoved(t *testing.T) {
	t.Parallel()

	r := start(t, nil)
	require.NoError(t, os.Remove(r.socket()))

	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket()})
	require.NoError(t, err)

	defer other.Close()

	r.stop()
	require.NoError(t, r.wait(t))

	_, err = os.Lstat(r.socket())
	require.NoError(t, err)
}

func TestOneOfTwoConcurrentStartsServes(t *testing.T) {
	t.Parallel()

	// An old socket makes both want to remove it.
	old, _ := configFor(t)
	served.Ended(t, strings.TrimPrefix(old.Endpoint, "unix://"))

	const starts = 8

	var (
		wait    sync.WaitGroup
		results = make(chan error, starts)
	)

	ctx, stop := contextOf(t)

	for range starts {
		config, _ := configFor(t)
		config.Endpoint = old.Endpoint

		built, err := driver.New(t.Context(), config)
		require.NoError(t, err)
		wait.Go(func() { results <- built.Run(ctx) })
	}

	for range starts - 1 {
		require.ErrorAs(t, await.Receive(t, results, "Run of a second driver to return"), new(*socket.InUseError))
	}

	stop()
	await.Return(t, wait.Wait, "all drivers to end")
	require.NoError(t, await.Receive(t, results, "Run of the only driver to return"))
}

// TestReadyFileReplacesNoOtherFile: a directory or link at its path is not the driver's.
func TestReadyFileReplacesNoOtherFile(t *testing.T) {
	t.Parallel()

	for name, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/null", path) },
	} {
		config, _ := configFor(t)
		require.NoError(t, put(config.ReadyFile))

		built, err := driver.New(t.Context(), config)
		require.NoError(t, err)
		require.ErrorIs(t, built.Run(t.Context()), driver.ErrConfig, name)

		_, err = os.Lstat(config.ReadyFile)
		require.NoError(t, err, name)
	}
}

package sanity_test

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
)

func unprivilegedConfig(dir string) driver.Config {
	config := driver.Defaults()
	config.Controller.CoalesceWindow = 0
	config.Mode, config.Version, config.NodeID = driver.ModeController, "test", harness.NodeID
	config.Endpoint, config.StateDir = "unix://"+filepath.Join(dir, "csi.sock"), filepath.Join(dir, "state")
	config.Pools = map[string]string{"default": filepath.Join(dir, "pool")}
	limited(&config)

	return config
}

// startUnprivileged starts a controller as a user who may do nothing, in a process
// of its own that lasts as long as the test.
func startUnprivileged(t *testing.T) driver.Config {
	t.Helper()

	// The test's context ends before the process is terminated.
	command, dir := child.Unprivileged(t, rowLimit, "TestControllerUnprivileged")
	command.Stdout, command.Stderr = t.Output(), t.Output()
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, child.Wait(t, command))
	})

	config := unprivilegedConfig(dir)

	client, err := csiclient.Connect(config.Endpoint, awaitcall.Options(t)...)
	require.NoError(t, err)

	ready, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	require.NoError(t, client.WaitReady(ready))
	require.NoError(t, client.Close())

	return config
}

// TestControllerUnprivileged is the process of startUnprivileged.
func TestControllerUnprivileged(t *testing.T) {
	dir := child.UnprivilegedIn()
	if dir == "" {
		t.Skip("a part of TestSanity")
	}

	require.Equal(t, child.UnprivilegedID, os.Geteuid(), "want: the process has no privilege")
	require.ErrorIs(t, unix.Access("/dev/loop-control", unix.R_OK|unix.W_OK), unix.EACCES)

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)

	ctx, stop := driver.UntilSignal(t.Context(), signals, driver.DefaultDrainTimeout, os.Exit)
	defer stop()

	config := unprivilegedConfig(dir)
	config.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	served, err := driver.New(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, served.Run(ctx))
}

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

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
)

const (
	// unprivilegedVariable marks the process that is the controller without
	// privilege, and says where it may write.
	unprivilegedVariable = "TOUCHSTONE_SANITY_UNPRIVILEGED_IN"
	unprivilegedID       = 65534
)

func unprivilegedConfig(dir string) driver.Config {
	config := driver.Config{
		Mode: driver.ModeController, Endpoint: "unix://" + filepath.Join(dir, "csi.sock"), DriverName: "csi.touchstone.dev",
		Version: "test", NodeID: harness.NodeID, StateDir: filepath.Join(dir, "state"), Overcommit: 1,
		Pools: map[string]string{"default": filepath.Join(dir, "pool")},
	}
	limited(&config)

	return config
}

// startUnprivileged starts a controller as a user who may do nothing, in a process
// of its own that lasts as long as the test.
func startUnprivileged(t *testing.T) driver.Config {
	t.Helper()

	// Not t.TempDir, whose parents are closed to others.
	dir, err := os.MkdirTemp("/tmp", "touchstone-unprivileged-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chown(dir, unprivilegedID, unprivilegedID))

	// The binary's own place is closed to others, too.
	binary := filepath.Join(dir, "sanity.test")
	own, err := os.Executable()
	require.NoError(t, err)
	// By a process of its own: what another test is forking just now would have
	// the copy open for writing, and it could not be started.
	require.NoError(t, child.Command(t, "cp", own, binary).Run())
	require.NoError(t, os.Chmod(binary, 0o755))

	// The test's context ends before the process is terminated.
	command := child.CommandWithin(t, rowLimit, binary, "-test.run=^TestControllerUnprivileged$", "-test.v")
	command.Dir = dir
	command.Env = append(os.Environ(), unprivilegedVariable+"="+dir, "HOME="+dir, "TMPDIR="+dir)
	command.Stdout, command.Stderr = t.Output(), t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivilegedID, Gid: unprivilegedID}}
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, child.Wait(t, command))
	})

	config := unprivilegedConfig(dir)

	client, err := csiclient.Connect(config.Endpoint, await.Calls(t)...)
	require.NoError(t, err)

	ready, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	require.NoError(t, client.WaitReady(ready))
	require.NoError(t, client.Close())

	return config
}

// TestControllerUnprivileged is the process of startUnprivileged.
func TestControllerUnprivileged(t *testing.T) {
	dir := os.Getenv(unprivilegedVariable)
	if dir == "" {
		t.Skip("TestSanity starts it")
	}

	require.Equal(t, unprivilegedID, os.Geteuid())
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

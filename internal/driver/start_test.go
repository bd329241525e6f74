package driver_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/served"
)

// TestFailedStartLeavesNothing has one thing that a start needs fail each time: the driver ends,
// says what failed, and leaves neither its socket, its ready-file, its addresses nor a lock.
func TestFailedStartLeavesNothing(t *testing.T) {
	t.Parallel()

	directory, damaged := t.TempDir(), t.TempDir()
	file, missing := filepath.Join(directory, "file"), filepath.Join(directory, "none", "file")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(damaged, "state.jsonl"), []byte("{"), 0o600))

	embedded := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(embedded, layout.EmbeddedImage), nil, 0o600))

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })

	taken := listener.Addr().String()

	for name, test := range map[string]struct {
		fail func(config *driver.Config)
		says string
	}{
		"state directory is a file":     {func(c *driver.Config) { c.StateDir = file }, file},
		"state is damaged":              {func(c *driver.Config) { c.StateDir = damaged }, "state.jsonl"},
		"call log is a directory":       {func(c *driver.Config) { c.CallLog = directory }, "is a directory"},
		"call log has no directory":     {func(c *driver.Config) { c.CallLog = missing }, missing},
		"fault rules are missing":       {func(c *driver.Config) { c.Faults = missing }, missing},
		"fault rules are no YAML":       {func(c *driver.Config) { c.Faults = file }, "faults"},
		"kubeconfig is missing":         {func(c *driver.Config) { c.Claims.Kubeconfig = missing }, missing},
		"directory of socket is a file": {func(c *driver.Config) { c.Endpoint = filepath.Join(file, "csi.sock") }, file},
		"socket is a directory":         {func(c *driver.Config) { c.Endpoint = directory }, "--endpoint"},
		"HTTP address is taken":         {func(c *driver.Config) { c.HTTPEndpoint = taken }, "http-endpoint"},
		"TCP address is taken":          {func(c *driver.Config) { c.TCPEndpoint = taken }, "tcp-endpoint"},
		"pool is a file":                {func(c *driver.Config) { c.Pools = map[string]string{"default": file} }, file},
		"embedded pool is shared": {func(c *driver.Config) {
			c.Shared, c.Pools = true, map[string]string{"default": embedded}
		}, "leave shared out"},
		"ready-file has no directory": {func(c *driver.Config) { c.ReadyFile = missing }, "ready-file"},
		"ready-file is a directory":   {func(c *driver.Config) { c.ReadyFile = directory }, "ready-file"},
		"kubelet's directory is a file": {func(c *driver.Config) {
			c.Mode, c.SimulateNode, c.KubeletDir, c.Registration.Directory = driver.ModeAll, true, directory, file
		}, file},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			good, _ := configFor(t)
			good.TCPEndpoint, good.HTTPEndpoint = served.Address(), served.Address()
			bad := good
			test.fail(&bad)
			errtext.Require(t, runOnce(t, bad), test.says)

			require.NoFileExists(t, strings.TrimPrefix(good.Endpoint, "unix://"))
			require.NoFileExists(t, good.ReadyFile)

			for _, address := range []string{good.TCPEndpoint, good.HTTPEndpoint} {
				listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
				require.NoError(t, err, "want: the driver has given its addresses back")
				require.NoError(t, listener.Close())
			}

			start(t, func(c *driver.Config) { log := c.Log; *c = good; c.Log = log })
		})
	}
}

// runOnce runs a driver until it fails.
func runOnce(t *testing.T, config driver.Config) error {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	built, err := driver.New(ctx, config)
	if err != nil {
		return err
	}

	return built.Run(ctx)
}

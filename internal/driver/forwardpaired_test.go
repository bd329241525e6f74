package driver_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/served"
)

// TestForwardPairedStartsAndEnds as TestForwardStartsAndEnds does, where the CSI server connects to the proxy.
func TestForwardPairedStartsAndEnds(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(c *driver.Config, at *string)
		fails  string
	}{
		"at a socket":             {func(*driver.Config, *string) {}, ""},
		"at a port":               {func(_ *driver.Config, at *string) { *at = "tcp://" + served.Address() }, ""},
		"without a ready-file":    {func(c *driver.Config, _ *string) { c.ReadyFile = "" }, ""},
		"at no address":           {func(_ *driver.Config, at *string) { *at = "http://a b" }, socket.ErrAddress.Error()},
		"at its own endpoint":     {func(c *driver.Config, at *string) { *at = c.Endpoint }, "own endpoint"},
		"at a directory":          {func(_ *driver.Config, at *string) { require.NoError(t, os.Mkdir((*at)[len("unix://"):], 0o700)) }, "--proxy-listen"},
		"endpoint is a directory": {func(c *driver.Config, _ *string) { require.NoError(t, os.Mkdir(pathOf(c), 0o700)) }, "--endpoint"},
		"ready-file in no directory": {
			func(c *driver.Config, _ *string) {
				c.ReadyFile = filepath.Join(filepath.Dir(pathOf(c)), "none", "ready")
			}, "ready-file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := t.TempDir()
			config := driver.Defaults()
			config.Endpoint, config.ReadyFile = "unix://"+filepath.Join(directory, "csi.sock"), filepath.Join(directory, "ready")
			at := "unix://" + filepath.Join(directory, "other.sock")
			test.change(&config, &at)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			ended := make(chan error, 1)

			go func() { ended <- driver.ForwardPaired(ctx, config, at) }()

			if test.fails != "" {
				errtext.Require(t, await.Receive(t, ended, "the end of the start"), test.fails)
			} else {
				ready := config.ReadyFile
				if ready == "" {
					ready = pathOf(&config)
				}

				require.Eventually(t, func() bool { _, err := os.Stat(ready); return err == nil }, waitLimit, time.Millisecond, "want: it is ready")
				cancel()
				require.NoError(t, await.Receive(t, ended, "the end of the proxy"))
			}

			require.NoFileExists(t, pathOf(&config), "want: the socket is removed")
			require.NoFileExists(t, filepath.Join(directory, "other.sock"), "want: the socket for the server is removed")
			require.NoFileExists(t, filepath.Join(directory, "ready"), "want: the ready-file is removed")
		})
	}
}

// TestEachProfileIsServed at its path.
func TestEachProfileIsServed(t *testing.T) {
	t.Parallel()

	address := served.Address()
	start(t, func(config *driver.Config) { config.HTTPEndpoint, config.Profiling = address, true })

	for _, path := range []string{"", "heap", "symbol", "trace?seconds=0.01", "profile?seconds=1"} {
		code, text := get(t, "http://"+address+"/debug/pprof/"+path)
		require.Equal(t, http.StatusOK, code, "want: the profile %q is served", path)
		require.NotEmpty(t, text, "want: the profile %q has content", path)
	}
}

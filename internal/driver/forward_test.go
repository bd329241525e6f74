package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestForwardStartsAndEnds: a forwarding driver is ready once it listens, and leaves neither its socket nor its
// ready-file; one that cannot start says why, and leaves nothing either.
func TestForwardStartsAndEnds(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(c *driver.Config, to *string)
		fails  string
	}{
		"to a socket":             {func(*driver.Config, *string) {}, ""},
		"to a port":               {func(_ *driver.Config, to *string) { *to = "tcp://127.0.0.1:1" }, ""},
		"without a ready-file":    {func(c *driver.Config, _ *string) { c.ReadyFile = "" }, ""},
		"to no address":           {func(_ *driver.Config, to *string) { *to = "http://a b" }, socket.ErrAddress.Error()},
		"to itself":               {func(c *driver.Config, to *string) { *to = c.Endpoint }, "own endpoint"},
		"endpoint is a directory": {func(c *driver.Config, _ *string) { require.NoError(t, os.Mkdir(pathOf(c), 0o700)) }, "--endpoint"},
		"ready-file in no directory": {
			func(c *driver.Config, _ *string) {
				c.ReadyFile = filepath.Join(filepath.Dir(pathOf(c)), "none", "ready")
			},
			"ready-file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := t.TempDir()
			config := driver.Defaults()
			config.Endpoint, config.ReadyFile = "unix://"+filepath.Join(directory, "csi.sock"), filepath.Join(directory, "ready")
			to := "unix://" + filepath.Join(directory, "other.sock")
			test.change(&config, &to)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			ended := make(chan error, 1)

			go func() { ended <- driver.Forward(ctx, config, to) }()

			if test.fails != "" {
				errtext.Require(t, await.Receive(t, ended, "the end of the start"), test.fails)
			} else {
				ready := config.ReadyFile
				if ready == "" {
					ready = pathOf(&config)
				}

				require.Eventually(t, func() bool { _, err := os.Stat(ready); return err == nil }, waitLimit, time.Millisecond, "want: it is ready")
				require.FileExists(t, pathOf(&config), "want: the socket is there once the driver is ready")
				cancel()
				require.NoError(t, await.Receive(t, ended, "the end of the driver"))
			}

			require.NoFileExists(t, pathOf(&config), "want: the socket is removed")
			require.NoFileExists(t, filepath.Join(directory, "ready"), "want: the ready-file is removed")
		})
	}
}

func pathOf(c *driver.Config) string { return c.Endpoint[len("unix://"):] }

package modes_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestASecondControllerIsRefused: to it, the volumes of the first are things that
// are unknown, and those without data it would remove.
func TestASecondControllerIsRefused(t *testing.T) {
	namespace.NeedRoot(t)

	for name, options := range map[string][]harness.Option{
		"ordinary pool": nil, "embedded pool": {harness.EmbeddedPool(harness.GiB)},
	} {
		t.Run(name, func(t *testing.T) {
			first := harness.Start(t, options...)
			volumes := map[string]*csi.CreateVolumeRequest{
				"image": {Name: "image"}, "directory": {Name: "directory", Parameters: harness.DirectoryBacked()},
			}
			never := map[string]string{}

			for name, request := range volumes {
				never[name] = harness.NewVolume(t, first, request).VolumeID
			}

			for _, mode := range []driver.Mode{driver.ModeController, driver.ModeAll} {
				err := runSecond(t, first, mode)
				require.ErrorIs(t, err, pool.ErrControllerRunning)
				errtext.Require(t, err, "process "+strconv.Itoa(os.Getpid()))
				errtext.Require(t, err, first.Config.Endpoint)
				errtext.Require(t, err, first.Config.StateDir)
			}

			require.FileExists(t, filepath.Join(first.Pool(), "images", never["image"]+".img"))
			require.DirExists(t, filepath.Join(first.Pool(), "directories", never["directory"]))

			// A node is no controller.
			node := harness.Start(t, append(options, harness.InMode(driver.ModeNode),
				func(c *driver.Config) { c.Pools = first.Config.Pools })...)

			first.Restart(t)
			node.Stop()

			for name, id := range never {
				claim := first.Claim(t, id)
				got, err := first.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
				require.NoError(t, err, name)

				claim.VolumeContext = got.GetVolume().GetVolumeContext()
				claim.Capability = volumes[name].GetVolumeCapabilities()[0]
				harness.BringUp(t, first, claim)
				harness.WriteBlock(t, claim)
				harness.RequireBlock(t, claim)
				harness.TakeDown(t, first, claim)
				harness.DeleteVolume(t, first, id)
			}
		})
	}
}

// runSecond runs a driver with its own state, socket and kubelet on the pools of
// the first, and returns how it ended.
func runSecond(t *testing.T, first *harness.Driver, mode driver.Mode) error {
	t.Helper()

	root := t.TempDir()
	config := first.Config
	config.Mode, config.StateDir, config.Endpoint = mode, filepath.Join(root, "state"), "unix://"+filepath.Join(root, "csi.sock")
	config.KubeletDir = filepath.Join(root, "kubelet")
	require.NoError(t, os.Mkdir(config.KubeletDir, 0o750))

	second, err := driver.New(t.Context(), config)
	require.NoError(t, err)

	// A driver that is not refused serves until this ends.
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	return second.Run(ctx)
}

// TestKilledControllerReleasesThePool: neither its lock nor its name keeps the next from starting.
func TestKilledControllerReleasesThePool(t *testing.T) {
	namespace.NeedRoot(t)

	first := harness.StartProcess(t)
	require.ErrorIs(t, runSecond(t, first, driver.ModeController), pool.ErrControllerRunning)

	claim := harness.NewVolume(t, first, &csi.CreateVolumeRequest{})
	first.Kill(t)
	harness.BringUp(t, first, claim)
	harness.TakeDown(t, first, claim)
	harness.DeleteVolume(t, first, claim.VolumeID)
}

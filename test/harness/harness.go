// Package harness starts a driver for a test, in the test's process and behind
// a real socket, and proves at the end that nothing of it is left.
//
// It contains what tests of the whole driver share: start, kill and restart of a driver
// (harness.go, process.go, options.go), also of its node alone (node.go); requests and calls
// (requests.go, volumes.go, calls.go, lifecycle.go), also for direct and ephemeral volumes;
// pools, records, data and damage; conditions; and what the host has (host.go). A function
// that takes the test fails it when its call fails.
package harness

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/leftover"
)

// NodeID is the node id of a driver that says no other.
const NodeID = "node-under-test"

// readyLimit is no verdict on speed: it only ends a test that would hang.
const readyLimit = time.Minute

// Driver is a running driver and a client of it.
type Driver struct {
	*csiclient.Client

	// Root holds all that the driver uses: state, pool, kubelet and the socket.
	Root   string
	Config driver.Config
	// World is what its calls have shown, for the conditions of later ones.
	World *conformance.World

	run  func(*Driver, testing.TB)
	stop func()
	kill func(between ...func())
	// pid is that of a process of its own, 0 of a driver in the test's.
	pid int
	// start starts that process; nil is child.Start.
	start func(*exec.Cmd) error
	// settle waits for what the driver does in the background, given the kinds of leaves; nil in a process of its own.
	settle func(testing.TB, []leftover.Kind)
	// settled is true if the driver was running at the end of the test.
	settled bool
	// leaves are the kinds of what the test leaves on purpose.
	leaves []leftover.Kind
}

// Option changes the configuration before the start.
type Option func(*driver.Config)

// Start starts a driver in a fresh directory. When the test ends the driver is stopped, and the test
// fails if a mount or a loop device is left, or what package leftover finds (Leaves).
func Start(tb testing.TB, options ...Option) *Driver {
	tb.Helper()

	return startWith(tb, (*Driver).runHere, options)
}

func startWith(tb testing.TB, run func(*Driver, testing.TB), options []Option) *Driver {
	tb.Helper()

	root, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)

	// Changes wait for no others, and no check starts by itself.
	config := driver.Defaults()
	config.Controller.CoalesceWindow, config.Node.CheckPeriod = 0, 0
	config.Version, config.NodeID, config.Endpoint = "test", NodeID, "unix://"+filepath.Join(root, "csi.sock")
	config.StateDir, config.KubeletDir = filepath.Join(root, "state"), filepath.Join(root, "kubelet")
	config.Pools = map[string]string{"default": filepath.Join(root, "pool")}
	config.Node.Direct.Root = filepath.Join(root, "direct-volumes")
	config.Node.Direct.Guest.ShimRoots = []string{filepath.Join(root, "shims")}
	config.Log = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	require.NoError(tb, os.MkdirAll(config.KubeletDir, 0o750))

	for _, option := range options {
		option(&config)
	}

	running := &Driver{Root: root, Config: config, World: conformance.NewWorld(), run: run}

	tb.Cleanup(func() {
		CheckNothingIsLeft(tb, root)
		running.checkLeft(tb)
	})

	running.run(running, tb)
	tb.Cleanup(func() {
		if running.settle != nil && !tb.Failed() {
			running.settle(tb, running.leaves)
			running.settled = true
		}

		running.Stop()
	})

	return running
}

// Restart stops the driver and starts it again with the same directories.
func (d *Driver) Restart(tb testing.TB, options ...Option) {
	tb.Helper()

	d.Stop()

	for _, option := range options {
		option(&d.Config)
	}

	d.run(d, tb)
}

// Stop stops the driver as SIGTERM does. A second call does nothing.
func (d *Driver) Stop() { d.stop() }

// Pool returns the directory with the objects of the default pool.
func (d *Driver) Pool() string {
	directory := d.Config.Pools["default"]
	if _, err := os.Lstat(filepath.Join(directory, layout.EmbeddedImage)); err == nil {
		return filepath.Join(directory, layout.EmbeddedMountPoint)
	}

	return directory
}

// Claim returns a use of a volume on the driver's node, at paths of its own.
func (d *Driver) Claim(tb testing.TB, volumeID string) *csiclient.Publication {
	tb.Helper()

	return &csiclient.Publication{
		VolumeID: volumeID, NodeID: d.Config.NodeID,
		StagingPath: filepath.Join(d.Config.KubeletDir, "staging", volumeID),
		TargetPath:  filepath.Join(d.Config.KubeletDir, "pods", volumeID, "mount"),
	}
}

func (d *Driver) runHere(tb testing.TB) {
	tb.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	var (
		made  *driver.Driver
		err   error
		ended = make(chan error, 1)
	)

	leftover.Attribute(d.Root, func() { made, err = driver.New(ctx, d.Config) })
	require.NoError(tb, err)

	running := observe(made, d.Root, d.Config)

	leftover.Attribute(d.Root, func() {
		go func() { ended <- made.Run(ctx) }()
	})

	d.settle = running.settle
	d.connect(tb, func() error {
		d.settle = nil

		cancel()

		err := await.Receive(tb, ended, "the driver to end")
		if err == nil && !tb.Failed() {
			left, failure := running.left()
			d.report(tb, left)

			err = failure
		}

		return err
	})
}

// connect makes the client of a driver that has just been started and that end
// ends.
func (d *Driver) connect(tb testing.TB, end func() error) {
	tb.Helper()

	d.World.Started(string(d.Config.Mode))

	client, err := csiclient.Connect(d.Config.Endpoint, append(awaitcall.Options(tb), conformance.Observe(tb, d.World)...)...)
	require.NoError(tb, err)

	d.Client = client
	stopped := false
	d.stop = func() {
		if stopped {
			return
		}

		stopped = true

		if err := end(); err != nil {
			tb.Errorf("the driver ended with: %v", err)
		}

		if err := client.Close(); err != nil {
			tb.Errorf("close the client: %v", err)
		}
	}

	ready, done := context.WithTimeout(context.Background(), readyLimit)
	defer done()

	require.NoError(tb, client.WaitReady(ready))
}

// CheckNothingIsLeft fails the test for each mount beneath root and each loop
// device of an image there. It also takes them away, so that the next test does
// not suffer from them.
func CheckNothingIsLeft(tb testing.TB, root string) {
	tb.Helper()

	loops := loop.NewLoops(loop.LoopsOptions{})

	// Before the mounts go: the path of an image in an embedded pool leads
	// through one. No image is asked: those of other tests may not answer, and who
	// has their devices open keeps them from going.
	attached, err := loops.Attachments()
	require.NoError(tb, err)

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	require.NoError(tb, err)

	for _, left := range slices.Backward(mounts) {
		tb.Errorf("still mounted: %s", left.Mountpoint)
		forceUnmount(tb, left.Mountpoint)
	}

	for _, each := range attached {
		if !strings.HasPrefix(each.BackingPath, root+"/") {
			continue
		}

		tb.Errorf("still attached: %s to %s", each.BackingPath, each.Path)
		forceDetach(tb, loops, each.Number)
	}
}

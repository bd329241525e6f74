package harness

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/driver/identities"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

// Toolbox is a Runner that asks the test first.
type Toolbox struct {
	filesystem.Runner

	// Before may be nil. What it returns is the tool's end, unless it returns nil.
	Before func(ctx context.Context, command filesystem.Command) (*filesystem.Result, error)
}

// NewToolbox returns a Runner that runs the real tools.
func NewToolbox() *Toolbox { return &Toolbox{Runner: filesystem.NewRunner()} }

// Run implements [filesystem.Runner].
func (b *Toolbox) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	if b.Before != nil {
		if result, err := b.Before(ctx, command); err != nil {
			return filesystem.Result{}, err
		} else if result != nil {
			return *result, nil
		}
	}

	return b.Runner.Run(ctx, command)
}

// Node is the node service of a driver, without its socket.
type Node struct {
	*node.Service
	*node.LocalNode

	Close func() error
}

// NodeConfig is what a process needs of a Driver to be its node.
type NodeConfig struct {
	StateDir    string        `json:"stateDir"`
	Pool        string        `json:"pool"`
	KubeletDir  string        `json:"kubeletDir"`
	DirectRoot  string        `json:"directRoot"`
	FreezeLimit time.Duration `json:"freezeLimit"`
	VolumeIDs   []string      `json:"volumeIds"`
	// Run starts the tools of the filesystems; nil means the real ones.
	Run filesystem.Runner `json:"-"`
}

// OpenNode opens the node service on the state of a driver that is stopped.
func OpenNode(ctx context.Context, config NodeConfig, log *slog.Logger) (*Node, error) {
	pools, err := poolset.Open(map[string]string{"default": config.Pool})
	if err != nil {
		return nil, err
	}

	places, err := mount.NewAllowedDirs(config.KubeletDir)
	if err != nil {
		return nil, errors.Join(err, pools.Close())
	}

	store := state.New(config.StateDir, state.Options{Owner: "a test's node", Log: log})
	// The driver wrote them; a store refuses collections that are not registered.
	identities.Register(store)

	end := func() error { return errors.Join(store.Close(), pools.Close()) }

	served, err := node.New(node.Config{
		Common: node.Common{
			NodeID: NodeID, Store: store, Pools: pools, Operations: operation.NewGroup(), Log: log,
		},
		Admission: &pool.Admission{Overcommit: 1},
		Settings:  node.Settings{Direct: kata.Config{Root: config.DirectRoot}},
		Ephemeral: pools.Ephemeral(), Dirs: places, StagingDir: filepath.Join(config.KubeletDir, "own"),
		FreezeLimit: config.FreezeLimit, Run: config.Run,
	})
	if err == nil {
		err = store.Open(ctx)
	}

	if err == nil {
		err = served.Recover(ctx)
	}

	if err != nil {
		return nil, errors.Join(err, end())
	}

	return &Node{Service: served, LocalNode: served.Local(), Close: func() error { return errors.Join(served.Close(), end()) }}, nil
}

// NodeConfigOf is the configuration of a driver's node.
func NodeConfigOf(d *Driver) NodeConfig {
	return NodeConfig{
		StateDir: d.Config.StateDir, Pool: d.Pool(), KubeletDir: d.Config.KubeletDir, DirectRoot: d.Config.Node.Direct.Root,
	}
}

// TakeOver stops the driver, whose volumes stay mounted, and returns its node. At the
// end of the test the driver is back. run may be nil (NodeConfig).
func TakeOver(t *testing.T, d *Driver, limit time.Duration, run filesystem.Runner) *Node {
	t.Helper()
	d.Stop()

	config := NodeConfigOf(d)
	config.FreezeLimit, config.Run = limit, run

	taken, err := OpenNode(t.Context(), config, d.Config.Log)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, taken.Close())
		d.Restart(t)
	})

	return taken
}

// StartNode starts a driver that is a node and nothing else, so that its state
// can be opened by a node service alone.
func StartNode(t *testing.T) *Driver {
	t.Helper()

	return Start(t, InMode(driver.ModeNode))
}

// GivenVolume puts a volume into the pool as a controller elsewhere would.
func GivenVolume(t *testing.T, d *Driver, capability *csi.VolumeCapability, parameters map[string]string) *csiclient.Publication {
	t.Helper()

	id := volume.NewID()

	if parameters[volume.KeyBacking] == string(volume.BackingDirectory) {
		require.NoError(t, os.Mkdir(filepath.Join(d.Pool(), "directories", id), 0o700))
	} else {
		require.NoError(t, os.WriteFile(ImageOf(d, id), nil, 0o600))
		require.NoError(t, os.Truncate(ImageOf(d, id), SizeFor(capability.GetMount().GetFsType())))
	}

	claim := d.Claim(t, id)
	claim.VolumeContext, claim.Capability = parameters, capability

	return claim
}

// Stage has the volume staged for the rest of the test.
func Stage(t *testing.T, d *Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, os.MkdirAll(claim.StagingPath, 0o750))
	require.NoError(t, d.Stage(t.Context(), claim))
	t.Cleanup(func() {
		// Should the test have failed, no process waits for ever.
		_ = Thaw(claim.StagingPath)

		require.NoError(t, d.Unstage(context.WithoutCancel(t.Context()), claim))
	})
}

// StagedVolume returns a volume with the filesystem, staged.
func StagedVolume(t *testing.T, d *Driver, fsType string) *csiclient.Publication {
	t.Helper()

	claim := GivenVolume(t, d, csiclient.MountCapability(Writer, fsType), nil)
	Stage(t, d, claim)

	return claim
}

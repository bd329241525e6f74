package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// TestSomeStagingsEndWithTheirLastPublication: the driver's own, and all of them where STAGE_UNSTAGE_VOLUME is
// not advertised.
func TestSomeStagingsEndWithTheirLastPublication(t *testing.T) {
	t.Parallel()

	require.Equal(t, "/kubelet/plugins/staging.csi.example", OwnStagingDir("/kubelet", "csi.example"))

	dir := t.TempDir()
	dirs, err := mount.NewAllowedDirs(dir)
	require.NoError(t, err)

	unstaging, err := capability.Without("STAGE_UNSTAGE_VOLUME")
	require.NoError(t, err)

	own := &Config{StagingDir: filepath.Join(dir, "own"), Dirs: dirs}
	ofDriver, ofCO := &staged.Volume{VolumeID: "a", StagingPath: own.ownStagingPath("a")}, &staged.Volume{VolumeID: "a", StagingPath: filepath.Join(dir, "b")}

	require.True(t, own.endsUnpublished(ofDriver), "want: the driver's staging ends")
	require.False(t, own.endsUnpublished(ofCO), "want: the CO ends its staging")

	always := &Config{StagingDir: own.StagingDir, Common: Common{Capabilities: unstaging}}
	require.True(t, always.endsUnpublished(ofCO), "want: each staging ends where the CO stages none")

	require.NoError(t, own.removeOwnStaging(ofDriver), "a path that does not exist is removed")

	for _, path := range []string{ofDriver.StagingPath, ofCO.StagingPath} {
		require.NoError(t, os.MkdirAll(path, 0o700))
	}

	require.NoError(t, own.removeOwnStaging(ofCO))
	require.DirExists(t, ofCO.StagingPath, "want: the CO's path stays")
	require.NoError(t, own.removeOwnStaging(ofDriver))
	require.NoDirExists(t, ofDriver.StagingPath)
}

// TestCheckAllowed refuses paths that no volume can be at.
func TestCheckAllowed(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	dirs, err := mount.NewAllowedDirs(dir)
	require.NoError(t, err)

	require.NoError(t, checkAllowed(dirs, filepath.Join(dir, "target")))
	require.NoError(t, checkAllowed(dirs, filepath.Join(dir, "missing", "target")), "nothing can be there")
	require.Error(t, checkAllowed(dirs, "/elsewhere/target"), "want: another directory is refused")
}

// TestAnIncompleteConfigurationIsRefused: what a node cannot run without. The rest has defaults.
func TestAnIncompleteConfigurationIsRefused(t *testing.T) {
	t.Parallel()

	complete := func() Config {
		return Config{Common: Common{NodeID: "here"}, Admission: &pool.Admission{}, Ephemeral: pool.NewSet(nil)}
	}

	for want, change := range map[error]func(*Config){
		errNoNodeID:    func(c *Config) { c.NodeID = "" },
		errNoEphemeral: func(c *Config) { c.Ephemeral = nil },
		errNoAdmission: func(c *Config) { c.Admission = nil },
	} {
		config := complete()
		change(&config)
		require.ErrorIs(t, config.complete(), want)

		_, err := New(config)
		require.ErrorIs(t, err, want)
	}

	config := complete()
	require.NoError(t, config.complete())
	require.Equal(t, probe.DefaultIOErrorHold, config.IOErrorHold)
	require.Equal(t, cgroup.DefaultCgroupRoot, config.CgroupRoot)

	config.IOErrorHold, config.CgroupRoot = time.Nanosecond, "/cgroup"
	require.NoError(t, config.complete())
	require.Equal(t, time.Nanosecond, config.IOErrorHold)
	require.Equal(t, "/cgroup", config.CgroupRoot)
}

// TestIsPublication is what limits of a device are kept for.
func TestIsPublication(t *testing.T) {
	t.Parallel()

	const id = "01890000-0000-7000-8000-000000000001"

	store := state.New(t.TempDir(), state.Options{})
	s := &Service{parts: &parts{volumes: staged.Volumes{Staged: staged.NewVolumes(store)}}}
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	capability := volume.Capability{Mode: "SINGLE_NODE_WRITER"}
	require.NoError(t, s.volumes.Staged.Put(t.Context(), &staged.Volume{
		VolumeID: id, Capability: capability, Parameters: volume.Parameters{
			Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
		},
		Publications: []staged.Publication{{TargetPath: "/target", Capability: capability}},
	}))
	require.True(t, s.isPublication(id, "/target"), "want: it is published there")
	require.False(t, s.isPublication(id, "/other"), "want: it is not published elsewhere")
	require.False(t, s.isPublication("other", "/target"), "want: another volume is not published there")
}

// TestRegisterRecords registers each collection of a node: none can be registered again.
func TestRegisterRecords(t *testing.T) {
	t.Parallel()

	store := state.New(t.TempDir(), state.Options{})
	RegisterRecords(store)

	for name, register := range map[string]func(){
		"staged": func() { staged.NewVolumes(store) }, "inline": func() { staged.NewInlineRecords(store) },
		"schedulers": func() { tuning.NewSchedulerRecords(store) }, "limits": func() { tuning.NewLimitedRecords(store) },
		"frozen": func() { freeze.NewRecords(store) }, "checks": func() { fsck.NewRecords(store) },
	} {
		require.Panics(t, register, "want: the collection of %s is registered", name)
	}
}

func TestConditionsOfTheStorageAreReported(t *testing.T) {
	t.Parallel()

	a := &answers{}
	none, err := a.NodeGetStorageHealth(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none.GetBackendHealth(), "want: nothing is known without a monitor")

	monitor := health.New(health.Config{Name: "storage", Log: slog.New(slog.DiscardHandler)})
	monitor.Set("pool", health.Observation{Entries: []health.Entry{health.NewEntry(health.PoolUnreachable, "gone")}}, time.Now())
	a.config.Storage = monitor
	one, err := a.NodeGetStorageHealth(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, one.GetBackendHealth(), 1, "want: the condition of the pool")
}

package ctl_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// commands returns functions that run a line of `touchstone ctl`, and that require it to succeed with
// an output.
func commands(t *testing.T, d *harness.Driver) (run func(...string) (string, error), requireSays func(string, ...string)) {
	t.Helper()

	run = func(args ...string) (string, error) {
		var out bytes.Buffer

		command := ctl.NewCommand()
		command.SetOut(&out)
		command.SetErr(&out)
		command.SetArgs(append(args, "--endpoint", d.Config.Endpoint))

		err := command.ExecuteContext(t.Context())

		return out.String(), err
	}

	return run, func(want string, args ...string) {
		t.Helper()

		out, err := run(args...)
		require.NoError(t, err, args)
		require.Contains(t, out, want, args)
	}
}

// TestVolumesAreManagedByName: they are made, mounted and removed by a line of `touchstone ctl`
// each, and stay mounted while the driver restarts.
func TestVolumesAreManagedByName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	path, elsewhere := filepath.Join(d.Config.KubeletDir, "mnt"), t.TempDir()

	const mode = "single-node-multi-writer"

	says, requireSays := commands(t, d)

	requireSays("is mounted at "+path, "volume", "mount", "data", path, "--create", "--size", "64Mi", "--fs", "ext4", "--access-mode", mode)
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o600))
	requireSays("mounted at "+path+" already", "volume", "mount", "data", path, "--create")

	d.Restart(t)
	harness.RequireFile(t, filepath.Join(path, "file"), "kept")
	requireSays(path, "volume", "list")

	// A second mount keeps the volume attached when the first ends.
	requireSays("is mounted", "volume", "mount", "data", path+"2", "--access-mode", mode)
	_, err := says("volume", "umount", "data")
	errtext.Require(t, err, "several paths")
	requireSays("unmounted from "+path, "volume", "umount", path)
	harness.RequireFile(t, filepath.Join(path+"2", "file"), "kept")
	requireSays("data is unmounted from "+path+"2", "volume", "umount", "data")

	_, err = says("volume", "mount", "data", filepath.Join(elsewhere, "data"))
	errtext.Require(t, err, "--allow-path "+elsewhere)
	require.NoDirExists(t, filepath.Join(elsewhere, "data"))

	requireSays("data is mounted read-only at "+path, "volume", "mount", "data", path, "--readonly")
	requireSays("data is unmounted", "volume", "umount", "data")
	requireSays("deleted data", "volume", "rm", "data")
	_, err = says("volume", "rm", "data")
	errtext.Require(t, err, "nothing to delete")

	hidden, err := filepath.Glob(filepath.Join(d.Config.KubeletDir, ".touchstone-*"))
	require.NoError(t, err)
	require.Empty(t, hidden, "want: no hidden staging path is left")
}

func TestAPersistentMountComesBackUntilUmount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	run, requireSays := commands(t, d)
	path := filepath.Join(d.Config.KubeletDir, "mnt")
	file := filepath.Join(path, "file")

	// machineEnds unmounts as the end of a machine does.
	machineEnds := func() {
		d.Stop()
		harness.Unmount(t, path)
		harness.Unmount(t, hiddenStaging(t, d))
	}

	requireSays("is mounted at "+path+", and at each start of the driver",
		"volume", "mount", "data", path, "--create", "--size", "64Mi", "--persist")
	harness.WriteFile(t, file, "kept")
	requireSays("already, and at each start of the driver", "volume", "mount", "data", path)
	requireSays("Mounted at start:  "+path, "volume", "get", "data")

	machineEnds()
	d.Restart(t)
	harness.RequireFile(t, file, "kept")

	requireSays("is mounted at "+path+" already, and no start of the driver mounts it again\n", "volume", "mount", "data", path, "--persist=false")
	requireSays("is mounted at "+path+" already\n", "volume", "mount", "data", path, "--persist=false")
	requireSays("is mounted at "+path+" already, and at each start", "volume", "mount", "data", path, "--persist")

	machineEnds()
	harness.WriteFile(t, file, "in the way")
	d.Restart(t)

	out, err := run("volume", "health", "data")
	require.Error(t, err, "want: a volume that could not be mounted is not healthy")
	require.Contains(t, out, "VolumeUnmounted")
	require.Contains(t, out, path+" is not empty, and its files would be hidden; move them away; mount it again: "+path)
	_, err = run("volume", "mount", "data", path)
	errtext.Require(t, err, "its files would be hidden")
	_, err = run("volume", "rm", "data")
	errtext.Require(t, err, "FAILED_PRECONDITION")

	require.NoError(t, os.Remove(file))
	requireSays("again: a mount of it was missing, and at each start", "volume", "mount", "data", path)
	harness.RequireFile(t, file, "kept")

	requireSays("would unmount data from "+path+", and no start of the driver mounts it again\n", "volume", "umount", "data", "--dry-run")
	requireSays("is unmounted from "+path+", and no start of the driver mounts it again", "volume", "umount", "data")
	d.Restart(t)
	harness.RequireNothingMounted(t, d.Config.KubeletDir)
	requireSays("deleted", "volume", "rm", "data")
}

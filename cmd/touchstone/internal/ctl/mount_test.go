package ctl_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
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
	require.ErrorContains(t, err, "several paths")
	requireSays("unmounted from "+path, "volume", "umount", path)
	harness.RequireFile(t, filepath.Join(path+"2", "file"), "kept")
	requireSays("data is unmounted from "+path+"2", "volume", "umount", "data")

	_, err = says("volume", "mount", "data", filepath.Join(elsewhere, "data"))
	require.ErrorContains(t, err, "--allow-path "+elsewhere)
	require.NoDirExists(t, filepath.Join(elsewhere, "data"))

	requireSays("deleted data", "volume", "rm", "data")
	_, err = says("volume", "rm", "data")
	require.ErrorContains(t, err, "nothing to delete")

	hidden, err := filepath.Glob(filepath.Join(d.Config.KubeletDir, ".touchstone-*"))
	require.NoError(t, err)
	require.Empty(t, hidden, "want: no hidden staging path is left")
}

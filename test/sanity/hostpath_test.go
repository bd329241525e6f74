package sanity_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/served"
)

// opaque is a mutable parameter that only csi-test's own tests of hostpathplugin know.
const opaque = "realKey"

// startHostpathplugin starts the program of that name as csi-test's hack/e2e.sh does, with single dashes,
// and points the suite at it.
func startHostpathplugin(t *testing.T, network string, config *sanity.TestConfig) {
	t.Helper()

	directory := t.TempDir()
	program := filepath.Join(directory, "hostpathplugin")
	require.NoError(t, child.BuildDriver(program))

	endpoint := "unix://" + filepath.Join(directory, "csi.sock")
	config.Address = endpoint

	if network == "tcp" {
		endpoint = "tcp://" + served.Address()
		config.Address = strings.Replace(endpoint, "tcp://", "dns:///", 1)
	}

	command := child.CommandWithin(t, rowLimit, program, "-statedir", filepath.Join(directory, "data"), "-endpoint", endpoint,
		"-nodeid", "fake-node-id", "-enable-controller-modify-volume", "-accepted-mutable-parameter-names", opaque)
	command.Stderr = os.Stderr
	require.NoError(t, child.Start(command))
	t.Cleanup(func() {
		require.NoError(t, command.Process.Signal(os.Interrupt))
		require.NoError(t, child.Wait(t, command))
	})

	config.TestVolumeMutableParameters = map[string]string{opaque: "bar"}
	config.TargetPath, config.StagingPath = filepath.Join(directory, "target"), filepath.Join(directory, "staging")
}

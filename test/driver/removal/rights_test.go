package removal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// deployments are the files that give the driver capabilities, where it is not privileged.
var deployments = []struct {
	file string
	mode driver.Mode
	list *regexp.Regexp
}{
	{"deploy/systemd/touchstone.service", driver.ModeAll, regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.+)$`)},
	{"deploy/kustomize/overlays/single-node/controller.yaml", driver.ModeController, regexp.MustCompile(`add: \[(.+)]`)},
	{"deploy/helm/touchstone/templates/controller.yaml", driver.ModeController, regexp.MustCompile(`"add" \(list (.+?)\)`)},
}

// TestDeploymentsHaveTheRightsToRemove deletes volumes, with what users can put into them, under exactly
// the capabilities that each deployment gives the driver.
func TestDeploymentsHaveTheRightsToRemove(t *testing.T) {
	namespace.NeedRoot(t)

	for _, deployment := range deployments {
		for kind, option := range map[string]func(t *testing.T) harness.Option{
			"plain": func(*testing.T) harness.Option { return func(*driver.Config) {} },
			"btrfs": func(t *testing.T) harness.Option {
				t.Helper()

				return harness.PoolAt("default", testpool.Btrfs(t, harness.GiB))
			},
		} {
			t.Run(deployment.file+" "+kind, func(t *testing.T) {
				content, err := os.ReadFile(filepath.Join("..", "..", "..", deployment.file))
				require.NoError(t, err)

				found := deployment.list.FindSubmatch(content)
				require.NotNil(t, found, "want: the deployment has a list of rights")

				names := strings.FieldsFunc(strings.ReplaceAll(string(found[1]), "CAP_", ""), func(r rune) bool { return strings.ContainsRune(` ,"`, r) })
				d := harness.StartBounded(t, names, option(t), harness.InMode(deployment.mode))
				id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "volume", Parameters: harness.DirectoryBacked()}).VolumeID
				obstruct(t, filepath.Join(d.Pool(), "directories", id), kind == "btrfs")

				_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
				require.NoError(t, err)
				harness.RequireEntries(t, d, map[string]int{"directories": 0, "removing": 0, "scratch": 0})
			})
		}
	}
}

// obstruct fills a directory with what only some capability can remove.
func obstruct(t *testing.T, path string, btrfs bool) {
	t.Helper()

	locked, foreign := filepath.Join(path, "locked"), filepath.Join(path, "foreign")

	for _, each := range []string{locked, foreign} {
		require.NoError(t, os.Mkdir(each, 0o755))
		harness.WriteFile(t, filepath.Join(each, "file"), "stays")
	}

	// Another user's, closed, and sticky.
	require.NoError(t, unix.Chown(filepath.Join(foreign, "file"), child.UnprivilegedID, child.UnprivilegedID))
	require.NoError(t, unix.Chown(foreign, child.UnprivilegedID, child.UnprivilegedID))
	require.NoError(t, unix.Chmod(foreign, unix.S_ISVTX))

	if btrfs {
		inside := filepath.Join(path, "inside")
		harness.RunTool(t, 0, "btrfs", "subvolume", "create", inside)
		harness.RunTool(t, 0, "btrfs", "subvolume", "create", filepath.Join(inside, "innermost"))
		harness.WriteFile(t, filepath.Join(inside, "file"), "stays")
		harness.RunTool(t, 0, "btrfs", "property", "set", inside, "ro", "true")
	}

	harness.RunTool(t, 0, "chattr", "+a", filepath.Join(foreign, "file"))
	harness.RunTool(t, 0, "chattr", "+i", filepath.Join(locked, "file"), locked, path)
}

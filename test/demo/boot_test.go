package demo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
)

const fstabGenerator = "/usr/lib/systemd/system-generators/systemd-fstab-generator"

// TestUnitsOfPersistentMounts: systemd takes the unit and the line of fstab that docs/packages.md has, and starts
// both after the driver. Without nofail it could not start at all.
func TestUnitsOfPersistentMounts(t *testing.T) {
	t.Parallel()

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd is not installed")
	}

	if _, err := os.Stat(fstabGenerator); err != nil {
		t.Skip("systemd is not installed")
	}

	page, err := os.ReadFile("../../docs/packages.md")
	require.NoError(t, err)

	_, section, _ := strings.Cut(string(page), "## After a reboot")
	blocks := map[string]string{}

	for _, match := range fencedBlock.FindAllStringSubmatch(section, -1) {
		blocks[match[1]] = match[2] + "\n"
	}

	require.Empty(t, verifyUnits(t, blocks["ini"], blocks[""]), "want: systemd has nothing to say")
	require.Contains(t, verifyUnits(t, blocks["ini"], strings.Replace(blocks[""], "nofail,", "", 1)), "ordering cycle")
}

// verifyUnits returns what systemd has to say about a unit and a line of fstab beside the driver's unit.
func verifyUnits(t *testing.T, unit, fstab string) string {
	t.Helper()

	units, unused, table := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "fstab")
	service, err := os.ReadFile("../../deploy/systemd/touchstone.service")
	require.NoError(t, err)

	const execStart = "ExecStart=/usr/bin/touchstone"
	require.Contains(t, string(service), execStart)

	for path, text := range map[string]string{
		table: fstab,
		// systemd requires that the program exists.
		filepath.Join(units, "touchstone.service"): strings.Replace(string(service), execStart, "ExecStart=/bin/true", 1),
		filepath.Join(units, "user.service"):       unit + "RequiresMountsFor=/srv/www\n[Service]\nExecStart=/bin/true\n",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}

	generate := child.CommandWithin(t, await.Limit, fstabGenerator, units, unused, unused)
	generate.Env = append(os.Environ(), "SYSTEMD_FSTAB="+table)
	output, err := generate.CombinedOutput()
	require.NoError(t, err, "%s", output)

	mount, err := os.ReadFile(filepath.Join(units, "srv-www.mount"))
	require.NoError(t, err)
	require.Contains(t, string(mount), "After=touchstone.service")
	require.Contains(t, string(mount), "Requires=touchstone.service")

	verify := child.CommandWithin(t, await.Limit, "systemd-analyze", "verify", "--man=no", "user.service", "local-fs.target")
	verify.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+units+":")

	output, _ = verify.CombinedOutput()

	return string(output)
}

package monitoring_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/child"
)

// says runs the command, and returns its output and exit code.
func (w *watched) says(t *testing.T, args ...string) (string, int) {
	t.Helper()

	if w.binary == "" {
		w.binary = filepath.Join(t.TempDir(), "touchstone")
		require.NoError(t, child.BuildDriver(w.binary))
	}

	command := child.Command(t, w.binary, append(args, "--endpoint", w.Config.Endpoint)...)

	out, err := command.CombinedOutput()
	if !errors.As(err, new(*exec.ExitError)) {
		require.NoError(t, err, "run %s", command)
	}

	return string(out), command.ProcessState.ExitCode()
}

func TestUnhealthyVolumeIsReportedEverywhere(t *testing.T) {
	t.Parallel()

	w := start(t)
	id := w.claim.VolumeID

	_, code := w.says(t, "ctl", "volume", "health")
	require.Zero(t, code, "want: a healthy volume exits with 0")

	image := filepath.Join(w.Pool(), "images", id+".img")
	aside := filepath.Join(w.Root, "aside")
	require.NoError(t, os.Rename(image, aside))
	t.Cleanup(func() { _ = os.Rename(aside, image) }) // else the node would not give it back

	report := func() (seen health.VolumeReport, changes []health.Change) {
		var report health.Report

		require.NoError(t, json.Unmarshal([]byte(w.get(t, "/health.json")), &report))
		require.Len(t, report.Volumes, 1, "want: the report has the volume")

		return report.Volumes[0], report.Changes
	}

	// Both views, of one volume.
	require.Eventually(t, func() bool {
		seen, _ := report()

		return len(seen.Conditions) == 2
	}, waitLimit, 10*time.Millisecond, "want: both views report the condition")

	seen, changes := report()
	require.Equal(t, "pvc-"+t.Name(), seen.Name)
	require.Equal(t, w.claim.StagingPath, seen.Staged)
	require.Equal(t, []string{w.claim.TargetPath}, seen.Published)
	require.Equal(t, "ext4", seen.FSType)
	require.EqualValues(t, 64<<20, seen.CapacityBytes, "want: the report has the size of the volume")
	require.Positive(t, seen.Usage.Bytes.Used, "want: the report has the usage of the volume")
	require.ElementsMatch(t, []string{"controller", "node"}, []string{seen.Conditions[0].View, seen.Conditions[1].View})
	require.Len(t, changes, 2, "want: the report has the change of each view")

	out, code := w.says(t, "ctl", "volume", "health", "--abnormal")
	require.Equal(t, 1, code, "want: an unhealthy volume exits with 1")
	require.Regexp(t, seen.Name+` +node +INACCESSIBLE +BackingFileMissing `, out)
	require.Regexp(t, seen.Name+` +controller +INACCESSIBLE +BackingFileMissing `, out)

	exposed := w.scrape(t)
	require.Contains(t, exposed.values("touchstone_volume_bytes", "volume"), id)
	require.Contains(t, exposed.values("touchstone_volume_inodes", "volume"), id)

	require.NoError(t, os.Rename(aside, image))
	require.Eventually(t, func() bool {
		_, code := w.says(t, "ctl", "volume", "health", id)

		return code == 0
	}, waitLimit, 10*time.Millisecond, "want: the restored image clears the condition")

	_, changes = report()
	require.Len(t, changes, 4, "want: the report has the changes of both views")
	require.True(t, changes[0].Cleared, "want: the condition is cleared")
}

func TestLastCheckIsReported(t *testing.T) {
	t.Parallel()

	w := start(t)
	found := w.check(t)
	require.Equal(t, "clean", found.Verdict)

	out, code := w.says(t, "ctl", "volume", "get", w.claim.VolumeID)
	require.Zero(t, code, "want: ctl succeeds")
	require.Regexp(t, `(?m)^Last check: .*, clean \(online\)$`, out)
	require.Regexp(t, `(?m)^Last clean check: .* ago\)$`, out)

	// Without --online what is in use is left alone.
	out, code = w.says(t, "check", w.claim.VolumeID)
	require.Equal(t, 2, code, "want: a volume in use is not checked without --online")
	require.Contains(t, out, "online")

	out, code = w.says(t, "check", "--all", "--online")
	require.Zero(t, code, "want: all volumes are checked")
	require.Contains(t, out, "pvc-"+t.Name()+"  clean")
}

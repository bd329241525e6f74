package monitoring_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/cli/ctl"
	"github.com/touchstone-csi/touchstone/pkg/health"
)

// ctlSays is `touchstone ctl args…`, and its exit code.
func (w *watched) ctlSays(t *testing.T, args ...string) (string, int) {
	t.Helper()

	var out bytes.Buffer

	command := ctl.NewCommand()
	command.SetOut(&out)
	command.SetErr(&out)
	command.SetArgs(append(args, "--endpoint", w.Config.Endpoint))

	code := ctl.ExitCode(command.ExecuteContext(t.Context()))

	return out.String(), code
}

func TestASickVolumeIsSeenEverywhere(t *testing.T) {
	t.Parallel()

	w := start(t)
	id := w.claim.VolumeID

	_, code := w.ctlSays(t, "volume", "health")
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

	out, code := w.ctlSays(t, "volume", "health", "--abnormal")
	require.Equal(t, 1, code, "want: an unhealthy volume exits with 1")
	require.Regexp(t, id+` +node +INACCESSIBLE +BackingFileMissing `, out)
	require.Regexp(t, id+` +controller +INACCESSIBLE +BackingFileMissing `, out)

	exposed := w.scrape(t)
	require.Contains(t, exposed.values("touchstone_volume_bytes", "volume"), id)
	require.Contains(t, exposed.values("touchstone_volume_inodes", "volume"), id)

	require.NoError(t, os.Rename(aside, image))
	require.Eventually(t, func() bool {
		_, code := w.ctlSays(t, "volume", "health", id)

		return code == 0
	}, waitLimit, 10*time.Millisecond, "want: the restored image clears the condition")

	_, changes = report()
	require.Len(t, changes, 4, "want: the report has the changes of both views")
	require.True(t, changes[0].Cleared, "want: the condition is cleared")
}

func TestTheLastCheckIsSeen(t *testing.T) {
	t.Parallel()

	w := start(t)
	found := w.check(t)
	require.Equal(t, "clean", found.Verdict)

	out, code := w.ctlSays(t, "volume", "get", w.claim.VolumeID)
	require.Zero(t, code, "want: ctl succeeds")
	require.Regexp(t, `(?m)^Last check: .*, clean \(online\)$`, out)
	require.Regexp(t, `(?m)^Last clean check: .* ago\)$`, out)

	// Without --online what is in use is left alone.
	var said bytes.Buffer

	command := ctl.NewCheckCommand()
	command.SetOut(&said)
	command.SetErr(&said)
	command.SetArgs([]string{w.claim.VolumeID, "--endpoint", w.Config.Endpoint})
	require.Equal(t, 2, ctl.ExitCode(command.ExecuteContext(t.Context())), "want: a volume in use exits with 2")
	require.Contains(t, said.String(), "online")

	said.Reset()
	command.SetArgs([]string{"--all", "--online", "--endpoint", w.Config.Endpoint})
	require.NoError(t, command.ExecuteContext(t.Context()))
	require.Contains(t, said.String(), w.claim.VolumeID+"  clean")
}

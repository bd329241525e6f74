package demo_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
)

// The driver is up within milliseconds; the limit only ends a hopeless wait.
const (
	waitLimit = time.Minute
	waitStep  = 20 * time.Millisecond
)

// startDriver serves beneath dir until the test ends, and returns its endpoint.
func startDriver(t *testing.T, dir string, flags ...string) string {
	t.Helper()

	for _, name := range []string{"state", "pool", "kubelet"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}

	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	// Not t.Context: it ends before the cleanups, which still need the driver.
	driver := exec.Command(binary, append([]string{
		"serve", "--endpoint", endpoint, "--node-id", "here",
		"--state-dir", filepath.Join(dir, "state"), "--pool", "default=" + filepath.Join(dir, "pool"),
		"--kubelet-dir", filepath.Join(dir, "kubelet"), "--http-endpoint", "",
	}, flags...)...)

	var log strings.Builder
	driver.Stderr = &log

	require.NoError(t, driver.Start())
	t.Cleanup(func() {
		require.NoError(t, driver.Process.Signal(syscall.SIGTERM))
		require.NoError(t, child.Wait(t, driver), log.String())
		// Only what the driver and this test are known to make.
		for _, name := range []string{"state", "pool"} {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
		}
	})

	return endpoint
}

// The commands of examples/ctl.md, against the real driver.
func TestCtlExampleRunsTheLifecycle(t *testing.T) {
	dir := workDir(t)
	endpoint := startDriver(t, dir)
	staging, target := filepath.Join(dir, "kubelet", "stage"), filepath.Join(dir, "kubelet", "pods", "data")

	ctl := func(args ...string) (string, int) {
		command := child.Command(t, binary, append([]string{"ctl"}, args...)...)
		command.Env = append(os.Environ(), "TOUCHSTONE_ENDPOINT="+endpoint)
		out, err := command.CombinedOutput()

		return string(out), exitCode(t, err)
	}
	must := func(args ...string) string {
		t.Helper()

		out, code := ctl(args...)
		require.Zero(t, code, "%v: %s", args, out)

		return out
	}

	require.Eventually(t, func() bool {
		out, code := ctl("capabilities")

		return code == 0 && strings.Contains(out, ", ready")
	}, waitLimit, waitStep, "want: the driver is ready")
	require.Contains(t, must("node", "info"), "here")
	require.Contains(t, must("capacity"), "Available:")

	var created struct {
		Volume struct {
			ID string `json:"volume_id"`
		} `json:"volume"`
	}

	require.NoError(t, json.Unmarshal([]byte(must("volume", "create", "data", "--size", "300Mi", "--fs", "xfs", "-o", "json")), &created))
	id := created.Volume.ID

	t.Cleanup(func() {
		// Whatever failed; the context of the test is over by now.
		undo := child.Command(t, binary, "ctl", "--endpoint", endpoint, "volume", "unpublish", id, "--staging", staging, "--target", target)
		out, err := undo.CombinedOutput()
		require.NoError(t, err, string(out))

		for _, empty := range []string{staging, filepath.Dir(target), filepath.Join(dir, "kubelet")} {
			_ = os.Remove(empty)
		}
	})

	must("volume", "publish", id, "--fs", "xfs", "--staging", staging, "--target", target)
	require.NoError(t, os.WriteFile(filepath.Join(target, "hello"), []byte("hello"), 0o600))
	require.Regexp(t, `(?m)^data +`+id+` +300 MiB .* xfs +default +`+target+` +HEALTHY +here `, must("volume", "list", "-o", "wide"))
	require.Contains(t, must("volume", "stats", id, "--path", target), "INODES")

	out, code := ctl("volume", "delete", id)
	require.Equal(t, 1, code, "want: the volume in use is not deleted")
	require.Contains(t, out, "DeleteVolume: FAILED_PRECONDITION")
	require.FileExists(t, filepath.Join(target, "hello"))

	require.Contains(t,
		must("volume", "expand", id, "--size", "400Mi", "--fs", "xfs", "--path", target, "--staging", staging), "done")
	require.Contains(t, must("volume", "get", id), "400 MiB")

	must("volume", "unpublish", id, "--staging", staging, "--target", target)
	require.NoFileExists(t, target)
	must("volume", "delete", "data")
	must("volume", "delete", id, "--ignore-not-found")

	out, code = ctl("volume", "get", id)
	require.Equal(t, 1, code, "want: a deleted volume is not found")
	require.Contains(t, out, "no volume has the name or id "+id)

	out, code = ctl("volume", "create")
	require.Equal(t, 2, code, out)
}

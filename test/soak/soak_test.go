package main_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSoak runs short ones of `make soak`.
func TestSoak(t *testing.T) {
	namespace.NeedRoot(t)

	built := t.TempDir()
	require.NoError(t, child.BuildDriver(filepath.Join(built, "touchstone")))

	output, err := child.Go(t, ".", "build", "-o", built+"/", ".").CombinedOutput()
	require.NoError(t, err, "%s", output)

	t.Run("healthy", func(t *testing.T) {
		output, code := run(t, built, "-duration", "20s")

		require.Zero(t, code, "%s", output)
		require.Regexp(t, `\n[1-9][0-9]* lives of volumes in [0-9ms]+: 0 conditions, 0 troubles in all\n$`, output)
	})

	t.Run("an image is away for a moment", func(t *testing.T) {
		output, code := run(t, built, "-duration", "4s", "-workers", "1", "-spoil")

		require.Equal(t, 1, code, "%s", output)
		// Each interface has reported it.
		for _, told := range []string{
			"report, node of ", "report, controller of ", "history, node of ", "condition: node of ", "condition: controller of ",
		} {
			require.Regexp(t, told+"[-0-9a-f]+: BackingFileMissing: ", output)
		}
	})
}

// run returns what the soak has printed and its exit code.
func run(t *testing.T, built string, arguments ...string) (output string, code int) {
	t.Helper()

	// It only ends what would hang.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	command := exec.CommandContext(ctx, filepath.Join(built, "soak"), append([]string{
		"-binary", filepath.Join(built, "touchstone"), "-dir", t.TempDir(), "-check-period", "1m",
	}, arguments...)...)
	printed, err := command.CombinedOutput()

	exit, ended := errors.AsType[*exec.ExitError](err)
	if !ended {
		require.NoError(t, err)

		return string(printed), 0
	}

	return string(printed), exit.ExitCode()
}

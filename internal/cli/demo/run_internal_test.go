package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

func TestRunStepPrintsALine(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	d := newDemo(t.TempDir(), &out)
	require.NoError(t, os.WriteFile(d.path(logName), []byte("first\nlast\n"), fileMode))

	require.NoError(t, d.runStep(t.Context(), step{"CreateVolume", func(context.Context) (string, error) {
		return "name=demo → 0ffee", nil
	}}))
	require.ErrorContains(t, d.runStep(t.Context(), step{"NodeStageVolume", func(context.Context) (string, error) {
		return "id=…0ffee → mounted", errors.New("NodeStageVolume: INTERNAL: no")
	}}), "step 2: NodeStageVolume: INTERNAL: no")
	require.NoError(t, d.out.Flush())

	lines := strings.Split(out.String(), "\n")
	require.Regexp(t, `^  1 ✓ +\d+\.\d ms CreateVolume {14}name=demo → 0ffee$`, lines[0])
	require.Regexp(t, `^  2 ✗ +\d+\.\d ms NodeStageVolume {11}id=…0ffee → INTERNAL: no$`, lines[1])
	require.Equal(t, []string{"      the driver's log ends with:", "      first", "      last", ""}, lines[2:])
	require.NotContains(t, out.String(), "\x1b", "no colours but on a terminal")
}

func TestInterruptedStepIsNoFailure(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	ctx, cancel := context.WithCancel(t.Context())
	d := newDemo(t.TempDir(), &out)
	require.ErrorIs(t, d.runStep(ctx, step{"Probe", func(ctx context.Context) (string, error) {
		cancel()

		return "", ctx.Err()
	}}), errInterrupted)
	require.NoError(t, d.out.Flush())
	require.Empty(t, out.String(), "want: an interrupted step is not printed as a failure")
}

func TestPayloadIsReadFromVolume(t *testing.T) {
	t.Parallel()

	v := &volume{Publication: csiclient.Publication{TargetPath: t.TempDir()}}
	_, err := v.write(t.Context())
	require.NoError(t, err)

	text, err := v.verify("again")(t.Context())
	require.NoError(t, err)
	require.Regexp(t, "^again → sha256 [0-9a-f]{12} as written$", text)

	file, err := os.OpenFile(filepath.Join(v.TargetPath, "data"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("another"), payloadBytes/2)
	require.NoError(t, errors.Join(err, file.Close()))

	_, err = v.verify("")(t.Context())
	require.ErrorIs(t, err, errUnexpected)
}

package demo

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestRunStepPrintsALine(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	d := newDemo(t.TempDir(), &out)
	require.NoError(t, os.WriteFile(d.path(logName), []byte("first\nlast\n"), fileMode))

	require.NoError(t, d.runStep(t.Context(), step{command: "create", do: func(*demo, context.Context) (string, error) {
		return "0ffee\n", nil
	}}))
	errtext.Require(t, d.runStep(t.Context(), step{command: "mount", do: func(*demo, context.Context) (string, error) {
		return "mounted", errors.New("INTERNAL: no")
	}}), "step 2: INTERNAL: no")
	require.NoError(t, d.out.Flush())

	lines := strings.Split(out.String(), "\n")
	require.Regexp(t, `^  1 ✓ +\d+\.\d ms  create$`, lines[0], "the first step")
	require.Regexp(t, `^  2 ✗ +\d+\.\d ms  mount$`, lines[2], "a step that fails")

	indent := strings.Repeat(" ", 20)
	require.Equal(t, indent+"0ffee", lines[1], "want: what a step prints is below it")
	require.Equal(t, []string{
		indent + "mounted", indent + "INTERNAL: no", indent + "the driver's log ends with:", indent + "first", indent + "last", "",
	}, lines[3:], "want: what a step has printed, its error and the driver's log")
	require.NotContains(t, out.String(), "\x1b", "no colours but on a terminal")
}

func TestInterruptedStepIsNoFailure(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	ctx, cancel := context.WithCancel(t.Context())
	d := newDemo(t.TempDir(), &out)
	require.ErrorIs(t, d.runStep(ctx, step{command: "probe", do: func(_ *demo, ctx context.Context) (string, error) {
		cancel()

		return "", ctx.Err()
	}}), errInterrupted)
	require.NoError(t, d.out.Flush())
	require.Empty(t, out.String(), "want: an interrupted step is not printed as a failure")
}

// TestCommandsMustDoWhatTheTableSays runs commands of a shell.
func TestCommandsMustDoWhatTheTableSays(t *testing.T) {
	t.Parallel()

	d := newDemo(t.TempDir(), io.Discard)
	d.printed = "one\n"

	for name, test := range map[string]struct {
		step step
		ok   bool
	}{
		"prints it":               {step{command: "echo one", prints: "^one"}, true},
		"prints another":          {step{command: "echo one", prints: "^two"}, false},
		"prints it on stderr":     {step{command: "echo one >&2", prints: "one"}, true},
		"fails":                   {step{command: "false"}, false},
		"is refused":              {step{command: "echo no; exit 1", prints: "no", fails: true}, true},
		"is not refused":          {step{command: "echo no", prints: "no", fails: true}, false},
		"prints the same":         {step{command: "echo one", same: true}, true},
		"does not print it twice": {step{command: "echo two", same: true}, false},
		"has the directory":       {step{command: "echo $K", prints: "^" + d.path("kubelet")}, true},
	} {
		_, err := d.do(t.Context(), test.step)
		require.Equal(t, test.ok, err == nil, "%s: %v", name, err)
	}
}

package filesystem

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestTheLastLinesOfAToolAreItsReason: what it has found, or why it refuses an option.
func TestTheLastLinesOfAToolAreItsReason(t *testing.T) {
	t.Parallel()

	numbered := func(from, to int) []string {
		var lines []string
		for i := from; i <= to; i++ {
			lines = append(lines, fmt.Sprint("line ", i))
		}

		return lines
	}

	for name, test := range map[string]struct{ output, want string }{
		"nothing":              {"", ""},
		"white space":          {" \n\t\n", ""},
		"one line":             {"bad block", "bad block"},
		"two lines":            {" bad block \n\n worse\n", "bad block; worse"},
		"steps":                {"Phase 1 - find\n        - scan\nNo modify flag set, skipping\nbad\n- next\nPhase 2\n", "bad"},
		"no steps":             {"-bad\nphase\n", "-bad; phase"},
		"12 lines":             {strings.Join(numbered(1, 12), "\n"), strings.Join(numbered(1, 12), "; ")},
		"13 lines":             {strings.Join(numbered(1, 13), "\n"), strings.Join(numbered(2, 13), "; ")},
		"30 lines":             {strings.Join(numbered(1, 30), "\n"), strings.Join(numbered(19, 30), "; ")},
		"a synopsis":           {"unknown option\nUsage: mkfs\nmore\n", "unknown option"},
		"a synopsis alone":     {"usage: mkfs\nmore\n", "usage: mkfs; more"},
		"a synopsis in a line": {"see usage: mkfs\n", "see usage: mkfs"},
		"2048 bytes":           {strings.Repeat("x", 2048), strings.Repeat("x", 2048)},
		"2049 bytes":           {"y" + strings.Repeat("x", 2048), "…" + strings.Repeat("x", 2048)},
		"no text":              {"bad \xff block", "bad ? block"},
	} {
		require.Equal(t, test.want, lastLines(test.output), name)
	}
}

// TestBothEndsOfAnOutputAreKept, of which the second may be twice as long before it is truncated.
func TestBothEndsOfAnOutputAreKept(t *testing.T) {
	t.Parallel()

	const end = 16 << 10

	var whole strings.Builder
	for i := range 8 * end / 8 {
		fmt.Fprintf(&whole, "%07d\n", i)
	}

	text := whole.String()

	for length, want := range map[int]string{
		0: "", 7: text[:7], end: text[:end], end + 1: text[:end+1], 3 * end: text[:3*end],
		3*end + 8: text[:end] + "\n[…]\n" + strings.TrimSpace(text[2*end+8:3*end+8]),
	} {
		for _, piece := range []int{max(length, 1), 8, end} {
			var output boundedOutput

			for rest := text[:length]; rest != ""; {
				part := rest[:min(piece, len(rest))]
				rest = rest[len(part):]

				n, err := output.Write([]byte(part))
				require.NoError(t, err)
				require.Equal(t, len(part), n, "want: all is taken")
			}

			kept := output.String()
			if length <= 3*end {
				require.Equal(t, want, kept, "%d bytes in pieces of %d", length, piece)
			} else {
				require.True(t, strings.HasPrefix(kept, text[:end]+"\n[…]\n"), "want: the beginning of %d bytes in pieces of %d", length, piece)
				require.True(t, strings.HasSuffix(kept, strings.TrimSpace(text[length-end:length])), "want: the end of %d bytes in pieces of %d", length, piece)
				require.Less(t, len(kept), 3*end+16, "want: the output is limited")
			}
		}
	}
}

// TestACheckIsRepeatedWhileTheDeviceIsInUse, and only then.
func TestACheckIsRepeatedWhileTheDeviceIsInUse(t *testing.T) {
	t.Parallel()

	busy := Result{ExitCode: 8, Output: "/dev/loop7 is in use.\n"}

	for name, test := range map[string]struct {
		results []Result
		err     error
		want    error
		runs    int
	}{
		"clean":            {[]Result{{}}, nil, nil, 1},
		"damaged":          {[]Result{{ExitCode: 8, Output: "bad"}}, nil, nil, 1},
		"it says so":       {[]Result{{Output: "is in use."}}, nil, nil, 1},
		"no tool":          {[]Result{busy}, errHand, errHand, 1},
		"once":             {[]Result{busy, {ExitCode: 4}}, nil, nil, 2},
		"mounted and busy": {[]Result{{1, "it is mounted."}, {1, "Device or resource busy"}, {}}, nil, nil, 3},
	} {
		run := &scripted{}
		run.work = func(Command) (Result, error) { return test.results[len(run.commands)-1], test.err }

		result, err := runCheck(t.Context(), run, "/image", Command{Tool: "tool"})
		require.ErrorIs(t, err, test.want, name)
		require.Len(t, run.commands, test.runs, "the runs: %s", name)

		if test.want == nil {
			require.NoError(t, err, name)
			require.Equal(t, test.results[test.runs-1], result, "the result: %s", name)
		} else {
			require.Equal(t, Result{}, result, "the result: %s", name)
			errtext.Require(t, err, "check /image")
		}
	}

	run := &scripted{work: func(Command) (Result, error) { return busy, nil }}
	result, err := runCheck(t.Context(), run, "/image", Command{Tool: "tool"})
	require.ErrorIs(t, err, ErrInUse)
	errtext.Require(t, err, "/dev/loop7 is in use.")
	require.Equal(t, Result{}, result, "the result of a device that stays in use")
	require.GreaterOrEqual(t, len(run.commands), busyAttempts, "want: a device in use is checked again")
}

// TestSuccessOfATool is all there is of some.
func TestSuccessOfATool(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		result Result
		err    error
		code   int
	}{"done": {}, "done, with words": {result: Result{Output: "text"}}, "failed": {result: Result{3, "text"}, code: 3}, "not begun": {err: errHand}} {
		err := runTool(t.Context(), &scripted{work: func(Command) (Result, error) { return test.result, test.err }}, Command{Tool: "tool"})

		if test.code == 0 {
			require.ErrorIs(t, err, test.err, name)
			require.Equal(t, test.err == nil, err == nil, "whether a tool has succeeded: %s", name)

			continue
		}

		var failed *ToolError
		require.ErrorAs(t, err, &failed, name)
		require.Equal(t, &ToolError{Tool: "tool", ExitCode: 3, Detail: "text"}, failed, name)
	}

	for output, want := range map[string]bool{
		"Input/output error": true, "Cannot allocate memory": true, "malloc failed": true, "memory allocation failed": true, "bad": false, "": false,
	} {
		require.Equal(t, want, errors.Is(readError(Command{}, Result{ExitCode: 1, Output: "x: " + output + "."}), ErrReadIncomplete), "whether %q is a read error", output)
		require.NoError(t, readError(Command{}, Result{Output: output}), "a tool that has succeeded")
	}
}

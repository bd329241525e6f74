package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()

	seen := map[string]bool{}

	for _, m := range regressions() {
		require.Falsef(t, seen[m.name], "two regressions have the name %s", m.name)
		require.NotEmptyf(t, m.breaks, "%s does not say what it breaks", m.name)
		require.NotEqualf(t, m.old, m.new, "%s changes nothing", m.name)

		seen[m.name] = true
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()

	for name, each := range map[string]struct {
		output string
		passed bool
		want   verdict
	}{
		"passes": {
			output: `{"Action":"run","Test":"TestA"}` + "\n" + `{"Action":"pass","Test":"TestA"}`, passed: true,
			want: verdict{outcome: survived, ran: 1},
		},
		"an assertion with a message": {
			output: outputOf("    a_test.go:7: \n", "        \tError Trace:\ta_test.go:7\n", "        \tError:      \tShould be true\n",
				"        \tTest:       \tTestA\n", "        \tMessages:   \tthe image is gone\n"),
			want: verdict{outcome: caught, test: "TestA", message: "Should be true the image is gone", ran: 1},
		},
		"a bare assertion": {
			output: outputOf("    a_test.go:7: \n", "        \tError Trace:\ta_test.go:7\n",
				"        \tError:      \tAn error is expected but got nil.\n", "        \tTest:       \tTestA\n"),
			want: verdict{outcome: unclear, test: "TestA", message: "An error is expected but got nil.", ran: 1},
		},
		"a message without an assertion": {
			output: outputOf("    a_test.go:7: waited 5 s for the socket\n", "--- FAIL: TestA (5.00s)\n"),
			want:   verdict{outcome: caught, test: "TestA", message: "waited 5 s for the socket", ran: 1},
		},
		"a timeout": {
			output: outputOf("panic: test timed out after 2m0s\n"),
			want:   verdict{outcome: timedOut, test: "TestA", message: "panic: test timed out after 2m0s", ran: 1},
		},
		"a panic": {
			output: outputOf("panic: runtime error: index out of range\n"),
			want:   verdict{outcome: panicked, test: "TestA", message: "panic: runtime error: index out of range", ran: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := judge(each.output, each.passed)
			require.NoError(t, err)
			require.Equal(t, each.want, got)
		})
	}
}

// outputOf is what go test -json prints of a test that fails.
func outputOf(lines ...string) string {
	events := []event{{Action: "run", Test: "TestA"}}
	for _, line := range lines {
		events = append(events, event{Action: "output", Test: "TestA", Output: line})
	}

	var output strings.Builder

	for _, each := range append(events, event{Action: "fail", Test: "TestA"}) {
		output.WriteString(each.line())
	}

	return output.String()
}

func (e event) line() string {
	// Strings always have a form in JSON.
	encoded, _ := json.Marshal(e) //nolint:errchkjson // see above

	return string(encoded) + "\n"
}

const switchable = `package p

import "fmt"

type box[T any] struct{ held T }

// put replaces.
func (b *box[T]) put(value T, _ int, more ...string) (old T, err error) {
	old, b.held = b.held, value

	return old, nil
}

func count[T any](all []T) int { return len(all) }

func show() { fmt.Println("a") }

func ended() {
	_ = recover()
}
`

func TestMutantsOfAFileAreSwitchedOnAtRunTime(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "p.go"), []byte(switchable), 0o600))

	at := func(name, old, with string) mutant {
		return mutant{name: name, file: "p.go", start: strings.Index(switchable, old), old: old, new: with}
	}

	got, err := newSwitched(root, []mutant{
		at("put", "return old, nil", "return b.held, nil"),
		at("count", "len(all)", "len(all)+1"),
		at("show", `fmt.Println("a")`, `_ = fmt.Println`),
		at("type", "held T", "held, was T"),
		at("signature", "all []T", "each []T"),
		at("recovered", "_ = recover()", ""),
	})
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"put": true, "count": true, "show": true}, got.names)

	text := string(got.files["p.go"])
	require.Contains(t, text, "func (self *box[T]) put(p0 T, p1 int, p2 ...string) (old T, err error) {")
	require.Contains(t, text, "return self.putMutant0(p0, p1, p2...)")
	require.Contains(t, text, "return countMutant0[T](p0)")
	require.Contains(t, text, "showOriginal()")
	require.Contains(t, string(got.files["mutant_selected.go"]), variable)
}

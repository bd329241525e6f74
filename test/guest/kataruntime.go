package guest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/child"
)

// separator is in no argument.
const separator = "\x1f"

// program writes a line with its arguments, and looks in its directory for how to
// go on. What it starts is no child of the test's: its number is written down, and it
// ends with the directory.
const program = `#!/bin/sh
here=${0%/*}
line=
for argument in "$@"; do line="$line$argument` + separator + `"; done
printf '%s\n' "$line" >>"$here/calls"
env >"$here/environment"

mode=$(cat "$here/mode")
case $mode in
hanging | lingering) while [ -e "$here/usage" ]; do sleep 0.1; done & echo $! >"$here/child.new"; mv "$here/child.new" "$here/child" ;;
esac

case $mode/$2 in
failing/*) echo '` + failure + `' >&2; exit 1 ;;
hanging/*) wait ;;
garbage/*) echo '` + garbage + `' ;;
babbling/*) head -c ` + "1048576" + ` /dev/zero | tr '\0' ' '; cat "$here/usage" ;;
unimplemented/resize) echo 'error sending post: url: /direct-volume/resize, status code: 500, response data: ` +
	unimplemented + `' >&2; exit 1 ;;
impossible/*) echo '` + impossibleNumbers + `' ;;
*/stats) cat "$here/usage"; echo ;;
esac
`

// KataRuntime is a program that answers as kata-runtime does. Safe for concurrent
// use.
type KataRuntime struct {
	// Path is the program's.
	Path string

	dir string
}

// NewKataRuntime makes the program, in mode OK with Usage; it goes with the test.
func NewKataRuntime(tb testing.TB) *KataRuntime {
	tb.Helper()

	dir := tb.TempDir()
	made := &KataRuntime{Path: filepath.Join(dir, "kata-runtime"), dir: dir}

	// By a child: while it is open for writing here, whatever is forked meanwhile has
	// it open, too, and the kernel refuses to run it.
	install := child.Command(tb, "sh", "-c", `cat >"$0" && chmod 0700 "$0"`, made.Path)
	install.Stdin = strings.NewReader(program)
	output, err := install.CombinedOutput()
	require.NoError(tb, err, "%s", output)

	made.Switch(tb, OK)
	made.SetUsage(tb, Usage())

	return made
}

// Switch sets how calls from now on are answered.
func (k *KataRuntime) Switch(tb testing.TB, mode Mode) {
	tb.Helper()

	k.put(tb, "mode", string(mode))
}

// SetUsage sets what the guest says of its volume.
func (k *KataRuntime) SetUsage(tb testing.TB, usage mount.Usage) {
	tb.Helper()

	k.put(tb, "usage", encodeUsage(tb, usage))
}

// put replaces a file at once: the program may be reading it.
func (k *KataRuntime) put(tb testing.TB, name, content string) {
	tb.Helper()

	path := filepath.Join(k.dir, name)
	require.NoError(tb, os.WriteFile(path+".new", []byte(content), 0o600))
	require.NoError(tb, os.Rename(path+".new", path))
}

// Calls returns the arguments of each call so far.
func (k *KataRuntime) Calls(tb testing.TB) [][]string {
	tb.Helper()

	written, err := os.ReadFile(filepath.Join(k.dir, "calls"))
	if os.IsNotExist(err) {
		return nil
	}

	require.NoError(tb, err)

	var calls [][]string
	for line := range strings.Lines(string(written)) {
		calls = append(calls, strings.Split(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), separator), separator))
	}

	return calls
}

// Environment returns what the last call had, a line for each variable.
func (k *KataRuntime) Environment(tb testing.TB) string {
	tb.Helper()

	written, err := os.ReadFile(filepath.Join(k.dir, "environment"))
	require.NoError(tb, err)

	return string(written)
}

// Child returns the process that the last call in mode Hanging or Lingering has
// started, and 0 before one has.
func (k *KataRuntime) Child(tb testing.TB) int {
	tb.Helper()

	written, err := os.ReadFile(filepath.Join(k.dir, "child"))
	if os.IsNotExist(err) {
		return 0
	}

	require.NoError(tb, err)

	pid, err := strconv.Atoi(strings.TrimSpace(string(written)))
	require.NoError(tb, err)

	return pid
}

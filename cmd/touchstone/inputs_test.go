package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// inputRow is a row of docs/ctl.md: a command, what it says, and its exit code.
var inputRow = regexp.MustCompile("(?m)^\\| `touchstone (.*)` \\| (?:`(.*)`)? ?\\| ([012]) \\|$")

// TestWrongInputs are answered as docs/ctl.md says.
func TestWrongInputs(t *testing.T) {
	namespace.NeedRoot(t)

	page, err := os.ReadFile("../../docs/ctl.md")
	require.NoError(t, err)

	mnt := t.TempDir()
	d := harness.Start(t, func(c *driver.Config) { c.NodeID, c.AllowPaths = "n1", []string{mnt} })
	t.Setenv("TOUCHSTONE_ENDPOINT", d.Config.Endpoint)

	must := func(line string) {
		code, out, problems := touchstone(strings.Fields(strings.ReplaceAll(line, "/mnt", mnt))...)
		require.Equal(t, exitGood, code, "want: %s succeeds: %s%s", line, out, problems)
	}

	require.NoError(t, os.Mkdir(filepath.Join(mnt, "full"), 0o700))
	put(t, filepath.Join(mnt, "full", "file"), "kept")
	must("ctl volume mount data /mnt/data --create --size 300Mi --fs xfs")
	must("ctl volume create raw --size 20M --block")
	must("ctl snapshot create raw monday")
	must("ctl group create data raw both")

	rows := inputRow.FindAllStringSubmatch(strings.ReplaceAll(string(page), `\|`, "|"), -1)
	require.GreaterOrEqual(t, len(rows), 80, "want: the page has the table")

	for _, row := range rows {
		command, says := strings.ReplaceAll(row[1], "/mnt", mnt), strings.ReplaceAll(row[2], "/mnt", mnt)

		args := strings.Fields(command)
		for i := range args {
			args[i] = strings.Trim(args[i], `"`)
		}

		code, out, problems := touchstone(args...)
		require.Equal(t, row[3], strconv.Itoa(code), "want: the code of %s: %s%s", row[1], out, problems)
		require.Contains(t, out+problems, says, "want: the message of %s", row[1])
	}

	must("ctl volume umount data")
	must("ctl group delete both")
	must("ctl snapshot delete monday")
	must("ctl volume delete data raw")
}

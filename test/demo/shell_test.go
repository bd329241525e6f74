package demo_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
)

// TestShellTestFindsAWrongCO: the example runs with a CO that repeats its call, and with one that
// takes another name instead.
func TestShellTestFindsAWrongCO(t *testing.T) {
	script, err := filepath.Abs("../../examples/testing/lost-response.sh")
	require.NoError(t, err)

	for name, test := range map[string]struct {
		co   string
		pass bool
	}{
		"repeats": {`touchstone ctl volume create "$1" --size 64Mi`, true},
		"renames": {`touchstone ctl volume create "$1-$$" --size 64Mi`, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Symlink(binary, filepath.Join(dir, "touchstone")))

			co := filepath.Join(dir, "co")
			require.NoError(t, os.WriteFile(co, []byte("#!/bin/sh\n"+test.co+"\n"), 0o700))

			command := child.Command(t, script, co)
			command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+dir)

			output, err := command.CombinedOutput()
			if test.pass {
				require.NoError(t, err, "%s", output)
				require.Contains(t, string(output), "passed")
			} else {
				require.Error(t, err, "%s", output)
				require.Contains(t, string(output), "not one volume")
			}
		})
	}
}

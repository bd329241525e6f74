package ctl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// examineIfAsked runs the test binary as the child of `ctl doctor`.
func examineIfAsked() {
	if !slices.Equal(os.Args[1:], []string{"ctl", "doctor", "--examine"}) {
		return
	}

	command := ctl.NewCommand()
	command.SetArgs(os.Args[2:])

	err := command.ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}

	os.Exit(ctl.ExitCode(err))
}

// controllerMachine is a controller's machine without problems.
func controllerMachine(t *testing.T) (root string, flags []string) {
	t.Helper()

	root = t.TempDir()
	for _, name := range []string{"state", "pool"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, name), 0o700))
	}

	return root, []string{
		"--mode=controller", "--endpoint=unix://" + filepath.Join(root, "csi.sock"),
		"--state-dir=" + filepath.Join(root, "state"), "--pool=default=" + filepath.Join(root, "pool"),
	}
}

func TestDoctorFindsAHealthyMachine(t *testing.T) {
	root, flags := controllerMachine(t)

	out, err := run(t, append([]string{"doctor", "--without-driver", "state", "kernel", "socket"}, flags...)...)
	require.NoError(t, err)
	require.Zero(t, ctl.ExitCode(err), "want: a healthy machine exits with 0")
	require.NotContains(t, out, "What to do")

	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 4, "want: the doctor prints one line for each check")
	require.Regexp(t, `^CHECK +OBJECT +VERDICT +SEEN$`, lines[0])
	require.Regexp(t, `^kernel +- +skipped +mode controller`, lines[1])
	require.Regexp(t, `^state +- +ok +`+filepath.Join(root, "state")+` is writable`, lines[2])
	require.Regexp(t, `^socket +- +skipped +no driver is expected`, lines[3])
}

func TestDoctorPrintsRemedies(t *testing.T) {
	root, flags := controllerMachine(t)
	require.NoError(t, os.Remove(filepath.Join(root, "pool")))

	out, err := run(t, append([]string{"doctor", "pool", "socket"}, flags...)...)
	errtext.Require(t, err, "1 of 2 checks")
	require.Equal(t, 1, ctl.ExitCode(err), "want: a problem exits with 1")
	require.Regexp(t, `(?m)^pool +default +warning +`+filepath.Join(root, "pool")+` is not there`, out)
	require.Regexp(t, `(?m)^socket +- +problem +there is no `+filepath.Join(root, "csi.sock"), out)
	require.Regexp(t, `(?s)\nWhat to do:\n  socket: start the driver.*\n  pool default: the driver makes it`, out, "the worst first")

	// A warning is printed, and does not change the exit code.
	_, err = run(t, append([]string{"doctor", "pool"}, flags...)...)
	require.NoError(t, err)
}

func TestDoctorPrintsJSON(t *testing.T) {
	root, flags := controllerMachine(t)

	out, err := run(t, append([]string{"doctor", "-o", "json"}, flags...)...)
	require.Equal(t, 1, ctl.ExitCode(err), "want: a problem exits with 1")

	var document struct {
		Verdict  string    `json:"verdict"`
		At       time.Time `json:"at"`
		Findings []struct {
			Check   string `json:"check"`
			Object  string `json:"object"`
			Verdict string `json:"verdict"`
			Seen    string `json:"seen"`
			Cure    string `json:"cure"`
		} `json:"findings"`
	}

	require.NoError(t, json.Unmarshal([]byte(out), &document))
	require.Equal(t, "problem", document.Verdict)
	require.WithinDuration(t, time.Now(), document.At, time.Hour)

	var checks []string

	for _, each := range document.Findings {
		checks = append(checks, each.Check)

		switch each.Check {
		case "pool":
			require.Equal(t, "default", each.Object)
			require.Equal(t, "ok", each.Verdict)
			require.Contains(t, each.Seen, root)
		case "socket":
			require.Empty(t, each.Object, "want: the finding of the socket has no object")
			require.Equal(t, "problem", each.Verdict)
			require.NotEmpty(t, each.Cure, "want: each problem says what to do")
		}
	}

	require.Equal(t, doctor.Names(), slices.Compact(checks))

	// A cure after the document would not be YAML.
	out, err = run(t, append([]string{"doctor", "-o", "yaml"}, flags...)...)
	require.Equal(t, 1, ctl.ExitCode(err), "want: a problem exits with 1")
	require.NoError(t, yaml.UnmarshalStrict([]byte(out), &map[string]any{}))
}

// Settings get into the child, too.
func TestDoctorTakesTheDriversFlags(t *testing.T) {
	_, endpoint := startFake(t)
	_, flags := controllerMachine(t)
	flags = append(flags, "--endpoint", endpoint, "--driver-name=fake.example.org")

	out, err := run(t, append([]string{"doctor", "socket"}, flags...)...)
	require.Equal(t, 1, ctl.ExitCode(err), "want: a problem exits with 1")
	require.Contains(t, out, "not ready")

	t.Setenv("TOUCHSTONE_ENDPOINT", endpoint)

	out, err = run(t, "doctor", "socket", "--mode=controller")
	require.Equal(t, 1, ctl.ExitCode(err), "want: a problem exits with 1")
	require.Contains(t, out, "served by fake.example.org, not by csi.touchstone.dev")
}

func TestDoctorRefusesBadArguments(t *testing.T) {
	_, flags := controllerMachine(t)

	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"check":    {[]string{"pools"}, "pool-attach"},
		"mode":     {[]string{"--mode=both"}, "both"},
		"pool":     {[]string{"--pool=/srv"}, "NAME=DIRECTORY"},
		"twice":    {[]string{"--pool=default=/srv"}, `"default" twice`},
		"relative": {[]string{"--state-dir=state"}, "absolute"},
		"flag":     {[]string{"--no-driver"}, "--no-driver"},
		"time":     {[]string{"--timeout=1ns"}, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(append([]string{"doctor"}, flags...), test.args...)...)
			errtext.Require(t, err, test.says)
			require.Equal(t, 2, ctl.ExitCode(err), "want: wrong arguments exit with 2")
			require.Empty(t, out, "want: wrong arguments print nothing on standard output")
		})
	}
}

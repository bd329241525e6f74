package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

var errFull = errors.New("no space left on device")

// full is an output that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestUnprintedOutputFailsTheCommand: a command fails if its answer was not printed.
func TestUnprintedOutputFailsTheCommand(t *testing.T) {
	t.Parallel()

	s := &stopped{dir: t.TempDir()}
	endpoint := "unix://" + filepath.Join(s.dir, "csi.sock")

	s.during(t, func(client *csiclient.Client) {
		createVolume(t, client, "data", nil)
		failToPrint(t, "ctl", "volume", "list", "--endpoint", endpoint)
	}, simulated...)

	for _, args := range [][]string{
		{"--help"},
		{"version"},
		{"--version"},
		{"state"},
		{"ctl"},
		{"ctl", "volume"},
		append([]string{"state", "verify"}, s.flags()...),
		append([]string{"state", "verify", "--json"}, s.flags()...),
		append([]string{"state", "dump"}, s.flags()...),
		append([]string{"state", "repair"}, s.flags()...),
		append([]string{"state", "forget-pool", "default"}, s.flags()...),
	} {
		failToPrint(t, args...)
	}
}

func failToPrint(t *testing.T, args ...string) {
	t.Helper()

	var problems bytes.Buffer

	code := run(t.Context(), args, full{}, &problems)
	require.NotZero(t, code, "want: touchstone %q fails", args)
	require.Contains(t, problems.String(), errFull.Error(), "touchstone %q", args)
}

// TestOutputHasTheDescriptorOfItsFile: the demo asks for the descriptor of its output.
func TestOutputHasTheDescriptorOfItsFile(t *testing.T) {
	t.Parallel()

	require.Equal(t, os.Stderr.Fd(), (&output{Writer: os.Stderr}).Fd(), "want: the descriptor of the file")
	require.Equal(t, ^uintptr(0), (&output{Writer: io.Discard}).Fd(), "want: no descriptor")
}

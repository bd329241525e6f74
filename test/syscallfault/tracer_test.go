package syscallfault_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// TestACallFailsOnce fails the second unlink of a tool, and nothing else.
func TestACallFailsOnce(t *testing.T) {
	directory := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), nil, 0o600))
	}

	var said bytes.Buffer

	command := exec.Command("sh", "-c", "for i in a b c; do rm $i; done; exit 7")
	command.Dir, command.Stderr = directory, &said

	var unlinked []string

	tracer, err := syscallfault.Start(command, func(call *syscallfault.Call) syscall.Errno {
		if call.Name != "unlinkat" {
			return 0
		}

		unlinked = append(unlinked, call.Tool+" "+call.Path)
		if filepath.Base(call.Path) == "b" {
			return unix.EBUSY
		}

		return 0
	})
	require.NoError(t, err)
	errtext.Require(t, child.Wait(t, command), "exit status 7")
	await.Return(t, tracer.Wait, "the tracer to end with the command")

	require.Equal(t, []string{
		"rm " + filepath.Join(directory, "a"), "rm " + filepath.Join(directory, "b"), "rm " + filepath.Join(directory, "c"),
	}, unlinked)
	require.Contains(t, said.String(), "busy")
	require.NoFileExists(t, filepath.Join(directory, "a"))
	require.FileExists(t, filepath.Join(directory, "b"))
	require.NoFileExists(t, filepath.Join(directory, "c"))
}

func TestStartReportsAMissingProgram(t *testing.T) {
	command := exec.Command("/nonexistent/program")
	tracer, err := syscallfault.Start(command, func(*syscallfault.Call) syscall.Errno { return 0 })
	require.NoError(t, err)
	require.Error(t, child.Wait(t, command), "the exit of a program that is not there")
	await.Return(t, tracer.Wait, "the tracer to end with the command")
}

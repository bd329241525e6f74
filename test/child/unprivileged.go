package child

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// UnprivilegedID is the user and group of a process without any privilege.
	UnprivilegedID = 65534
	// unprivilegedVariable has the directory of such a process.
	unprivilegedVariable = "TOUCHSTONE_TEST_UNPRIVILEGED_IN"
)

// Unprivileged returns a command, and its directory, that runs one test of this binary as a user
// without any privilege, who may write in the directory only. It is removed with the test.
func Unprivileged(tb testing.TB, limit time.Duration, test string) (command *exec.Cmd, dir string) {
	tb.Helper()

	// Not tb.TempDir, whose parents are closed to others.
	dir, err := os.MkdirTemp("/tmp", "touchstone-unprivileged-") //nolint:usetesting // see above
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, os.RemoveAll(dir)) })
	require.NoError(tb, os.Chown(dir, UnprivilegedID, UnprivilegedID))

	// The directory of the binary is closed to others, too.
	binary := filepath.Join(dir, "test")
	own, err := os.Executable()
	require.NoError(tb, err)
	// By a process of its own: what another test is forking just now would have the copy open for
	// writing, and it could not be started.
	require.NoError(tb, Command(tb, "cp", own, binary).Run())
	require.NoError(tb, os.Chmod(binary, 0o755))

	command = CommandWithin(tb, limit, binary, "-test.run=^"+test+"$", "-test.v")
	command.Dir = dir
	command.Env = append(os.Environ(), unprivilegedVariable+"="+dir, "HOME="+dir, "TMPDIR="+dir)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: UnprivilegedID, Gid: UnprivilegedID}}

	return command, dir
}

// UnprivilegedIn returns the directory of the process that Unprivileged has started, "" in others.
func UnprivilegedIn() string { return os.Getenv(unprivilegedVariable) }

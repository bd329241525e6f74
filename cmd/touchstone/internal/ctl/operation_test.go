package ctl_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestOperationsAreListed(t *testing.T) {
	driver, endpoint := startFake(t)

	task := driver.tasks.Start("snapshot", "snapshot-1", "one", gibi)
	defer task.End(nil)

	task.Set(gibi/4, gibi)

	out, err := run(t, "operations", "ls", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Regexp(t, `\nsnapshot +one +256 MiB of 1\.0 GiB \(25 %\) +\d+s\n$`, out)
}

func TestOperationsAreAwaitedAndCancelled(t *testing.T) {
	t.Parallel()

	driver, endpoint := startNamed(t)

	// The copy of data has ended before the command begins, that of monday ends while it waits.
	task := driver.tasks.Start("snapshot", "snapshot-1", "monday", gibi)
	ended := make(chan error, 1)

	go func() {
		out, err := run(t, "operation", "wait", "data", "monday", "--endpoint", endpoint)
		if err == nil && out != "monday is complete\ndata is complete\n" {
			err = errors.New(out)
		}

		ended <- err
	}()

	require.Eventually(t, func() bool { return len(requests[*emptypb.Empty](driver)) > 1 }, time.Minute, time.Millisecond, "want: it waits")
	task.End(nil)
	require.NoError(t, await.Receive(t, ended, "the wait"))

	// A snapshot that a CO may know already is deleted, too.
	task = driver.tasks.Start("snapshot", "snapshot-7", "sunday", gibi)
	task.OnCancel(func(cause error) { go task.End(cause) })

	out, err := run(t, "operation", "cancel", "sunday", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Equal(t, "cancelled the snapshot of sunday\n", out)
	requireAsked(t, driver, &csi.DeleteSnapshotRequest{SnapshotId: "snapshot-7"})

	for _, verb := range []string{"wait", "cancel"} {
		_, err = run(t, "operation", verb, "sunday", "--endpoint", endpoint)
		errtext.Require(t, err, "sunday: no such copy is running")
		require.Equal(t, 1, ctl.ExitCode(err), "want: the exit code is that of a failure")
	}

	task = driver.tasks.Start("restore", "volume-8", "lost", gibi)

	_, err = run(t, "operation", "wait", "--timeout", "1s", "--endpoint", endpoint)
	errtext.Require(t, err, "restore of lost: context deadline exceeded; the driver continues to copy")

	go func() { ended <- runError(t, "operation", "wait", "--endpoint", endpoint) }()

	before := len(requests[*emptypb.Empty](driver))
	require.Eventually(t, func() bool { return len(requests[*emptypb.Empty](driver)) > before+1 }, time.Minute, time.Millisecond, "want: it waits")
	task.End(nil)
	errtext.Require(t, await.Receive(t, ended, "the wait"), "the copy has failed, or was cancelled")
}

// TestInterruptedWaitNamesTheNextCommands, and the copy continues.
func TestInterruptedWaitNamesTheNextCommands(t *testing.T) {
	driver, endpoint := startFake(t)

	task := driver.tasks.Start("restore", "volume-8", "large", gibi)
	defer task.End(nil)

	ended := make(chan error, 1)

	go func() { ended <- runError(t, "operation", "wait", "large", "--endpoint", endpoint) }()

	require.Eventually(t, func() bool { return len(requests[*emptypb.Empty](driver)) > 1 }, time.Minute, time.Millisecond, "want: it waits")
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGINT))

	err := await.Receive(t, ended, "the interrupted wait")
	errtext.Require(t, err, "restore of large: context canceled; the driver continues to copy: touchstone ctl operation list shows how far it is, "+
		"operation wait large waits for it, operation cancel large ends it")
	require.Equal(t, 1, ctl.ExitCode(err), "want: the exit code is that of a failure")
}

func runError(t *testing.T, args ...string) error {
	t.Helper()

	_, err := run(t, args...)

	return err
}

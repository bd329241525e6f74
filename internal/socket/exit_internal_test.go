package socket

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestEndedProcessLeavesItsSocket has a process in each state: only one that has ended, or can only
// end, leaves its sockets.
func TestEndedProcessLeavesItsSocket(t *testing.T) {
	t.Parallel()

	start := func() *exec.Cmd {
		command := exec.CommandContext(t.Context(), "sleep", "600")
		require.NoError(t, command.Start())
		t.Cleanup(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		})

		return command
	}

	live, stopped, zombie, reaped := start(), start(), start(), start()
	require.NoError(t, unix.Kill(stopped.Process.Pid, unix.SIGSTOP))
	require.NoError(t, unix.Kill(zombie.Process.Pid, unix.SIGKILL))
	require.NoError(t, reaped.Process.Kill())
	require.Error(t, reaped.Wait(), "want: a killed process fails")

	for name, test := range map[string]struct {
		pid  int
		want bool
	}{
		"no process":           {0, false},
		"no number":            {-1, false},
		"this one":             {os.Getpid(), false},
		"a live one":           {live.Process.Pid, false},
		"a stopped one":        {stopped.Process.Pid, false},
		"one that is a zombie": {zombie.Process.Pid, true},
		"one that is gone":     {reaped.Process.Pid, true},
		"none of that number":  {math.MaxInt32, true},
	} {
		began := time.Now()
		require.Equal(t, test.want, ended(t.Context(), int32(test.pid)), name)
		require.Less(t, time.Since(began), exitTimeout, "want: %s is known at once", name)
	}

	require.Eventually(t, func() bool { return exiting(int32(zombie.Process.Pid)) }, time.Minute, time.Millisecond, "want: a zombie can only end")
	require.False(t, exiting(int32(live.Process.Pid)), "want: a live process can do more than end")
	require.True(t, exiting(int32(reaped.Process.Pid)), "want: a process that is gone has ended")
}

// TestWhatOfAProcessSaysThatItIsExiting reads its status.
func TestWhatOfAProcessSaysThatItIsExiting(t *testing.T) {
	t.Parallel()

	const idle = "Name:\tZ\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\tffffffffffffffff\n"

	for name, test := range map[string]struct {
		from, to string
		want     bool
	}{
		"a live process":               {"", "", false},
		"a zombie":                     {"S (sleeping)", "Z (zombie)", true},
		"a dead one":                   {"S (sleeping)", "X (dead)", true},
		"one that is traced":           {"S (sleeping)", "t (tracing stop)", false},
		"a thread to be killed":        {"SigPnd:\t0000000000000000", "SigPnd:\t0000000000000100", true},
		"a process to be killed":       {"ShdPnd:\t0000000000000000", "ShdPnd:\t0000000000004100", true},
		"the signals beside SIGKILL":   {"ShdPnd:\t0000000000000000", "ShdPnd:\tfffffffffffffeff", false},
		"pending signals of no number": {"ShdPnd:\t0000000000000000", "ShdPnd:\tffffffffffffffffff", false},
	} {
		require.Equal(t, test.want, isExitingStatus(strings.Replace(idle, test.from, test.to, 1)), name)
	}

	require.False(t, isExitingStatus(""), "an empty status")
}

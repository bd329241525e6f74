package kata_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/guest"
)

// newProgram makes a kata-runtime, and returns it with a way through it.
func newProgram(t *testing.T) (*guest.KataRuntime, *kata.Guest) {
	t.Helper()

	program := guest.NewKataRuntime(t)

	return program, kata.NewGuest(kata.GuestConfig{
		KataRuntime: program.Path, ShimRoots: []string{t.TempDir()}, Timeout: time.Minute,
	})
}

func TestKataRuntimeGetsItsArguments(t *testing.T) {
	t.Parallel()

	program, asked := newProgram(t)
	entry := taken()
	entry.TargetPath = "/with space//and $HOME/mount/"

	usage, err := asked.Stats(t.Context(), entry)
	require.NoError(t, err)
	require.Equal(t, guest.Usage(), usage)
	require.NoError(t, asked.Resize(t.Context(), entry, 3<<30))
	require.Equal(t, [][]string{
		{"direct-volume", "stats", "--volume-path", "/with space/and $HOME/mount"},
		{"direct-volume", "resize", "--volume-path", "/with space/and $HOME/mount", "--size", "3221225472"},
	}, program.Calls(t))
}

func TestKataRuntimeFailuresAreDistinguished(t *testing.T) {
	t.Parallel()

	for mode, want := range map[guest.Mode]struct{ stats, resize error }{
		guest.Unimplemented: {nil, kata.ErrUnimplemented},
		guest.Failing:       {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Garbage:       {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Babbling:      {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Impossible:    {kata.ErrNoAnswer, kata.ErrNoAnswer},
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()

			program, asked := newProgram(t)
			program.Switch(t, mode)

			_, err := asked.Stats(t.Context(), taken())
			failedAs(t, err, want.stats)
			failedAs(t, asked.Resize(t.Context(), taken(), 1<<30), want.resize)

			program.Switch(t, guest.OK)
			require.NoError(t, asked.Resize(t.Context(), taken(), 1<<30))
		})
	}
}

func TestMissingKataRuntimeIsNamed(t *testing.T) {
	t.Parallel()

	asked := kata.NewGuest(kata.GuestConfig{KataRuntime: filepath.Join(t.TempDir(), "kata-runtime")})

	_, err := asked.Stats(t.Context(), taken())
	failedAs(t, err, kata.ErrNoAnswer)
	errtext.Require(t, err, "no such file or directory")
	errtext.Require(t, err, "--kata-runtime")
}

func TestHangingKataRuntimeIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()

	program, asked := newProgram(t)
	program.Switch(t, guest.Hanging)

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)

	go func() {
		_, err := asked.Stats(ctx, taken())
		failed <- err
	}()

	require.Eventually(t, func() bool { return program.Child(t) != 0 }, time.Minute, time.Millisecond, "want: kata-runtime has a child")

	child := program.Child(t)
	require.True(t, runs(t, child), "want: the child runs")
	cancel()

	err := await.Receive(t, failed, "Stats to return after its context ended")
	failedAs(t, err, kata.ErrNoAnswer)
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return !runs(t, child) }, time.Minute, time.Millisecond, "want: the child of kata-runtime is killed")
}

func TestOrphansOfKataRuntimeAreNotAwaited(t *testing.T) {
	t.Parallel()

	program, asked := newProgram(t)
	program.Switch(t, guest.Lingering)

	usage, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
	require.Equal(t, guest.Usage(), usage)

	child := program.Child(t)
	require.True(t, runs(t, child), "it was not waited for")
	require.NoError(t, unix.Kill(child, unix.SIGKILL))
}

// runs says whether a process is there and is more than a number to be asked for.
func runs(t *testing.T, pid int) bool {
	t.Helper()

	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false
	}

	require.NoError(t, err)

	_, rest, found := strings.Cut(string(stat), ") ")
	require.True(t, found, "want: /proc has the state of the process")

	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestHangingKataRuntimeTimesOut(t *testing.T) {
	t.Parallel()

	program := guest.NewKataRuntime(t)
	program.Switch(t, guest.Hanging)

	asked := kata.NewGuest(kata.GuestConfig{KataRuntime: program.Path, Timeout: soon})

	_, err := asked.Stats(t.Context(), taken())
	failedAs(t, err, kata.ErrNoAnswer)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	errtext.Require(t, err, "within 300ms")
	failedAs(t, asked.Resize(t.Context(), taken(), 1<<30), kata.ErrNoAnswer)
}

func TestKataRuntimeInheritsNoEnvironment(t *testing.T) {
	t.Setenv("SECRET", "secret")

	program, asked := newProgram(t)

	_, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
	require.Contains(t, program.Environment(t), "LC_ALL=C\n")
	require.NotContains(t, program.Environment(t), "secret")
}

package child_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAChildOutlivesTheThreadOfItsStarter(t *testing.T) {
	t.Parallel()

	command := child.Command(t, "cat")
	input, err := command.StdinPipe()
	require.NoError(t, err)

	output, err := command.StdoutPipe()
	require.NoError(t, err)

	thread := make(chan int, 1)
	started := make(chan error, 1)

	go onDyingThread(func() {
		thread <- unix.Gettid()

		started <- child.Start(command)
	})

	tid := await.Receive(t, thread, "the thread's id")

	require.NoError(t, await.Receive(t, started, "the child to be started"))
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))

		return os.IsNotExist(err)
	}, time.Minute, time.Millisecond, "the starter's thread is still there")

	_, err = input.Write([]byte("alive\n"))
	require.NoError(t, err)

	said := make([]byte, len("alive\n"))
	_, err = output.Read(said)
	require.NoError(t, err)
	require.Equal(t, "alive\n", string(said))

	require.NoError(t, input.Close())
	require.NoError(t, child.Wait(t, command))
}

// onDyingThread is run in a goroutine of its own, and its thread ends with it.
func onDyingThread(do func()) {
	runtime.LockOSThread()

	if unix.Gettid() != os.Getpid() {
		do()

		return
	}

	// The main thread never ends; while it is taken, the next one gets another.
	done := make(chan struct{})

	go func() {
		defer close(done)

		onDyingThread(do)
	}()

	<-done
}

func TestStartReportsTheFailure(t *testing.T) {
	t.Parallel()

	require.ErrorIs(t, child.Start(exec.Command("/nonexistent/tool")), os.ErrNotExist)
}

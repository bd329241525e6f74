package cgroup_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
)

// fakeQueue is a sysfs of one device that takes any value.
func fakeQueue(t *testing.T, readAhead, schedulers string) (sysBlock, queue string) {
	t.Helper()

	sysBlock = t.TempDir()
	queue = filepath.Join(sysBlock, "loop5", "queue")
	require.NoError(t, os.MkdirAll(queue, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(queue, "read_ahead_kb"), []byte(readAhead+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(queue, "scheduler"), []byte(schedulers+"\n"), 0o600))

	return sysBlock, queue
}

func TestQueueOfALoopDevice(t *testing.T) {
	device := filepath.Base(newLoop(t).Path)
	queues := cgroup.NewQueues(cgroup.DefaultSysBlock)

	before, err := queues.Get(device)
	require.NoError(t, err)

	other := cgroup.Queue{ReadAheadKiB: before.ReadAheadKiB + 64, Scheduler: "none"}
	if before.Scheduler == "none" {
		other.Scheduler = "mq-deadline"
	}

	if err := queues.CheckScheduler(other.Scheduler); err != nil {
		t.Skip(err)
	}

	returned, err := queues.Set(device, other)
	require.NoError(t, err)
	require.Equal(t, before, returned)

	now, err := queues.Get(device)
	require.NoError(t, err)
	require.Equal(t, other, now)

	_, err = queues.Set(device, cgroup.Unchanged())
	require.NoError(t, err)

	now, err = queues.Get(device)
	require.NoError(t, err)
	require.Equal(t, other, now)

	// What fails in its second half is taken back: 1 KiB is no multiple of a
	// page.
	_, err = queues.Set(device, cgroup.Queue{ReadAheadKiB: 1, Scheduler: before.Scheduler})
	require.ErrorIs(t, err, cgroup.ErrInfeasible)

	now, err = queues.Get(device)
	require.NoError(t, err)
	require.Equal(t, other, now)

	_, err = queues.Set(device, before)
	require.NoError(t, err)
}

func TestQueueRefusesWhatTheKernelLacks(t *testing.T) {
	t.Parallel()

	sysBlock, queue := fakeQueue(t, "128", "[none] mq-deadline")
	queues := cgroup.NewQueues(sysBlock)

	_, err := queues.Set("loop5", cgroup.Queue{ReadAheadKiB: 256, Scheduler: "bfq"})
	require.ErrorIs(t, err, cgroup.ErrInfeasible)
	require.ErrorContains(t, err, "bfq")
	require.ErrorContains(t, err, "none, mq-deadline")

	text, err := os.ReadFile(filepath.Join(queue, "read_ahead_kb"))
	require.NoError(t, err)
	require.Equal(t, "128\n", string(text))

	require.NoError(t, queues.CheckScheduler("mq-deadline"))
	require.NoError(t, queues.CheckScheduler("none"))
	require.ErrorIs(t, queues.CheckScheduler("bfq"), cgroup.ErrInfeasible)
	require.ErrorIs(t, cgroup.NewQueues(t.TempDir()).CheckScheduler("none"), cgroup.ErrInfeasible)
	require.ErrorIs(t, cgroup.NewQueues("/nowhere").CheckScheduler("none"), cgroup.ErrInfeasible)
}

func TestQueueWithoutSchedulers(t *testing.T) {
	t.Parallel()

	sysBlock, _ := fakeQueue(t, "0", "none")
	now, err := cgroup.NewQueues(sysBlock).Get("loop5")
	require.NoError(t, err)
	require.Equal(t, cgroup.Queue{ReadAheadKiB: 0, Scheduler: "none"}, now)
}

func TestQueueOfNoDevice(t *testing.T) {
	t.Parallel()

	queues := cgroup.NewQueues(t.TempDir())
	_, err := queues.Get("loop5")
	require.ErrorIs(t, err, fs.ErrNotExist)

	_, err = queues.Set("loop5", cgroup.Queue{ReadAheadKiB: 4})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestQueueTakesBack has a kernel that does not keep what is written to it: a
// scheduler is not in the fake's brackets.
func TestQueueTakesBack(t *testing.T) {
	t.Parallel()

	sysBlock, queue := fakeQueue(t, "128", "[none] mq-deadline")
	require.NoError(t, os.Remove(filepath.Join(queue, "read_ahead_kb")))
	require.NoError(t, os.Symlink("/proc/version", filepath.Join(queue, "read_ahead_kb")))

	_, err := cgroup.NewQueues(sysBlock).Set("loop5", cgroup.Queue{ReadAheadKiB: 4, Scheduler: "mq-deadline"})
	require.Error(t, err, "Set where read_ahead_kb cannot be written")

	text, err := os.ReadFile(filepath.Join(queue, "scheduler"))
	require.NoError(t, err)
	require.Equal(t, "[none] mq-deadline\n", string(text))
}

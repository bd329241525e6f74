package queue_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// fakeQueue makes a sysfs with one device, whose attributes accept any value.
func fakeQueue(t *testing.T, readAhead, schedulers string) (sysBlock, directory string) {
	t.Helper()

	sysBlock = t.TempDir()
	directory = filepath.Join(sysBlock, "loop5", "queue")
	require.NoError(t, os.MkdirAll(directory, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(directory, "read_ahead_kb"), []byte(readAhead+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(directory, "scheduler"), []byte(schedulers+"\n"), 0o600))

	return sysBlock, directory
}

func TestAttributesOfALoopDeviceAreSet(t *testing.T) {
	device := newLoop(t)
	queues := queue.New(queue.DefaultSysBlock)

	before, err := queues.Get(device)
	require.NoError(t, err)

	other := queue.Attributes{ReadAheadKiB: before.ReadAheadKiB + 64, Scheduler: "none"}
	if before.Scheduler == "none" {
		other.Scheduler = "mq-deadline"
	}

	if err := queues.CheckScheduler(other.Scheduler); err != nil {
		t.Skip(err)
	}

	require.NoError(t, queues.Set(device, other))

	now, err := queues.Get(device)
	require.NoError(t, err)
	require.Equal(t, other, now)

	err = queues.Set(device, queue.Unchanged())
	require.NoError(t, err)

	now, err = queues.Get(device)
	require.NoError(t, err)
	require.Equal(t, other, now)

	// The second write fails, since 1 KiB is no multiple of a page: the first one is reverted.
	err = queues.Set(device, queue.Attributes{ReadAheadKiB: 1, Scheduler: before.Scheduler})
	require.ErrorIs(t, err, queue.ErrUnsupported)

	now, err = queues.Get(device)
	require.NoError(t, err)
	require.Equal(t, other, now)

	err = queues.Set(device, before)
	require.NoError(t, err)
}

func TestSetRefusesASchedulerTheKernelLacks(t *testing.T) {
	t.Parallel()

	sysBlock, directory := fakeQueue(t, "128", "[none] mq-deadline")
	queues := queue.New(sysBlock)

	err := queues.Set("loop5", queue.Attributes{ReadAheadKiB: 256, Scheduler: "bfq"})
	require.ErrorIs(t, err, queue.ErrUnsupported)
	errtext.Require(t, err, "bfq")
	errtext.Require(t, err, "none, mq-deadline")

	text, err := os.ReadFile(filepath.Join(directory, "read_ahead_kb"))
	require.NoError(t, err)
	require.Equal(t, "128\n", string(text))

	require.NoError(t, queues.CheckScheduler("mq-deadline"))
	require.NoError(t, queues.CheckScheduler("none"))
	require.ErrorIs(t, queues.CheckScheduler("bfq"), queue.ErrUnsupported)
	require.ErrorIs(t, queue.New(t.TempDir()).CheckScheduler("none"), queue.ErrUnsupported)
	require.ErrorIs(t, queue.New("/nowhere").CheckScheduler("none"), queue.ErrUnsupported)
}

func TestGetWithoutSchedulers(t *testing.T) {
	t.Parallel()

	sysBlock, _ := fakeQueue(t, "0", "none")
	now, err := queue.New(sysBlock).Get("loop5")
	require.NoError(t, err)
	require.Equal(t, queue.Attributes{ReadAheadKiB: 0, Scheduler: "none"}, now)
}

func TestMissingDeviceFails(t *testing.T) {
	t.Parallel()

	queues := queue.New(t.TempDir())
	_, err := queues.Get("loop5")
	require.ErrorIs(t, err, fs.ErrNotExist)

	err = queues.Set("loop5", queue.Attributes{ReadAheadKiB: 4})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestSetRestoresWhatItWasToChange uses a read_ahead_kb that can be read and not written, not by root either.
// The fake's scheduler file does not put what was written into brackets, as the kernel would.
func TestSetRestoresWhatItWasToChange(t *testing.T) {
	t.Parallel()

	for scheduler, want := range map[string]string{"mq-deadline": "none", "": "[none] mq-deadline\n"} {
		sysBlock, directory := fakeQueue(t, "128", "[none] mq-deadline")
		require.NoError(t, os.Remove(filepath.Join(directory, "read_ahead_kb")))
		require.NoError(t, os.Symlink("/proc/sys/kernel/cap_last_cap", filepath.Join(directory, "read_ahead_kb")))

		err := queue.New(sysBlock).Set("loop5", queue.Attributes{ReadAheadKiB: 4, Scheduler: scheduler})
		require.ErrorIs(t, err, fs.ErrPermission, "Set where read_ahead_kb cannot be written")

		text, err := os.ReadFile(filepath.Join(directory, "scheduler"))
		require.NoError(t, err)
		require.Equal(t, want, string(text), "want: the scheduler is written only if it was to be changed, here to %q", scheduler)
	}
}

// TestReadAheadAtItsLimits: 0 is a read-ahead, and below zero leaves it unchanged.
func TestReadAheadAtItsLimits(t *testing.T) {
	t.Parallel()

	for wanted, want := range map[int64]int64{-1: 128, 0: 0, 1: 1, 128: 128} {
		sysBlock, _ := fakeQueue(t, "128", "[none]")
		queues := queue.New(sysBlock)
		require.NoError(t, queues.Set("loop5", queue.Attributes{ReadAheadKiB: wanted}))

		now, err := queues.Get("loop5")
		require.NoError(t, err)
		require.Equal(t, queue.Attributes{ReadAheadKiB: want, Scheduler: "none"}, now)
	}
}

// TestUnreadableAttributeFails, and changes nothing.
func TestUnreadableAttributeFails(t *testing.T) {
	t.Parallel()

	sysBlock, directory := fakeQueue(t, "many", "[none] mq-deadline")
	queues := queue.New(sysBlock)
	wanted := queue.Attributes{ReadAheadKiB: 4, Scheduler: "mq-deadline"}

	now, err := queues.Get("loop5")
	require.ErrorIs(t, err, strconv.ErrSyntax)
	errtext.Require(t, err, "read-ahead of loop5")
	require.Zero(t, now, "want: no attributes come with an error")
	require.ErrorIs(t, queues.Set("loop5", wanted), strconv.ErrSyntax)

	scheduler := filepath.Join(directory, "scheduler")
	text, err := os.ReadFile(scheduler)
	require.NoError(t, err)
	require.Equal(t, "[none] mq-deadline\n", string(text))

	require.NoError(t, os.WriteFile(filepath.Join(directory, "read_ahead_kb"), []byte("128\n"), 0o600))
	require.NoError(t, os.Remove(scheduler))
	require.NoError(t, os.Mkdir(scheduler, 0o700))

	_, err = queues.Get("loop5")
	require.ErrorIs(t, err, unix.EISDIR)
	require.ErrorIs(t, queues.Set("loop5", wanted), unix.EISDIR)
	require.ErrorIs(t, queues.CheckScheduler("none"), unix.EISDIR, "want: what cannot be read is not skipped")
}

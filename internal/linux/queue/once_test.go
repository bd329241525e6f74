package queue_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

var (
	onceBefore = queue.Attributes{ReadAheadKiB: 128, Scheduler: "none"}
	onceWanted = queue.Attributes{ReadAheadKiB: 256, Scheduler: "mq-deadline"}
)

// ofQueue returns an operation of the queue in a directory. Its error must be that of the call that was
// made to fail.
func ofQueue(run func(queues *queue.Queues) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		return func() error {
			err := run(queue.New(directory))
			if err == nil || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC) {
				return err
			}

			return syscallfault.Differs("the report", "that of the failed call", err)
		}, func() error { return nil }, nil
	}
}

var onceOperations = map[string]syscallfault.Operation{
	"get": ofQueue(func(queues *queue.Queues) error {
		got, err := queues.Get("loop5")
		if err != nil {
			return errors.Join(err, syscallfault.Differs("the attributes beside an error", queue.Attributes{}, got))
		}

		return syscallfault.Differs("the attributes", onceBefore, got)
	}),
	"set":   ofQueue(func(queues *queue.Queues) error { return queues.Set("loop5", onceWanted) }),
	"check": ofQueue(func(queues *queue.Queues) error { return queues.CheckScheduler("none") }),
}

const offered = "[none] mq-deadline\n"

// offer makes the queue that the kernel offers.
func offer(t *testing.T, directory string) {
	t.Helper()

	queue := filepath.Join(directory, "loop5", "queue")
	require.NoError(t, os.MkdirAll(queue, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(queue, "read_ahead_kb"), []byte("128\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(queue, "scheduler"), []byte(offered), 0o600))
}

// TestEachCallFailsOnce has each call fail once by which attributes are read and set. The failure is
// reported, and a failed change leaves what was set.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, want := range map[string]queue.Attributes{"get": onceBefore, "set": onceWanted, "check": onceBefore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: name, Lossy: []string{"*/*/*"}, Reported: []string{"openat", "read", "write", "getdents64"},
				Prepare: offer,
				Failed: func(t *testing.T, directory string) {
					t.Helper()

					// The kernel does not empty a file before a write, as happens here.
					for file, before := range map[string][]string{"read_ahead_kb": {"128\n", "128"}, "scheduler": {offered, "none", ""}} {
						text, err := os.ReadFile(filepath.Join(directory, "loop5", "queue", file))
						require.NoError(t, err)
						require.Contains(t, before, string(text), "want: a failed change leaves %s as it was", file)
					}

					offer(t, directory)
				},
				Verify: func(t *testing.T, directory string) {
					t.Helper()

					got, err := queue.New(directory).Get("loop5")
					require.NoError(t, err)
					require.Equal(t, want, got, "the attributes afterwards")
				},
			})
		})
	}
}

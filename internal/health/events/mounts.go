package events

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// mountPause is the time for which changes of the mount table are collected after one
// was reported: otherwise the whole table would be read for each mount of many
// starting pods.
const mountPause = 20 * time.Millisecond

type mounts struct{}

// NewMounts returns a source of health.MountsChanged for the mount namespace of this
// process. It reports a change immediately, and those of the following 20 ms by one
// event. A filesystem that becomes read-only because of an error changes no mount.
func NewMounts() health.Source { return mounts{} }

func (mounts) Name() string { return "mounts" }

// Supported implements health.Source.
func (mounts) Supported() error {
	table, err := openMountTable()
	if err != nil {
		return err
	}

	return unix.Close(table)
}

// Run implements health.Source.
func (mounts) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	table, err := openMountTable()
	if err != nil {
		return err
	}

	defer func() { _ = unix.Close(table) }()

	// Reading from it ends with ctx.
	ended, end, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("follow the mount table: %w", err)
	}

	defer func() { _, _ = ended.Close(), end.Close() }()

	stop := context.AfterFunc(ctx, func() { _ = end.Close() })
	defer stop()

	connected()

	for {
		err := pollMountTable(table, ended)
		at := time.Now()

		if ctx.Err() != nil {
			return nil
		}

		if err != nil {
			return fmt.Errorf("follow the mount table: %w", err)
		}

		notify(health.Event{Kind: health.MountsChanged, At: at})
		ctxread.Pause(ctx, mountPause)
	}
}

func openMountTable() (int, error) {
	const path = "/proc/self/mountinfo"

	table, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, explained(err, "the mount table needs /proc: "+path)
	}

	return table, nil
}

// pollMountTable returns when the table has changed since the last call or its opening,
// or when ended is closed. It blocks a thread: the runtime's poller waits for input,
// which the table always has, and polling through epoll consumes the change.
func pollMountTable(table int, ended *os.File) error {
	fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}

	_, err := eintr.RetryValue(func() (int, error) { return unix.Poll(fds, -1) })

	return err
}

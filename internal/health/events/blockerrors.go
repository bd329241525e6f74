package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
)

const (
	blockErrorEvent = "block_rq_error"
	blockErrorDir   = "events/block/" + blockErrorEvent
	blockErrorOn    = blockErrorDir + "/enable"
	// minorBits is the width of the minor number in the kernel's internal dev_t.
	minorBits = 20
	// tracePipeBytes is what the kernel formats at a time, at least.
	tracePipeBytes = 4096
)

type blockErrors struct{ instance string }

// NewBlockErrors returns a source of health.IOError for all loop devices, and of
// health.FilesystemShutdown for the XFS and ext4 on them. Instance is
// the name of the driver's tracing instance, the same at each start, so that the
// instance of a killed driver is reused; one process at a time can hold it. Instances
// with the same name up to the last "-" are removed if their processes have ended.
//
// Errno is the result of the request: mostly EIO, ENOSPC if the pool is full.
// Unsupported requests (EOPNOTSUPP, for example a discard) are not reported.
func NewBlockErrors(instance string) health.Source { return &blockErrors{instance: instance} }

func (*blockErrors) Name() string { return "block-errors" }

// Supported implements health.Source. Errors: ErrKernel, ErrPermission.
func (*blockErrors) Supported() error {
	root, err := openTracefs()
	if err != nil {
		return err
	}
	defer root.Close()

	// A kernel in lockdown refuses this, but no step before.
	enable, err := root.OpenFile(blockErrorOn, os.O_WRONLY, 0)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return explained(err, "the event block_rq_error needs Linux 5.18 with CONFIG_BLOCK and CONFIG_EVENT_TRACING")
	case err != nil:
		return explained(err, "tracing needs root and a kernel that is not in lockdown for confidentiality")
	}

	return enable.Close()
}

// Run implements health.Source. Errors: those of Supported, ErrInUse, or the
// kernel's.
func (b *blockErrors) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	root, err := openTracefs()
	if err != nil {
		return err
	}
	defer root.Close()

	instance, err := openInstance(root, b.instance)
	if err != nil {
		return fmt.Errorf("set up the tracing instance %s: %w", b.instance, err)
	}

	// Last in, first out: a pipe that is open would keep the instance.
	defer instance.remove(root)

	if err := instance.setUp(); err != nil {
		return fmt.Errorf("set up the tracing instance %s: %w", b.instance, err)
	}

	missing := instance.turnOnShutdowns(shutdownEvents)

	pipe, err := instance.OpenFile("trace_pipe", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read the tracing instance %s: %w", b.instance, err)
	}
	defer pipe.Close()

	connected()

	ctx, cancel := context.WithCancel(ctx)

	var background sync.WaitGroup

	// Each takes some milliseconds.
	background.Go(func() { sweepInstances(ctx, root, b.instance) })
	background.Go(func() { instance.awaitModules(ctx, missing) })

	defer func() {
		cancel()
		background.Wait()
	}()

	lines := traceLines{notify: notify}

	err = ctxread.Each(ctx, pipe, tracePipeBytes, func(at time.Time, data []byte) error {
		lines.take(at, data)

		// After a full read there is more to read, and the kernel's buffer is small.
		if len(data) < tracePipeBytes {
			ctxread.Pause(ctx, ctxread.BatchPause)
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("read the tracing instance %s: %w", b.instance, err)
	}

	return nil
}

// traceLines parses the lines of trace_pipe into events.
type traceLines struct {
	notify func(health.Event)
	begun  []byte
}

func (t *traceLines) take(at time.Time, data []byte) {
	t.begun = append(t.begun, data...)

	for {
		line, behind, whole := bytes.Cut(t.begun, []byte("\n"))
		if !whole {
			return
		}

		t.begun = behind

		if event, ok := parseTraceLine(string(line)); ok {
			event.At = at
			t.notify(event)
		}
	}
}

// parseTraceLine parses a line of trace_pipe without context-info; false if it has no
// event. An error line that cannot be parsed counts as a lost event.
//
//	block_rq_error: 7,1024 RS () 80 + 8 be,0,4 [-5]
//	block_rq_error: 7,1024 FF () 0 + 0 [-5]            before Linux 6.11
//	xfs_force_shutdown: dev 7:1024 tag none flags force_umount file fs/xfs/xfs_fsops.c line_num 485
//	ext4_shutdown: dev 7,1024 flags 2
//	CPU:1 [LOST 42 EVENTS]
func parseTraceLine(line string) (event health.Event, ok bool) {
	var err error

	name, said, _ := strings.Cut(line, ": ")

	switch {
	case name == blockErrorEvent:
		event, err = parseBlockError(said)
	case isShutdown(name):
		event, err = parseShutdown(said)
	case strings.HasPrefix(line, "CPU:") && strings.Contains(line, "[LOST "):
		event.Kind = health.Lost
	default:
		return health.Event{}, false
	}

	if err != nil {
		return health.Event{Kind: health.Lost}, true
	}

	return event, true
}

// parseBlockError does without Sscanf, as it is called for each of a storm.
func parseBlockError(said string) (health.Event, error) {
	// Between the parentheses is a command for the device, if it was one.
	head, rest, _ := strings.Cut(said, " (")
	device, operation, _ := strings.Cut(head, " ")
	major, minor, _ := strings.Cut(device, ",")
	sector, tail, _ := strings.Cut(rest[strings.LastIndexByte(rest, ')')+1:], " + ")
	// The priority, which precedes the result, differs among kernels.
	_, result, _ := strings.Cut(tail, " [")

	var numbers [4]int64

	for i, text := range []string{major, minor, strings.TrimSpace(sector), strings.TrimSuffix(result, "]")} {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return health.Event{}, fmt.Errorf("%q: %w", said, err)
		}

		numbers[i] = number
	}

	return health.Event{
		Kind: health.IOError, Device: unix.Mkdev(uint32(numbers[0]), uint32(numbers[1])), Sector: numbers[2],
		Write: !strings.HasPrefix(operation, "R"), Errno: int(max(numbers[3], -numbers[3])),
	}, nil
}

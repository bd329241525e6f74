package kernelevents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

const (
	blockErrorEvent = "block_rq_error"
	blockErrorDir   = "events/block/" + blockErrorEvent
	blockErrorOn    = blockErrorDir + "/enable"
	instancesDir    = "instances"
	// instanceMode is for the owner only: a trace tells of everybody.
	instanceMode = 0o700
	// loopMajor is the major number of loop devices, minorBits what the kernel
	// has below it in a dev_t of its own.
	loopMajor = 7
	minorBits = 20
	// traceBufferKB is for each CPU: a thousand errors, until the next read.
	traceBufferKB = 64
	// tracePipeBytes is what the kernel formats at a time, at least.
	tracePipeBytes = 4096
)

type blockErrors struct{ instance string }

// NewBlockErrors returns a source of health.IOError for all loop devices. Instance names
// the driver's own tracing instance, the same at each start, so that what a
// killed driver has left is found again; no two processes can have the same one
// at a time.
//
// Errno is what the request ended with: EIO mostly, ENOSPC where the pool is full.
// Requests that the device does not know (EOPNOTSUPP, as for a discard) are no
// errors and are left out.
func NewBlockErrors(instance string) health.Source { return &blockErrors{instance: instance} }

func (*blockErrors) Name() string { return "block-errors" }

// Supported implements health.Source. Errors: ErrKernel, ErrPermission.
func (*blockErrors) Supported() error {
	root, err := openTracefs()
	if err != nil {
		return err
	}
	defer root.Close()

	// A kernel in lockdown refuses this, and nothing before.
	enable, err := root.OpenFile(blockErrorOn, os.O_WRONLY, 0)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return explained(err, "the event block_rq_error needs Linux 5.18 with CONFIG_BLOCK and CONFIG_EVENT_TRACING")
	case err != nil:
		return explained(err, "tracing needs root and a kernel that is not in lockdown for confidentiality")
	}

	return enable.Close() //nolint:wrapcheck // it names the file
}

// Run implements health.Source. Errors: those of Supported, ErrInUse, or the
// kernel's.
func (b *blockErrors) Run(ctx context.Context, connected func(), notify func(health.Event)) error {
	root, err := openTracefs()
	if err != nil {
		return err
	}
	defer root.Close()

	instance, err := b.open(root)
	if err != nil {
		return fmt.Errorf("set up the tracing instance %s: %w", b.instance, err)
	}

	// Last in, first out: a pipe that is open would keep the instance.
	defer instance.remove(root)

	pipe, err := instance.OpenFile("trace_pipe", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read the tracing instance %s: %w", b.instance, err)
	}
	defer pipe.Close()

	connected()

	lines := traceLines{notify: notify}

	err = read(ctx, pipe, tracePipeBytes, func(at time.Time, data []byte) error {
		lines.take(at, data)

		// A full read leaves more behind, and the kernel little room for it.
		if len(data) < tracePipeBytes {
			rest(ctx, pause)
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("read the tracing instance %s: %w", b.instance, err)
	}

	return nil
}

// traceInstance is a tracing instance of our own: whatever others trace on this
// machine neither disturbs it nor is disturbed.
type traceInstance struct {
	*os.Root

	path string
	// lock is the directory, locked for as long as we use it.
	lock *os.File
}

// open makes the instance, or takes over the one of a driver that was killed.
func (b *blockErrors) open(root *os.Root) (*traceInstance, error) {
	name := path.Join(instancesDir, b.instance)
	if err := root.Mkdir(name, instanceMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, explained(err, "tracing instances can't be made")
	}

	dir, err := root.OpenRoot(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // Run wraps all
	}

	instance := &traceInstance{Root: dir, path: name}
	if err := instance.takeLock(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}

	if err := instance.setUp(); err != nil {
		instance.remove(root)

		return nil, err
	}

	return instance, nil
}

func (t *traceInstance) takeLock() error {
	dir, err := t.Open(".")
	if err != nil {
		return err //nolint:wrapcheck // Run wraps all
	}

	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()

		return fmt.Errorf("%w: each running driver needs an instance of its own: %w", ErrInUse, err)
	}

	t.lock = dir

	return nil
}

// setUp turns the event on, last: what a killed driver has left in the buffer is
// dropped before.
func (t *traceInstance) setUp() error {
	loopErrors := fmt.Sprintf("dev >= %d && dev < %d && error != %d",
		loopMajor<<minorBits, (loopMajor+1)<<minorBits, -int(unix.EOPNOTSUPP))

	for _, setting := range []struct{ file, value string }{
		{"events/enable", "0"},
		{"trace", ""},
		{"tracing_on", "1"},
		{"buffer_size_kb", strconv.Itoa(traceBufferKB)},
		// Of a buffer that has to fill up first, nobody would be woken.
		{"buffer_percent", "0"},
		// The name of the task that was running is anybody's to choose, line
		// breaks in it too.
		{"options/context-info", "0"},
		{blockErrorDir + "/filter", loopErrors},
		{blockErrorOn, "1"},
	} {
		if err := t.write(setting.file, setting.value); err != nil {
			return err
		}
	}

	return nil
}

// write opens with O_TRUNC: that, and not what is written, clears a buffer.
func (t *traceInstance) write(file, value string) error {
	opened, err := t.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err //nolint:wrapcheck // Run wraps all
	}

	_, err = opened.WriteString(value)

	return errors.Join(err, opened.Close())
}

// remove is for the end. What fails here stays for the next start to take over;
// that somebody looks into the instance just now is a reason.
func (t *traceInstance) remove(root *os.Root) {
	_ = t.write(blockErrorOn, "0")
	_ = root.Remove(t.path)
	_ = t.lock.Close()
	_ = t.Close()
}

// traceLines makes events of what is read from trace_pipe.
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

// parseTraceLine reads a line of trace_pipe without context-info; false is for
// one that tells nothing. An error that can't be read is not passed over: it
// counts as lost.
//
//	block_rq_error: 7,1024 RS () 80 + 8 be,0,4 [-5]
//	block_rq_error: 7,1024 FF () 0 + 0 [-5]            before Linux 6.11
//	CPU:1 [LOST 42 EVENTS]
func parseTraceLine(line string) (health.Event, bool) {
	said, ours := strings.CutPrefix(line, blockErrorEvent+": ")

	switch {
	case ours:
		event, err := parseBlockError(said)
		if err != nil {
			return health.Event{Kind: health.Lost}, true
		}

		return event, true
	case strings.HasPrefix(line, "CPU:") && strings.Contains(line, "[LOST "):
		return health.Event{Kind: health.Lost}, true
	default:
		return health.Event{}, false
	}
}

// parseBlockError does without Sscanf, as it is called for each of a storm.
func parseBlockError(said string) (health.Event, error) {
	// Between the parentheses is a command for the device, if it was one.
	head, rest, _ := strings.Cut(said, " (")
	device, operation, _ := strings.Cut(head, " ")
	major, minor, _ := strings.Cut(device, ",")
	sector, tail, _ := strings.Cut(rest[strings.LastIndexByte(rest, ')')+1:], " + ")
	// What stands before the result, the priority, differs among kernels.
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

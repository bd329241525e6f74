package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultSysBlock is where the kernel shows its block devices.
const DefaultSysBlock = "/sys/block"

const (
	readAheadFile = "read_ahead_kb"
	schedulerFile = "scheduler"
)

// Queues are the request queues of this machine's block devices. They are safe
// for concurrent use; the attributes of one device are changed by one caller
// at a time.
type Queues struct {
	sysBlock string
}

// Queue is what can be set of one queue.
type Queue struct {
	// ReadAheadKiB is how far the kernel reads ahead; -1 in a request leaves
	// it as it is.
	ReadAheadKiB int64
	// Scheduler is the kernel's name; empty in a request leaves it as it is.
	Scheduler string
}

// Unchanged is the request that asks for nothing.
func Unchanged() Queue { return Queue{ReadAheadKiB: -1} }

// NewQueues returns the queues that are shown at sysBlock, which is
// DefaultSysBlock except in tests.
func NewQueues(sysBlock string) *Queues { return &Queues{sysBlock: sysBlock} }

// Get returns the attributes of the device, which is named as in /dev. Errors:
// fs.ErrNotExist when there is no such device.
func (q *Queues) Get(device string) (Queue, error) {
	text, err := q.read(device, readAheadFile)
	if err != nil {
		return Queue{}, err
	}

	readAhead, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return Queue{}, fmt.Errorf("read-ahead of %s: %w", device, err)
	}

	text, err = q.read(device, schedulerFile)
	if err != nil {
		return Queue{}, err
	}

	scheduler, _ := parseSchedulers(text)

	return Queue{ReadAheadKiB: readAhead, Scheduler: scheduler}, nil
}

// Set gives the device what wanted names and returns what it had before. When
// one thing fails, nothing is changed. Errors: ErrInfeasible, fs.ErrNotExist.
func (q *Queues) Set(device string, wanted Queue) (Queue, error) {
	before, err := q.Get(device)
	if err != nil {
		return Queue{}, err
	}

	if err := q.offers(device, wanted.Scheduler); err != nil {
		return Queue{}, err
	}

	if err := q.put(device, before, wanted); err != nil {
		now, readErr := q.Get(device)
		if readErr == nil {
			readErr = q.put(device, now, before)
		}

		return Queue{}, errors.Join(err, readErr)
	}

	return before, nil
}

// put writes what differs and reads it back.
func (q *Queues) put(device string, before, wanted Queue) error {
	// A scheduler may bring a read-ahead of its own, so it is set first.
	if wanted.Scheduler != "" && wanted.Scheduler != before.Scheduler {
		if err := q.write(device, schedulerFile, wanted.Scheduler); err != nil {
			return err
		}
	}

	if wanted.ReadAheadKiB >= 0 && wanted.ReadAheadKiB != before.ReadAheadKiB {
		if err := q.write(device, readAheadFile, strconv.FormatInt(wanted.ReadAheadKiB, 10)); err != nil {
			return err
		}
	}

	got, err := q.Get(device)
	if err != nil {
		return err
	}

	if wanted.ReadAheadKiB >= 0 && got.ReadAheadKiB != wanted.ReadAheadKiB {
		return fmt.Errorf("%w: the kernel makes %d KiB of a read-ahead of %d KiB; pages have %d bytes",
			ErrInfeasible, got.ReadAheadKiB, wanted.ReadAheadKiB, os.Getpagesize())
	}

	if wanted.Scheduler != "" && got.Scheduler != wanted.Scheduler {
		return fmt.Errorf("%w: %s keeps the I/O scheduler %s", ErrInfeasible, device, got.Scheduler)
	}

	return nil
}

// CheckScheduler returns ErrInfeasible unless the kernel has that scheduler.
// The kernel offers the same to all devices, so any will do to ask.
func (q *Queues) CheckScheduler(name string) error {
	devices, err := os.ReadDir(q.sysBlock)
	if err != nil {
		return fmt.Errorf("%w: no I/O scheduler can be looked for: %w", ErrInfeasible, err)
	}

	for _, device := range devices {
		err := q.offers(device.Name(), name)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	return fmt.Errorf("%w: %s shows no device with an I/O scheduler", ErrInfeasible, q.sysBlock)
}

func (q *Queues) offers(device, scheduler string) error {
	if scheduler == "" {
		return nil
	}

	text, err := q.read(device, schedulerFile)
	if err != nil {
		return err
	}

	_, offered := parseSchedulers(text)
	if !slices.Contains(offered, scheduler) {
		return fmt.Errorf("%w: the kernel has no I/O scheduler %q, only %s; it may have to be loaded first (modprobe %s)",
			ErrInfeasible, scheduler, strings.Join(offered, ", "), scheduler)
	}

	return nil
}

// parseSchedulers reads "none [mq-deadline] kyber", or "none" alone where the
// device can have no other.
func parseSchedulers(text string) (current string, offered []string) {
	for name := range strings.FieldsSeq(text) {
		plain := strings.Trim(name, "[]")
		if plain != name || current == "" {
			current = plain
		}

		offered = append(offered, plain)
	}

	return current, offered
}

func (q *Queues) path(device, attribute string) string {
	return filepath.Join(q.sysBlock, device, "queue", attribute)
}

func (q *Queues) read(device, attribute string) (string, error) {
	text, err := os.ReadFile(q.path(device, attribute))
	if err != nil {
		return "", fmt.Errorf("queue of %s: %w", device, err)
	}

	return strings.TrimSpace(string(text)), nil
}

func (q *Queues) write(device, attribute, value string) error {
	if err := writeAttribute(q.path(device, attribute), value); err != nil {
		return fmt.Errorf("set %s of %s to %s: %w", attribute, device, value, err)
	}

	return nil
}

// writeAttribute writes to a file that the kernel has made, at once.
func writeAttribute(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err //nolint:wrapcheck // the caller says what it was for
	}
	defer file.Close()

	_, err = file.WriteString(value)

	return err //nolint:wrapcheck // the caller says what it was for
}

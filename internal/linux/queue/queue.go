// Package queue reads and sets attributes of a block device's request queue in sysfs: read-ahead
// and I/O scheduler.
//
// A change of several attributes is checked first, and reverted as a whole where one write fails.
// The package does not know volumes and decides no gRPC code; loop devices are
// internal/linux/loop's, limits of a pod's I/O internal/linux/cgroup's.
package queue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

// ErrUnsupported is returned for a value that this kernel does not offer for the device; the
// message says what it offers.
var ErrUnsupported = errdefs.New(errdefs.ErrFailedPrecondition, "not supported by this machine's block devices")

// DefaultSysBlock is the directory of sysfs that lists the block devices.
const DefaultSysBlock = "/sys/block"

const (
	readAheadFile = "read_ahead_kb"
	schedulerFile = "scheduler"
)

// Queues are the request queues of this machine's block devices. It is safe for concurrent use, but
// the caller must not change one device from two goroutines at the same time.
type Queues struct {
	sysBlock string
}

// Attributes are those of one queue that can be set.
type Attributes struct {
	// ReadAheadKiB is how far the kernel reads ahead; -1 in a request leaves it unchanged.
	ReadAheadKiB int64
	// Scheduler is the I/O scheduler's name; empty in a request leaves it unchanged.
	Scheduler string
}

// Unchanged returns the request that changes nothing.
func Unchanged() Attributes { return Attributes{ReadAheadKiB: -1} }

// New returns the queues listed in sysBlock, which is DefaultSysBlock except in tests.
func New(sysBlock string) *Queues { return &Queues{sysBlock: sysBlock} }

// Get returns the attributes of a device, named as in /dev. Error: fs.ErrNotExist where there is no
// such device.
func (q *Queues) Get(device string) (Attributes, error) {
	text, err := q.read(device, readAheadFile)
	if err != nil {
		return Attributes{}, err
	}

	readAhead, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return Attributes{}, fmt.Errorf("read-ahead of %s: %w", device, err)
	}

	text, err = q.read(device, schedulerFile)
	if err != nil {
		return Attributes{}, err
	}

	scheduler, _ := parseSchedulers(text)

	return Attributes{ReadAheadKiB: readAhead, Scheduler: scheduler}, nil
}

// Set changes the attributes that wanted names. Where one write fails, it restores these.
// Errors: ErrUnsupported, fs.ErrNotExist.
func (q *Queues) Set(device string, wanted Attributes) error {
	before, err := q.Get(device)
	if err != nil {
		return err
	}

	if err := q.checkScheduler(device, wanted.Scheduler); err != nil {
		return err
	}

	if err = q.apply(device, before, wanted); err == nil {
		return nil
	}

	// They are written whatever they are by now, and others are not: they may have changed meanwhile. A
	// scheduler may have changed the read-ahead, too.
	if wanted.Scheduler == "" {
		before.Scheduler = ""
	}

	return errors.Join(err, q.apply(device, Unchanged(), before))
}

// apply writes the attributes that differ and reads them back, since the kernel rounds or ignores
// some values without an error.
func (q *Queues) apply(device string, before, wanted Attributes) error {
	// The scheduler first: it may set a read-ahead of its own.
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
			ErrUnsupported, got.ReadAheadKiB, wanted.ReadAheadKiB, os.Getpagesize())
	}

	if wanted.Scheduler != "" && got.Scheduler != wanted.Scheduler {
		return fmt.Errorf("%w: %s keeps the I/O scheduler %s", ErrUnsupported, device, got.Scheduler)
	}

	return nil
}

// CheckScheduler returns ErrUnsupported unless the kernel has that I/O scheduler. It asks the first
// device that has schedulers, because the kernel offers the same ones to all devices.
func (q *Queues) CheckScheduler(name string) error {
	devices, err := os.ReadDir(q.sysBlock)
	if err != nil {
		return fmt.Errorf("%w: cannot list the I/O schedulers: %w", ErrUnsupported, err)
	}

	for _, device := range devices {
		err := q.checkScheduler(device.Name(), name)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	return fmt.Errorf("%w: %s shows no device with an I/O scheduler", ErrUnsupported, q.sysBlock)
}

// checkScheduler returns ErrUnsupported unless the device offers the scheduler; "" is always fine.
func (q *Queues) checkScheduler(device, scheduler string) error {
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
			ErrUnsupported, scheduler, strings.Join(offered, ", "), scheduler)
	}

	return nil
}

// parseSchedulers parses "none [mq-deadline] kyber", or "none" alone where the device has no other.
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
	text, err := sysfs.Read(q.path(device, attribute))
	if err != nil {
		return "", fmt.Errorf("queue of %s: %w", device, err)
	}

	return text, nil
}

func (q *Queues) write(device, attribute, value string) error {
	if err := sysfs.Write(q.path(device, attribute), value); err != nil {
		return fmt.Errorf("set %s of %s to %s: %w", attribute, device, value, err)
	}

	return nil
}

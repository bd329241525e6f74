package loop

import (
	"cmp"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// DefaultFirst is the lowest own number: far above those that
	// LOOP_CTL_GET_FREE hands to other programs.
	DefaultFirst = 1024
	// MaxNumber is the highest number that the kernel's minor numbers allow.
	MaxNumber = 1<<20 - 1
	// DefaultBlockSize in bytes. The kernel's own choice depends on the pool's
	// filesystem and on whether the image shares blocks; what was formatted with
	// one sector size does not mount with another.
	DefaultBlockSize = 4096
)

// LoopsOptions are the options of NewLoops; the zero value serves.
type LoopsOptions struct {
	// First and Last bound the own numbers; 0 means DefaultFirst and MaxNumber.
	First, Last int
	// DeviceDir is where device nodes are made that /dev lacks, as a private
	// /dev in a container does. It must not be mounted with nodev. When it is
	// empty, they are made in Dev.
	DeviceDir string
	// Dev and Sys are the roots of devtmpfs and sysfs: /dev and /sys when empty.
	Dev, Sys string
}

// Loops attaches images to loop devices. It is safe for concurrent use, holds
// nothing open, and needs no Close.
type Loops struct {
	numbers *numbers
	nodes   nodes
	sysfs   attributes
}

// NumberOfSlot returns the own number of a slot, counted from 0.
func (l *Loops) NumberOfSlot(slot int) int { return l.numbers.first + slot }

// NewLoops returns a Loops. It does no I/O.
func NewLoops(opts LoopsOptions) *Loops {
	dev := cmp.Or(opts.Dev, "/dev")

	return &Loops{
		numbers: newNumbers(cmp.Or(opts.First, DefaultFirst), min(cmp.Or(opts.Last, MaxNumber), MaxNumber)),
		nodes:   nodes{dev: dev, own: cmp.Or(opts.DeviceDir, dev)},
		sysfs:   attributes{cmp.Or(opts.Sys, "/sys")},
	}
}

// Path returns where the node of a number is, or will be.
func (l *Loops) Path(number int) string { return l.nodes.path(number) }

// Open opens an attached device for reading and, unless it is read-only, for
// writing. The error is ErrNotAttached where there is nothing to open. While
// the file is open a detach does not complete.
func (l *Loops) Open(number int) (*os.File, error) {
	if !l.sysfs.attached(number) {
		return nil, numberError(opOpen, number, ErrNotAttached)
	}

	file, err := l.nodes.open(number, os.O_RDWR)
	if isReadOnly(err) {
		file, err = l.nodes.open(number, os.O_RDONLY)
	}

	return file, numberError(opOpen, number, err)
}

// Resize lets an attached device take the present size of its image, while it
// is in use, and returns that size in bytes.
func (l *Loops) Resize(number int) (int64, error) {
	file, err := l.Open(number)
	if err != nil {
		return 0, err
	}
	defer file.Close()

	if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return 0, numberError("resize", number, fmt.Errorf("LOOP_SET_CAPACITY: %w", err))
	}

	return deviceSize(file)
}

// Package kernellog reads what the kernel logs while a test runs.
package kernellog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Record is what the kernel logged at once.
type Record struct {
	// Level is from 0, an emergency, to 7, for debugging.
	Level int
	Text  string
}

// Warning is the level of warnings; errors are below it.
const Warning = 4

const (
	// recordBytes is the longest record that the kernel hands out.
	recordBytes = 8192
	// levels is how many levels there are: the rest of a priority is the facility.
	levels = 8
)

// Log is a position in the kernel's log.
type Log struct{ fd int }

// Open returns the log from now on. The caller closes it. It needs CAP_SYSLOG where the kernel
// restricts its log.
func Open() (*Log, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's log: %w", err)
	}

	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		return nil, errors.Join(fmt.Errorf("find the end of the kernel's log: %w", err), unix.Close(fd))
	}

	return &Log{fd: fd}, nil
}

// Read returns the records since Open or the last Read, without those that the kernel has
// overwritten since.
func (l *Log) Read() ([]Record, error) {
	var records []Record

	buffer := make([]byte, recordBytes)

	for {
		n, err := unix.Read(l.fd, buffer)

		switch {
		case errors.Is(err, unix.EAGAIN):
			return records, nil
		case errors.Is(err, unix.EPIPE): // Records were overwritten before they were read.
		case err != nil:
			return records, fmt.Errorf("read the kernel's log: %w", err)
		default:
			record, err := parse(string(buffer[:n]))
			if err != nil {
				return records, err
			}

			records = append(records, record)
		}
	}
}

// Close ends the reading.
func (l *Log) Close() error { return unix.Close(l.fd) }

// parse reads a record, "priority,sequence,microseconds,flags;text" (the kernel's
// Documentation/ABI/testing/dev-kmsg).
func parse(record string) (Record, error) {
	head, text, _ := strings.Cut(strings.TrimSuffix(record, "\n"), ";")
	first, _, _ := strings.Cut(head, ",")

	priority, err := strconv.Atoi(first)
	if err != nil {
		return Record{}, fmt.Errorf("read a record of the kernel's log: %w", err)
	}

	return Record{Level: priority % levels, Text: text}, nil
}

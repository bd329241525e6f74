package calls

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// queuedLines is how many lines wait for the file; further ones are lost. Their number is
	// what a driver with many callers ends within some milliseconds.
	queuedLines = 4096
	// fileMode is for root only: requests have names and paths of all users.
	fileMode = 0o600
)

// file appends lines. A goroutine writes them, so that a file that blocks or fails delays no call
// and fails none: such lines are lost and counted.
type file struct {
	opened *os.File
	log    *slog.Logger
	lines  chan []byte
	// closing ends the goroutine, and ended has the error of its Close. lines stays open: a call
	// that hangs may end later, and its line is lost.
	closing chan struct{}
	ended   chan error
	lost    atomic.Uint64
	// torn: the last write has not written a whole line.
	torn    bool
	failing bool
}

// openFile opens or creates the file. A named pipe that no process reads is an error.
func openFile(path string, log *slog.Logger) (*file, error) {
	opened, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open the call log: %w", err)
	}

	f := &file{opened: opened, log: log, lines: make(chan []byte, queuedLines), closing: make(chan struct{}), ended: make(chan error, 1)}

	go f.run()

	return f, nil
}

// write queues a line, or counts it as lost.
func (f *file) write(line []byte) {
	select {
	case f.lines <- line:
	default:
		f.lost.Add(1)
	}
}

func (f *file) run() {
	for {
		select {
		case line := <-f.lines:
			f.append(line)
		case <-f.closing:
			for queued := len(f.lines); queued > 0; queued-- {
				f.append(<-f.lines)
			}

			f.ended <- f.opened.Close()

			return
		}
	}
}

// append writes a line with one write.
func (f *file) append(line []byte) {
	if f.torn {
		line = append([]byte{'\n'}, line...) // ends the part of a line that a full disk took
	}

	n, err := f.opened.Write(line)
	if err == nil {
		if f.failing {
			f.log.Info("the call log is written again", "file", f.opened.Name(), "lost", f.lost.Load())
		}

		f.torn, f.failing = false, false

		return
	}

	f.lost.Add(1)
	f.torn = f.torn || n > 0

	if !f.failing {
		f.log.Error("cannot write to the call log: its lines are lost until it can", "file", f.opened.Name(), "error", err)
	}

	f.failing = true
}

// close writes the queued lines and closes the file. Call it once.
func (f *file) close() error {
	close(f.closing)

	if err := <-f.ended; err != nil {
		return fmt.Errorf("close the call log: %w", err)
	}

	return nil
}

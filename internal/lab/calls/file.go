package calls

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"

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

// ErrFile is returned for a path at which there can be no call log.
var ErrFile = errors.New("call log")

// openFile opens or creates the file. A named pipe that no process reads is an error, and so is a
// file to which another user has or gave access.
func openFile(path string, log *slog.Logger) (*file, error) {
	opened, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, fileMode)

	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w: %s is a symbolic link; name the file itself", ErrFile, path)
	case err != nil:
		return nil, fmt.Errorf("open the call log: %w", err)
	}

	if err := restrict(opened); err != nil {
		return nil, errors.Join(err, opened.Close())
	}

	f := &file{opened: opened, log: log, lines: make(chan []byte, queuedLines), closing: make(chan struct{}), ended: make(chan error, 1)}

	go f.run()

	return f, nil
}

// restrict makes the file accessible for this user only. A device keeps nothing, and its mode is not
// the driver's matter.
func restrict(opened *os.File) error {
	info, err := opened.Stat()
	if err != nil {
		return fmt.Errorf("stat the call log: %w", err)
	}

	kind := info.Mode().Type()
	stat, ok := info.Sys().(*syscall.Stat_t)

	switch {
	case kind&fs.ModeDevice != 0:
		return nil
	case kind != 0 && kind != fs.ModeNamedPipe || !ok:
		return fmt.Errorf("%w: %s is neither a file nor a pipe; name another", ErrFile, opened.Name())
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d, who can read it; remove it or name another", ErrFile, opened.Name(), stat.Uid)
	case stat.Nlink > 1:
		return fmt.Errorf("%w: %s has %d names, and may be another program's file; name another", ErrFile, opened.Name(), stat.Nlink)
	}

	if err := opened.Chmod(fileMode); err != nil {
		return fmt.Errorf("restrict the call log to its owner: %w", err)
	}

	return nil
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

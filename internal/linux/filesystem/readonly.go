package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// To examine is what a check of a copy is, made while the filesystem was frozen,
// and of an image that is not in use. A frozen filesystem is not quite one that was
// unmounted: files that are open and have been deleted are there still, and what
// a crash would do to them is noted where only a mount does it. All of the tools
// would call them damage.

// ErrReadIncomplete is returned by checks that were not given all of the filesystem to
// read, which says nothing about it.
var ErrReadIncomplete = errors.New("could not read all of the filesystem")

// readError returns ErrReadIncomplete of a tool that gives what fails beneath the filesystem for
// damage to it. Not of btrfs, which says the same of a wrong checksum.
func readError(command Command, result Result) error {
	for _, words := range []string{"Input/output error", "Cannot allocate memory", "malloc failed", "memory allocation failed"} {
		if result.ExitCode != 0 && strings.Contains(result.Output, words) {
			return fmt.Errorf("%w: %w", ErrReadIncomplete, toolError(command, result))
		}
	}

	return nil
}

// MetadataCopy is what CopyMetadata has taken.
type MetadataCopy struct {
	complete func(context.Context) error
	// held is closed by Close; nil is nothing.
	dump *os.File
}

// Complete makes the copy. Error: ctx's, or a ToolError.
func (m *MetadataCopy) Complete(ctx context.Context) error {
	if m.complete == nil {
		return nil
	}

	return m.complete(ctx)
}

// Close gives back what the copy is made of. It has to be called.
func (m *MetadataCopy) Close() error {
	if m.dump == nil {
		return nil
	}

	return m.dump.Close()
}

// runTool runs a tool for which success is all there is.
func runTool(ctx context.Context, run Runner, command Command) error {
	result, err := run.Run(ctx, command)
	if err == nil && result.ExitCode != 0 {
		err = toolError(command, result)
	}

	return err
}

// inheritedFilePath is where a tool finds Command.InheritedFile.
const inheritedFilePath = "/proc/self/fd/3"

// CreateUnnamed creates a file without a name, which is removed when it is closed.
func CreateUnnamed(directory string) (*os.File, error) {
	const mode = 0o600

	file, err := os.OpenFile(directory, unix.O_TMPFILE|os.O_RDWR, mode)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return file, err
	}

	if file, err = os.CreateTemp(directory, ".touchstone-*"); err != nil {
		return nil, err
	}

	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return file, nil
}

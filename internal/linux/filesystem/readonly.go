package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// A read-only check is for a copy that was made while the filesystem was frozen, and for an image
// that is not in use. A frozen filesystem differs from an unmounted one: files that are open and
// deleted still exist, and only the next mount removes them. The tools would report them as damage.

// ErrReadIncomplete is returned by checks that were not given all of the filesystem to
// read, which says nothing about it.
var ErrReadIncomplete = errors.New("could not read all of the filesystem")

// readError returns ErrReadIncomplete of a tool that gives what fails beneath the filesystem for
// damage to it. Not of btrfs, which says the same of a wrong checksum.
func readError(command Command, result Result) error {
	messages := []string{"Input/output error", "Cannot allocate memory", "malloc failed", "memory allocation failed"}
	if result.ExitCode != 0 && containsAny(result.Output, messages) {
		return fmt.Errorf("%w: %w", ErrReadIncomplete, toolError(command, result))
	}

	return nil
}

// runReader runs a check that only reads. Errors: ErrReadIncomplete.
func runReader(ctx context.Context, run Runner, path string, command Command) (_ Result, err error) {
	defer errdefs.Wrapf(&err, "check %s", path)

	result, err := run.Run(ctx, command)
	if err != nil {
		return Result{}, err
	}

	return result, readError(command, result)
}

// MetadataCopy is what CopyMetadata has taken.
type MetadataCopy struct {
	complete func(context.Context) error
	// dump is closed by Close; nil if there is none.
	dump *os.File
}

// Complete makes the copy. Error: ctx's, or a ToolError.
func (m *MetadataCopy) Complete(ctx context.Context) error {
	if m.complete == nil {
		return nil
	}

	return m.complete(ctx)
}

// Close removes the dump that Complete reads. The caller has to call it.
func (m *MetadataCopy) Close() error {
	if m.dump == nil {
		return nil
	}

	return m.dump.Close()
}

// runTool runs a tool for which success is all there is.
func runTool(ctx context.Context, run Runner, command Command) error {
	result, err := run.Run(ctx, command)
	if err != nil || result.ExitCode == 0 {
		return err
	}

	return toolError(command, result)
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

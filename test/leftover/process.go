package leftover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
)

// label is the name of the label of a driver's goroutines.
const label = "driver"

// Attribute runs a part of a driver. All goroutines that it starts belong to the driver of that name.
func Attribute(driver string, run func()) {
	pprof.Do(context.Background(), pprof.Labels(label, driver), func(context.Context) { run() })
}

// Goroutines returns a finding for each goroutine of the driver.
func Goroutines(driver string) ([]Finding, error) {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return nil, fmt.Errorf("read the stacks of goroutines: %w", err)
	}

	var found []Finding

	wanted := fmt.Sprintf("# labels: {%q:%q}", label, driver)

	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, wanted) {
			found = append(found, Finding{Goroutine, stack})
		}
	}

	return found, nil
}

// Descriptors returns a finding for each open file of this process beneath the directory.
func Descriptors(root string) ([]Finding, error) {
	opened, err := Opened()
	maps.DeleteFunc(opened, func(_, path string) bool { return !strings.HasPrefix(path, root+"/") })

	return opened.Since(nil), err
}

// Files are open files by their descriptors' numbers: paths, and kinds and numbers of sockets, pipes and
// anonymous files.
type Files map[string]string

// Opened returns the open files of this process.
func Opened() (Files, error) {
	const open = "/proc/self/fd"

	// The first pipe makes Go's runtime open files of its own, which stay.
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}

	if err := errors.Join(reader.Close(), writer.Close()); err != nil {
		return nil, err
	}

	numbers, err := os.ReadDir(open)
	if err != nil {
		return nil, fmt.Errorf("list the open files: %w", err)
	}

	opened := Files{}

	for _, number := range numbers {
		// One may be closed meanwhile, by another test.
		if path, err := os.Readlink(filepath.Join(open, number.Name())); err == nil {
			opened[number.Name()] = path
		}
	}

	return opened, nil
}

// OpenedSince returns a finding for each file of this process that was not open before. Pipes may be those
// that io.Copy between sockets keeps for the next copy, until Go collects garbage: this does. A pipe of os.Pipe that
// nothing refers to any more is closed by it, too, and not found.
func OpenedSince(before Files) ([]Finding, error) {
	opened, err := Opened()
	found := opened.Since(before)

	if len(found) > 0 && !slices.ContainsFunc(found, func(each Finding) bool { return !strings.Contains(each.What, " of pipe:") }) {
		runtime.GC()
	}

	return found, err
}

// Since returns a finding for each file that was not open before.
func (f Files) Since(before Files) []Finding {
	var found []Finding

	for number, path := range f {
		if before[number] != path {
			found = append(found, Finding{Descriptor, number + " of " + path})
		}
	}

	return sorted(found)
}

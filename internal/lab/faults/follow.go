package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
)

// Load reads the rules of a file. Errors: ErrRule, or why it cannot be read; the active rules stay.
func (i *Injector) Load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the fault rules: %w", err)
	}

	if i.applied(text) {
		return nil
	}

	file, err := Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	if err := i.replaceFile(file, text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	rules, _ := i.List()
	i.log.Warn("fault rules are active", "file", path, "rules", len(rules))

	return nil
}

// applied reports whether the text is that of the rules of the file. Then nothing is wrong with it, and
// rules of it that were cleared stay cleared.
func (i *Injector) applied(text []byte) bool {
	i.mu.Lock()
	defer i.mu.Unlock()

	if i.loaded == nil || !bytes.Equal(text, i.loaded) {
		return false
	}

	i.fileError = ""

	return true
}

// rewatchPause is the time between two attempts to watch the directory of the file.
const rewatchPause = time.Second

// Follow loads the file again when it changes, until ctx ends. A file that cannot be read or applied
// leaves the rules as they are; List and the log show why. It watches the directory, since editors and
// Kubernetes' ConfigMaps replace the file.
func (i *Injector) Follow(ctx context.Context, path string) {
	path, err := filepath.Abs(path)
	if err != nil {
		i.reportFile(fmt.Errorf("watch the fault rules: %w", err))

		return
	}

	directory := inotify.Directories{
		List: func() []string { return []string{filepath.Dir(path)} }, Changed: func() <-chan struct{} { return i.recheck },
	}

	// The watch calls it for its directory and for events, at the same time: what was read first is applied first.
	var loading sync.Mutex

	load := func() { // also at first: it may have changed since Load
		loading.Lock()
		defer loading.Unlock()

		if err := i.Load(path); err != nil {
			i.reportFile(err)
		}
	}

	for ctx.Err() == nil {
		if err := inotify.Watch(ctx, directory, load, func(inotify.Event) { load() }); err != nil {
			i.reportFile(fmt.Errorf("watch %s: %w", path, err))
		}

		select {
		case <-ctx.Done():
		case <-time.After(rewatchPause): // the directory may be another one of that name then
		}
	}
}

// reportFile keeps why the file has no effect, and logs it once.
func (i *Injector) reportFile(err error) {
	i.mu.Lock()
	known := i.fileError == err.Error()
	i.fileError = err.Error()
	i.mu.Unlock()

	if !known {
		i.log.Error("the file of fault rules is not applied; the rules before it stay", "error", err)
	}
}

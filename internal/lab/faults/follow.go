package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
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
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		i.reportFile(fmt.Errorf("watch %s: %w", path, err))

		return
	}
	defer watcher.Close()

	for {
		var again <-chan time.Time

		// Each time: the directory may be another one of that name.
		if err := watcher.Add(filepath.Dir(path)); err != nil {
			i.reportFile(fmt.Errorf("watch %s: %w", path, err))

			again = time.After(rewatchPause)
		} else if err := i.Load(path); err != nil { // also at first: it may have changed since Load
			i.reportFile(err)
		}

		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
		case <-i.recheck:
		case <-again:
		case err := <-watcher.Errors:
			i.log.Warn("changes of the file of fault rules may have been missed; it is loaded again", "file", path, "error", err)
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

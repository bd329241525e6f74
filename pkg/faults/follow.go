package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Load reads the rules of a file. Errors: ErrRule, or why it cannot be read; the active rules stay.
func (i *Injector) Load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the fault rules: %w", err)
	}

	// A file that has not changed does not bring back rules that were cleared.
	i.mu.Lock()
	same := i.loaded != nil && bytes.Equal(text, i.loaded)
	i.loaded = text
	i.mu.Unlock()

	if same {
		return nil
	}

	file, err := Parse(text)
	if err == nil {
		err = i.replaceFile(file)
	}

	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	rules, _ := i.List()
	i.config.Log.Warn("fault rules are active", "file", path, "rules", len(rules))

	return nil
}

// Follow loads the file again when it changes, until ctx ends. A file that cannot be read, or has a
// mistake, leaves the rules as they are; List and the log show why. It watches the directory, since
// editors and Kubernetes' ConfigMaps replace the file.
func (i *Injector) Follow(ctx context.Context, path string) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()

		err = watcher.Add(filepath.Dir(path))
	}

	if err != nil {
		i.reportFile(fmt.Errorf("watch %s: %w", path, err))

		return
	}

	for {
		// Also at first: it may have changed since Load.
		if err := i.Load(path); err != nil {
			i.reportFile(err)
		}

		select {
		case <-ctx.Done():
			return
		case _, ok := <-watcher.Events:
			if !ok {
				return
			}
		case err := <-watcher.Errors:
			i.reportFile(fmt.Errorf("watch %s: %w", path, err))
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
		i.config.Log.Error("the file of fault rules is not applied; the rules before it stay", "error", err)
	}
}

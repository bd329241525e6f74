package manifests

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// header is what the files of the base begin with.
const header = "# Rendered from deploy/helm by `make manifests`: change it there.\n"

// Base returns the files of deploy/kustomize/base but its kustomization.yaml.
func Base(chart string) (map[string]string, error) {
	values, err := ReadValues(ValuesFile(chart, "base"))
	if err != nil {
		return nil, err
	}

	rendered, err := Prepared().Render(chart, values, PlainValues())
	files := Plain(rendered)

	for name, text := range files {
		files[name] = header + text
	}

	return files, err
}

// Write makes the directory have these YAML files, and kustomization.yaml.
func Write(directory string, files map[string]string) error {
	found, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return fmt.Errorf("what is in %s: %w", directory, err)
	}

	var failures []error

	for _, path := range found {
		name := filepath.Base(path)
		if _, wanted := files[name]; !wanted && name != "kustomization.yaml" {
			failures = append(failures, os.Remove(path))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(files)) {
		failures = append(failures, os.WriteFile(filepath.Join(directory, name), []byte(files[name]), 0o644))
	}

	return errors.Join(failures...)
}

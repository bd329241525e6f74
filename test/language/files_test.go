package language_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

const mostLines = 500

// toSplit lists the files that are longer.
var toSplit []string

// TestNoLongFiles keeps Go files at a length that can be read in one go.
func TestNoLongFiles(t *testing.T) {
	t.Parallel()

	for _, path := range files(t) {
		if filepath.Ext(path) != ".go" || within(path, toSplit) {
			continue
		}

		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)

		if lines := bytes.Count(content, []byte("\n")); lines > mostLines {
			t.Errorf("%s has %d lines: split it at %d", path, lines, mostLines)
		}
	}
}

// named matches a path of the repository in a document.
var named = regexp.MustCompile(`\b(?:cmd|pkg|internal|test|docs|deploy|examples|hack)/[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*`)

// TestArchitectureNamesFiles requires all paths in docs/architecture.md to exist.
func TestArchitectureNamesFiles(t *testing.T) {
	t.Parallel()

	content, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	require.NoError(t, err)

	paths := named.FindAllString(string(content), -1)
	require.NotEmpty(t, paths)

	for _, path := range paths {
		_, err := os.Stat(filepath.Join(root, filepath.Clean(regexp.MustCompile(`\.+$`).ReplaceAllString(path, ""))))
		require.NoError(t, err, "docs/architecture.md names %s", path)
	}
}

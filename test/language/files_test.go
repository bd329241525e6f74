package language_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

const mostUntested = 100

// TestEachPackageHasTests requires tests beside the code of a package, however many others use it.
func TestEachPackageHasTests(t *testing.T) {
	t.Parallel()

	lines, tested := map[string]int{}, map[string]bool{}

	for _, path := range files(t) {
		if filepath.Ext(path) != ".go" || !within(path, []string{"cmd", "internal", "pkg"}) {
			continue
		}

		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)

		if directory := filepath.Dir(path); strings.HasSuffix(path, "_test.go") {
			tested[directory] = true
		} else {
			lines[directory] += bytes.Count(content, []byte("\n"))
		}
	}

	require.NotEmpty(t, tested, "want: packages with tests are found")

	for directory, count := range lines {
		if count > mostUntested && !tested[directory] {
			t.Errorf("%s has %d lines and no tests: add a table test beside the code", directory, count)
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
	require.NotEmpty(t, paths, "want: the document names files")

	for _, path := range paths {
		_, err := os.Stat(filepath.Join(root, filepath.Clean(regexp.MustCompile(`\.+$`).ReplaceAllString(path, ""))))
		require.NoError(t, err, "docs/architecture.md names %s", path)
	}
}

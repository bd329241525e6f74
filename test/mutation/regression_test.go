package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRegressionsMatchTheCode fails for a regression whose declaration, text or tests no longer
// exist.
func TestRegressionsMatchTheCode(t *testing.T) {
	t.Parallel()

	code, err := readDeclarations("../..")
	require.NoError(t, err)

	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

	for _, r := range regressions() {
		_, err := code.locate(r)
		require.NoError(t, err, r.name)

		files, err := filepath.Glob(filepath.Join("..", "..", r.tests.pkg, "*_test.go"))
		require.NoError(t, err)

		var names []string

		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)

			for _, found := range function.FindAllStringSubmatch(string(text), -1) {
				names = append(names, found[1])
			}
		}

		require.NotEmpty(t, names, "%s: tests of %s", r.name, r.tests.pkg)

		if r.tests.run == "" {
			continue // all of them
		}

		tests, _, _ := strings.Cut(r.tests.run, "/")
		for name := range strings.SplitSeq(strings.Trim(tests, "^()$"), "|") {
			require.Contains(t, names, name, "%s: the tests of %s", r.name, r.tests.pkg)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMutantsMatchTheCode fails for a mutant whose text or tests no longer exist.
func TestMutantsMatchTheCode(t *testing.T) {
	t.Parallel()

	name := regexp.MustCompile(`(?:Test|Fuzz)\w+`)

	for _, m := range all() {
		_, err := m.apply("../..")
		require.NoError(t, err, m.name)

		files, err := filepath.Glob(filepath.Join("..", "..", m.tests.pkg, "*_test.go"))
		require.NoError(t, err)

		var code []byte

		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)

			code = append(code, text...)
		}

		for _, test := range name.FindAllString(m.tests.run, -1) {
			if !regexp.MustCompile(`(?m)^func ` + test).Match(code) {
				t.Errorf("%s: no test %s in %s", m.name, test, m.tests.pkg)
			}
		}
	}
}

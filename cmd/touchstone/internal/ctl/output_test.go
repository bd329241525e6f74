package ctl_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
)

// TestPrintableEscapesControlCharacters: control characters of a driver's text do not reach the
// terminal.
func TestPrintableEscapesControlCharacters(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"":                         "",
		"pvc-ü 1":                  "pvc-ü 1",
		"\x1b[2J\x1b]0;owned\x07":  `"\x1b[2J\x1b]0;owned\a"`,
		"a\tb\nc\rd":               `"a\tb\nc\rd"`,
		"\u202egnp.exe":            `"\u202egnp.exe"`,
		"\u009b31m":                `"\u009b31m"`,
		strings.Repeat("x", 1<<20): strings.Repeat("x", 4096) + "…",
		strings.Repeat("ü", 3000):  strings.Repeat("ü", 2048) + "…",
	} {
		require.Equal(t, want, ctl.Printable(text))
	}
}

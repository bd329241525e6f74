package filesystem_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// A tool that is started, and not listed, would be missed only when it is needed.
func TestEachStartedToolIsListed(t *testing.T) {
	t.Parallel()

	listed := map[string]bool{}

	for _, name := range filesystem.Names() {
		require.NotEmpty(t, filesystem.Tools(name), "want: each filesystem has tools")

		for i, tool := range filesystem.Tools(name) {
			listed[tool.Name] = i == 0 // Make starts the first one
		}
	}

	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)

	// Tool: "e2fsck", Package: …, and command.Tool, command.Package = "e2fsck", …
	started := regexp.MustCompile(`\bTool: +"([^"]+)"|\.Tool, .* = "([^"]+)"`)

	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}

		text, err := os.ReadFile(source)
		require.NoError(t, err)

		for _, found := range started.FindAllStringSubmatch(string(text), -1) {
			name := found[1] + found[2]
			require.Contains(t, listed, name, source)
			listed[name] = true
		}
	}

	for name, isStarted := range listed {
		require.True(t, isStarted, "%s is listed, but never started", name)
	}
}

func TestFindReturnsAnAbsolutePath(t *testing.T) {
	t.Parallel()

	path, err := filesystem.Tool{Name: "sh", Package: "dash"}.Find()
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(path), "want: %s is an absolute path", path)

	_, err = filesystem.Tool{Name: "mkfs.nothing", Package: "nothing-progs"}.Find()
	require.ErrorIs(t, err, filesystem.ErrToolMissing)
	errtext.Require(t, err, "nothing-progs")
}

package driver_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConcurrencyIsDocumented finds what docs/concurrency.md is about in the sources.
func TestConcurrencyIsDocumented(t *testing.T) {
	t.Parallel()

	const root = "../.."

	documented, err := os.ReadFile(filepath.Join(root, "docs", "concurrency.md"))
	require.NoError(t, err)

	concurrent := regexp.MustCompile(`(?m)^\s*go (func|\w+[.(])|\.Go\(` +
		`|time\.(After|AfterFunc|NewTimer|NewTicker|Sleep)\(|context\.With(Timeout|Deadline)` +
		`|sync\.(RW)?Mutex\b|flock\.(Try)?Lock\b`)

	found := map[string]bool{}

	for _, dir := range []string{"cmd", "internal", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(root, path)
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
				strings.HasPrefix(name, "cmd/touchstone/internal/") || strings.HasPrefix(name, "internal/csi/csiclient/") {
				return err
			}

			text, err := os.ReadFile(path)
			if found[name] = concurrent.Match(text); found[name] {
				isNamed := strings.Contains(string(documented), name) // not require.Contains, which prints the whole page
				require.True(t, isNamed, "want: docs/concurrency.md names %s", name)
			}

			return err
		}))
	}

	for _, name := range regexp.MustCompile(`(cmd|internal|pkg)/[a-z0-9_/]+\.go`).FindAllString(string(documented), -1) {
		_, exists := found[name]
		require.True(t, exists, "want: %s, which docs/concurrency.md names, exists", name)
	}
}

package tree_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// walks are the walks over a tree; each calls during with each file.
var walks = map[string]func(ctx context.Context, source, target *os.File, during func()) error{
	"visit": func(ctx context.Context, source, _ *os.File, during func()) error {
		return tree.Visit(ctx, source, func(_ *os.File, isDirectory bool) error {
			if !isDirectory {
				during()
			}

			return nil
		})
	},
	"measure": func(ctx context.Context, source, _ *os.File, during func()) error {
		_, err := tree.Measure(ctx, source, func(context.Context, *os.File, uint32) error {
			during()

			return nil
		})

		return err
	},
	"copy": func(ctx context.Context, source, target *os.File, during func()) error {
		copier := tree.NewCopier(target, target, "links")
		defer copier.Close()

		return copier.Copy(ctx, source, func(done, _ int64) {
			if done > 0 {
				during()
			}
		})
	},
}

// TestNamesThatAreRemovedMeanwhile are left out of each walk.
func TestNamesThatAreRemovedMeanwhile(t *testing.T) {
	t.Parallel()

	for name, walk := range walks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			for _, each := range []string{"a", "b", "c"} {
				require.NoError(t, os.WriteFile(filepath.Join(root, each), make([]byte, block), 0o600))
			}

			calls := 0

			require.NoError(t, walk(t.Context(), open(t, root), open(t, t.TempDir()), func() {
				calls++

				for _, each := range []string{"a", "b", "c"} {
					require.NoError(t, os.RemoveAll(filepath.Join(root, each)))
				}
			}))
			require.Positive(t, calls, "want: a file is found before it is removed")
		})
	}
}

// TestDescriptorsOfADeepTree: of the source at most one is open for each level.
func TestDescriptorsOfADeepTree(t *testing.T) {
	t.Parallel()

	const levels = 20

	for name, walk := range walks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			deepest := filepath.Join(root, strings.Repeat("d/", levels))
			require.NoError(t, os.MkdirAll(deepest, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(deepest, "file"), make([]byte, block), 0o600))

			most := 0

			require.NoError(t, walk(t.Context(), open(t, root), open(t, t.TempDir()), func() {
				descriptors, err := os.ReadDir("/proc/self/fd")
				require.NoError(t, err)

				count := 0

				for _, each := range descriptors {
					path, _ := os.Readlink("/proc/self/fd/" + each.Name()) // one that another test has closed
					if strings.HasPrefix(path, root) {
						count++
					}
				}

				most = max(most, count)
			}))
			require.Positive(t, most, "want: the file is found")
			require.LessOrEqual(t, most, levels+4, "want: one for each level, the caller's, and those of the file")
		})
	}
}

// TestCopyKeepsWhatTheTargetHas: a name that readdir returns twice is copied once.
func TestCopyKeepsWhatTheTargetHas(t *testing.T) {
	t.Parallel()

	root, target := grow(t), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(target, "a"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(target, "sparse"), []byte("earlier"), 0o600))

	copier := tree.NewCopier(open(t, target), open(t, t.TempDir()), "links")
	defer copier.Close()

	require.NoError(t, copier.Copy(t.Context(), open(t, root), nil))
	require.NoDirExists(t, filepath.Join(target, "a", "b"), "want: the directory is not entered again")

	text, err := os.ReadFile(filepath.Join(target, "sparse"))
	require.NoError(t, err)
	require.Equal(t, "earlier", string(text), "want: the file is not written again")
	require.FileExists(t, filepath.Join(target, "fifo"))
}

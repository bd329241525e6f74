package filesystem_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

var errTool = errors.New("the tool was killed")

// failingTools runs tools, but for one of them.
type failingTools struct {
	ran, fails int
	// exits has it end with an exit code that no tool documents, instead of an error.
	exits bool
}

func (f *failingTools) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	f.ran++

	switch {
	case f.ran != f.fails:
		return filesystem.NewRunner().Run(ctx, command)
	case f.exits:
		return filesystem.Result{ExitCode: 250, Output: "garbage"}, nil
	default:
		return filesystem.Result{}, errTool
	}
}

// toolUses are the operations that tools do. A check succeeds if it finds nothing.
func toolUses(image, copied string) map[string]func(ctx context.Context, fs filesystem.Filesystem) error {
	errDamaged := errors.New("a check does not say clean")
	isClean := func(verdict filesystem.Verdict, err error) error {
		if err == nil && verdict.State != filesystem.Clean {
			return errDamaged
		}

		return err
	}

	return map[string]func(ctx context.Context, fs filesystem.Filesystem) error{
		"make": func(ctx context.Context, fs filesystem.Filesystem) error {
			return errors.Join(os.Truncate(image, 0), os.Truncate(image, imageSize), fs.Make(ctx, image, filesystem.MakeOptions{}))
		},
		"check":       func(ctx context.Context, fs filesystem.Filesystem) error { return isClean(fs.Check(ctx, image)) },
		"force check": func(ctx context.Context, fs filesystem.Filesystem) error { return isClean(fs.ForceCheck(ctx, image)) },
		"read-only check": func(ctx context.Context, fs filesystem.Filesystem) error {
			return isClean(fs.CheckReadOnly(ctx, image, filesystem.ReadOnlyCheckOptions{}))
		},
		"set UUID": func(ctx context.Context, fs filesystem.Filesystem) error { return fs.SetUUID(ctx, image, onceUUID) },
		"grow": func(ctx context.Context, fs filesystem.Filesystem) error {
			err := fs.GrowUnmounted(ctx, image)
			if errors.Is(err, filesystem.ErrNeedsMount) {
				return nil
			}

			return err
		},
		"copy metadata": func(ctx context.Context, fs filesystem.Filesystem) error {
			taken, err := fs.CopyMetadata(ctx, image, copied, filesystem.ReadOnlyCheckOptions{})
			if errors.Is(err, errors.ErrUnsupported) {
				return nil
			}

			if err == nil {
				err = errors.Join(taken.Complete(ctx), taken.Close())
			}

			return err
		},
	}
}

// TestEachToolFailsOnce has each tool of each operation be killed, and end with an exit code that it does not
// know: the operation reports it, or does not call the filesystem clean.
func TestEachToolFailsOnce(t *testing.T) {
	t.Parallel()

	for _, name := range filesystem.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := t.TempDir()
			like, image := filepath.Join(directory, "like"), filepath.Join(directory, "image")
			require.NoError(t, os.WriteFile(like, nil, 0o600))
			require.NoError(t, os.Truncate(like, imageSize))
			require.NoError(t, byName(t, name).Make(t.Context(), like, filesystem.MakeOptions{}))

			for operation, use := range toolUses(image, filepath.Join(directory, "copy")) {
				t.Run(operation, func(t *testing.T) {
					tools := &failingTools{}
					fs, err := filesystem.ByName(name, tools)
					require.NoError(t, err)

					attempt := func(with failingTools) error {
						*tools = with
						run(t, "cp", "--sparse=always", like, image)

						return use(t.Context(), fs)
					}

					require.NoError(t, attempt(failingTools{}))

					for n := range tools.ran {
						require.ErrorIs(t, attempt(failingTools{fails: n + 1}), errTool, "want: the report of tool %d, which was killed", n+1)
						require.Error(t, attempt(failingTools{fails: n + 1, exits: true}), "want: the report of tool %d, which has failed", n+1)
					}
				})
			}
		})
	}
}

package demo_test

import (
	"archive/zip"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// published are the modules of the tree by their directory, as they are published.
var published = map[string]string{
	".": "github.com/touchstone-csi/touchstone", "pkg/touchstonetest": "github.com/touchstone-csi/touchstone/pkg/touchstonetest",
}

// publish writes the modules as a GOPROXY of files has them, in one version.
func publish(t *testing.T, tree, proxy string) {
	t.Helper()

	const version = "v0.9.0"

	for directory, module := range published {
		at := filepath.Join(proxy, module, "@v")
		require.NoError(t, os.MkdirAll(at, 0o755))

		goMod, err := os.ReadFile(filepath.Join(tree, directory, "go.mod"))
		require.NoError(t, err)

		for name, text := range map[string]string{
			"list": version + "\n", version + ".info": `{"Version":"` + version + `"}`, version + ".mod": string(goMod),
		} {
			require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o600))
		}

		zipModule(t, os.DirFS(filepath.Join(tree, directory)), module+"@"+version, filepath.Join(at, version+".zip"))
	}
}

// zipModule writes a module's files, but for those of other modules in it and for what is built.
func zipModule(t *testing.T, tree fs.FS, prefix, path string) {
	t.Helper()

	file, err := os.Create(path)
	require.NoError(t, err)

	archive := zip.NewWriter(file)
	unpublished := map[string]bool{".git": true, "bin": true, "out": true}

	require.NoError(t, fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if entry.IsDir() {
			_, err := fs.Stat(tree, name+"/go.mod")
			if name != "." && err == nil || unpublished[name] {
				return fs.SkipDir
			}

			return nil
		}

		if !entry.Type().IsRegular() {
			return nil
		}

		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}

		packed, err := archive.Create(prefix + "/" + name)
		if err != nil {
			return err
		}

		_, err = packed.Write(text)

		return err
	}))
	require.NoError(t, archive.Close())
	require.NoError(t, file.Close())
}

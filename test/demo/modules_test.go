package demo_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// published are the modules of the tree by their directory, as they are published.
var published = map[string]string{
	".": "github.com/touchstone-csi/touchstone", "pkg/touchstonetest": "github.com/touchstone-csi/touchstone/pkg/touchstonetest",
}

// file is one of a module.
type file struct {
	name string
	text []byte
}

// publish writes the modules as a GOPROXY of files has them, in one version. Other files have another one:
// Go reads what it has once seen of a version from its caches.
func publish(t *testing.T, tree, proxy string) {
	t.Helper()

	modules, sum := map[string][]file{}, sha256.New()

	for _, directory := range slices.Sorted(maps.Keys(published)) {
		modules[directory] = filesOf(t, os.DirFS(filepath.Join(tree, directory)))
		for _, each := range modules[directory] {
			fmt.Fprintf(sum, "%s %d\n%s", each.name, len(each.text), each.text)
		}
	}

	version := fmt.Sprintf("v0.9.0-x%x", sum.Sum(nil)[:6])

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

		pack(t, modules[directory], module+"@"+version, filepath.Join(at, version+".zip"))
	}
}

// pack writes files to a zip archive, beneath a directory.
func pack(t *testing.T, files []file, directory, path string) {
	t.Helper()

	var packed bytes.Buffer

	archive := zip.NewWriter(&packed)

	for _, each := range files {
		entry, err := archive.Create(directory + "/" + each.name)
		require.NoError(t, err)

		_, err = entry.Write(each.text)
		require.NoError(t, err)
	}

	require.NoError(t, archive.Close())
	require.NoError(t, os.WriteFile(path, packed.Bytes(), 0o600))
}

// filesOf returns a module's files, but for those of other modules in it and for what is built.
func filesOf(t *testing.T, tree fs.FS) (files []file) {
	t.Helper()

	unpublished := map[string]bool{".git": true, "bin": true, "out": true}

	require.NoError(t, fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			_, err := fs.Stat(tree, name+"/go.mod")
			if name != "." && err == nil || unpublished[name] {
				return fs.SkipDir
			}

			return nil
		case !entry.Type().IsRegular():
			return nil
		}

		text, err := fs.ReadFile(tree, name)
		files = append(files, file{name, text})

		return err
	}))

	return files
}

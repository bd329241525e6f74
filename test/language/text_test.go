package language_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the repository's root directory, as seen from this package.
const root = "../.."

// files returns the paths, relative to root, of all files whose texts are checked.
func files(t *testing.T) []string {
	t.Helper()

	var found []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}

		switch {
		case entry.IsDir() && slices.Contains([]string{".git", "build", "bin", "out", "testdata"}, entry.Name()):
			return filepath.SkipDir
		case entry.Type().IsRegular() && hasText(relative):
			found = append(found, relative)
		}

		return nil
	})
	require.NoError(t, err)

	return found
}

func hasText(path string) bool {
	return slices.Contains([]string{".go", ".md", ".yaml", ".yml", ".sh", ".tpl", ".txt"}, filepath.Ext(path)) ||
		slices.Contains([]string{"Makefile", "Dockerfile", "run"}, filepath.Base(path))
}

// text is a part of a file that people read.
type text struct {
	content string
	// first is the number of its first line.
	first int
}

// line returns the number of the line of an offset.
func (t text) line(offset int) int { return t.first + strings.Count(t.content[:offset], "\n") }

// texts returns the comments and string literals of a Go file, and other files whole.
func texts(t *testing.T, path string, content []byte) []text {
	t.Helper()

	if filepath.Ext(path) != ".go" {
		return []text{{string(content), 1}}
	}

	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, content, parser.ParseComments)
	require.NoError(t, err)

	var all []text

	add := func(node ast.Node) {
		from, to := set.PositionFor(node.Pos(), false), set.PositionFor(node.End(), false)
		all = append(all, text{string(content[from.Offset:to.Offset]), from.Line})
	}

	for _, group := range file.Comments {
		add(group)
	}

	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if node.Kind == token.STRING {
				add(node)
			}
		}

		return true
	})

	return all
}

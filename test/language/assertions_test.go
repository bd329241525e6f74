package language_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAssertionsSayWhatTheyExpect finds an assertion whose failure says "Should be true" or "Should be
// false" and nothing else.
func TestAssertionsSayWhatTheyExpect(t *testing.T) {
	t.Parallel()

	for _, path := range files(t) {
		if filepath.Ext(path) != ".go" {
			continue
		}

		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)

		for _, each := range mute(t, path, content) {
			t.Errorf("%s: give the assertion a message that says what is expected", each)
		}
	}
}

// mute are the places of a Go file where require or assert have True or False without a message.
func mute(t *testing.T, path string, content []byte) []string {
	t.Helper()

	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, content, parser.SkipObjectResolution)
	require.NoError(t, err, path)

	var found []string

	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}

		of, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || of.Sel.Name != "True" && of.Sel.Name != "False" {
			return true
		}

		if from, ok := of.X.(*ast.Ident); ok && (from.Name == "require" || from.Name == "assert") {
			found = append(found, fmt.Sprint(path, ":", set.Position(call.Pos()).Line))
		}

		return true
	})

	return found
}

func TestMuteAssertions(t *testing.T) {
	t.Parallel()

	source := "package p\n\nfunc f() {\n\trequire.True(t, a)\n\trequire.True(t, a, \"it is\")\n\tassert.False(t,\n\t\ta)\n\tx.True(t, a)\n}\n"
	require.Equal(t, []string{"p.go:4", "p.go:6"}, mute(t, "p.go", []byte(source)))
}

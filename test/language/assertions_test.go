package language_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bare has the assertions whose failures print values only, with the numbers of their arguments.
var bare = map[string]int{
	"True": 2, "False": 2, "Empty": 2, "NotEmpty": 2, "Zero": 2, "NotZero": 2, "Nil": 2, "NotNil": 2,
	"Positive": 2, "Negative": 2, "Error": 2, "Panics": 2, "NotPanics": 2,
	"Len": 3, "ErrorContains": 3, "Less": 3, "LessOrEqual": 3, "Greater": 3, "GreaterOrEqual": 3, "EqualValues": 3, "Same": 3,
	"Eventually": 4, "EventuallyWithT": 4, "Never": 4, "InDelta": 4,
}

// TestAssertionsSayWhatTheyExpect finds an assertion whose failure says "Should be true" or prints two
// numbers, and nothing else.
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

// mute are the places of a Go file where an assertion has no message and its failure prints values
// only: the bare ones, and Equal and NotEqual of numbers, codes and booleans.
func mute(t *testing.T, path string, content []byte) []string {
	t.Helper()

	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, content, parser.SkipObjectResolution)
	require.NoError(t, err, path)

	var found []string

	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}

		if name := assertion(call); name != "" && (len(call.Args) == bare[name] ||
			strings.HasSuffix(name, "qual") && len(call.Args) == 3 && slices.ContainsFunc(call.Args[1:], isValue)) {
			found = append(found, fmt.Sprint(path, ":", set.Position(call.Pos()).Line))
		}

		return true
	})

	return found
}

// assertion returns the name of an assertion, "" for another call.
func assertion(call *ast.CallExpr) string {
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}

	if from, ok := of.X.(*ast.Ident); !ok || from.Name != "require" && from.Name != "assert" {
		return ""
	}

	return of.Sel.Name
}

// isValue returns whether an expression is by its form a number, a boolean or a gRPC code.
func isValue(expression ast.Expr) bool {
	switch e := expression.(type) {
	case *ast.BasicLit:
		return e.Kind == token.INT || e.Kind == token.FLOAT
	case *ast.UnaryExpr:
		return e.Op == token.NOT || isValue(e.X)
	case *ast.BinaryExpr:
		return slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.GTR, token.LEQ, token.GEQ}, e.Op) ||
			isValue(e.X) || isValue(e.Y)
	case *ast.ParenExpr:
		return isValue(e.X)
	case *ast.Ident:
		return e.Name == "true" || e.Name == "false"
	case *ast.SelectorExpr:
		from, ok := e.X.(*ast.Ident)

		return ok && from.Name == "codes"
	case *ast.CallExpr:
		name, _ := e.Fun.(*ast.Ident)

		return name != nil && slices.Contains([]string{"len", "int", "int32", "int64", "uint32", "uint64", "float64"}, name.Name)
	default:
		return false
	}
}

func TestMuteAssertions(t *testing.T) {
	t.Parallel()

	for line, want := range map[string]bool{
		"require.True(t, a)": true, "require.True(t, a, `it is`)": false, "assert.False(t,\n\ta)": true, "x.True(t, a)": false,
		"require.Len(t, a, 2)": true, "require.Eventually(t, f, l, p)": true, "require.Eventually(t, f, l, p, `it`)": false,
		"require.Equal(t, a, b)": false, "require.Equal(t, `a`, b)": false, "require.Equal(t, 2, b)": true,
		"require.Equal(t, 2, b, `it`)": false, "require.Equal(t, int64(a), b)": true, "require.NotEqual(t, codes.OK, b)": true,
		"require.Equal(t, a, b == c)": true, "require.Equal(t, !a, b)": true, "require.Equal(t, a, len(b)-1)": true,
	} {
		found := mute(t, "p.go", []byte("package p\n\nfunc f() {\n\t"+line+"\n}\n"))
		require.Equal(t, want, len(found) > 0, "%s: %v", line, found)
	}
}

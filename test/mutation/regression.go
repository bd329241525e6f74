package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// regression is a defect that a test was written for: the test that names it must fail with it.
// It is found by the function that has it, wherever that is, so that moving a function, its file or
// its package leaves it valid.
type regression struct {
	// name is the area, a slash and what is defective.
	name string
	// in is the declaration: the package's name, a method's receiver, and the name, for example
	// state.journal.append, or filesystem.types of a variable.
	in string
	// old occurs exactly once in the declaration. It is as short as that allows.
	old, new string
	// breaks says what goes wrong for a user of the driver.
	breaks string
	// tests is what should fail.
	tests command
}

// extent is where a declaration is.
type extent struct {
	file       string
	start, end int
}

// declarations are where all declarations of the module are, by the names that regressions have
// for them. Files with build constraints for another system are among them.
type declarations struct {
	root    string
	extents map[string][]extent
	texts   map[string]string
}

// readDeclarations reads the module's code without its tests.
func readDeclarations(root string) (*declarations, error) {
	d := &declarations{root: root, extents: map[string][]extent{}, texts: map[string]string{}}

	for _, top := range []string{"cmd", "pkg", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}

			return d.read(path)
		})
		if err != nil {
			return nil, fmt.Errorf("read the code: %w", err)
		}
	}

	return d, nil
}

func (d *declarations) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}

	file, err := filepath.Rel(d.root, path)
	if err != nil {
		return err
	}

	d.texts[file] = string(text)
	files := token.NewFileSet()

	tree, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}

	for _, decl := range tree.Decls {
		for name, node := range named(decl) {
			key := tree.Name.Name + "." + name
			d.extents[key] = append(d.extents[key], extent{
				file: file, start: files.Position(node.Pos()).Offset, end: files.Position(node.End()).Offset,
			})
		}
	}

	return nil
}

// named returns what a declaration declares, by name.
func named(decl ast.Decl) map[string]ast.Node {
	found := map[string]ast.Node{}

	switch decl := decl.(type) {
	case *ast.FuncDecl:
		found[functionName(decl)] = decl
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				found[spec.Name.Name] = spec
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					found[name.Name] = spec
				}
			}
		}
	}

	return found
}

// locate returns the mutant of a regression. Of several declarations with its name, in packages
// of the same name, the one that has the text counts.
func (d *declarations) locate(r regression) (mutant, error) {
	m := mutant{name: r.name, old: r.old, new: r.new, breaks: r.breaks, tests: []command{r.tests}}
	found := 0

	for _, each := range d.extents[r.in] {
		text := d.texts[each.file][each.start:each.end]
		found += strings.Count(text, r.old)

		if at := strings.Index(text, r.old); at >= 0 {
			m.file, m.start, m.function = each.file, each.start+at, r.in
		}
	}

	switch {
	case len(d.extents[r.in]) == 0:
		return m, fmt.Errorf("%w: there is no %s", errStale, r.in)
	case found != 1:
		return m, fmt.Errorf("%w: the old text occurs %d times in %s, not once", errStale, found, r.in)
	}

	return m, nil
}

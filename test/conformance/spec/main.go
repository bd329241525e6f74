// Command spec compares docs/spec/rows.tsv with the text of the CSI spec that go.mod names, and
// writes docs/spec.md and pkg/driver/errorrows.go, with which the log names the rows of a refused call. A row is a sentence with a keyword that binds, what the driver makes of it, and
// the tests that show it.
//
//	spec [-write] [-ran FILE]
//
// It fails if a sentence of the spec has no row, or a row no sentence (the spec has changed); if
// a requirement names no test, or a deviation no decision; if a test does not exist; if docs/spec.md
// or errorrows.go is out of date. With -ran, which is a list of the tests that passed, it fails if a named one is
// not among them.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	rowsFile = "docs/spec/rows.tsv"
	pageFile = "docs/spec.md"
	goFile   = "pkg/driver/errorrows.go"
	module   = "github.com/container-storage-interface/spec"
)

func main() {
	write := flag.Bool("write", false, "write the generated files")
	ran := flag.String("ran", "", "a file with the names of the tests that passed, a line each")
	flag.Parse()

	problems, err := run(".", *write, *ran)
	if err != nil {
		fmt.Fprintln(os.Stderr, "spec:", err)
		os.Exit(2)
	}

	for _, problem := range problems {
		fmt.Fprintln(os.Stderr, "spec:", problem)
	}

	if len(problems) > 0 {
		os.Exit(1)
	}
}

// run checks the repository at root.
func run(root string, write bool, ran string) ([]string, error) {
	text, err := specText(root)
	if err != nil {
		return nil, err
	}

	content, err := os.ReadFile(filepath.Join(root, rowsFile))
	if err != nil {
		return nil, err
	}

	rows, err := parseRows(string(content))
	if err != nil {
		return nil, err
	}

	tests, err := testNames(root)
	if err != nil {
		return nil, err
	}

	problems := check(rows, normative(text), tests, func(page string) bool {
		if !strings.HasPrefix(page, "docs/") {
			page = "docs/decisions/" + page + "-*.md"
		}

		found, err := filepath.Glob(filepath.Join(root, page))

		return err == nil && len(found) == 1
	})

	if ran != "" {
		passed, err := os.ReadFile(ran)
		if err != nil {
			return nil, err
		}

		problems = append(problems, notPassed(rows, strings.Fields(string(passed)))...)
	}

	source, err := errorRows(rows)
	if err != nil {
		return nil, err
	}

	for path, content := range map[string]string{pageFile: page(rows), goFile: string(source)} {
		problems = append(problems, compare(root, path, content, write)...)
	}

	return problems, nil
}

// compare compares a generated file with its content, or writes it.
func compare(root, path, content string, write bool) []string {
	name := filepath.Join(root, path)
	if write {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return []string{err.Error()}
		}
	}

	if current, err := os.ReadFile(name); err != nil || string(current) != content {
		return []string{path + " is out of date: go run ./test/conformance/spec -write"}
	}

	return nil
}

// specText returns the text of the spec that go.mod names.
func specText(root string) (string, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = root

	directory, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w", module, err)
	}

	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(directory)), "spec.md"))

	return string(text), err
}

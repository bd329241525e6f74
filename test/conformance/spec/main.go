// Command spec compares docs/spec/rows.tsv with the text of the CSI spec that go.mod names, and
// writes docs/spec.md, test/conformance/required.go and internal/driver/errorrows.go, with which the log
// names the rows of a refused call. A row is a sentence with a keyword that binds, what the driver
// makes of it, and the observations that show it.
//
//	spec [-write] [-observed DIRECTORY]
//
// It fails if a sentence of the spec has no row, or a row no sentence (the spec has changed); if
// a requirement that holds names no observation, or a deviation no decision; if a generated file is
// out of date. With -observed, the directory in which tests wrote what they observed, it fails if a
// named observation is not among them.
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
	goFile   = "internal/driver/errorrows.go"
	// fieldsFile has the fields of csi.proto that are REQUIRED.
	fieldsFile = "test/conformance/required.go"
	module     = "github.com/container-storage-interface/spec"
)

func main() {
	write := flag.Bool("write", false, "write the generated files")
	observed := flag.String("observed", "", "the directory of TOUCHSTONE_OBSERVATIONS")
	flag.Parse()

	problems, err := run(".", *write, *observed)
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
func run(root string, write bool, observed string) ([]string, error) {
	text, err := specText(root, "spec.md")
	if err != nil {
		return nil, err
	}

	proto, err := specText(root, "csi.proto")
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

	problems := check(rows, normative(text), func(page string) bool {
		if !strings.HasPrefix(page, "docs/") {
			page = "docs/decisions/" + page + "-*.md"
		}

		found, err := filepath.Glob(filepath.Join(root, page))

		return err == nil && len(found) == 1
	})

	if observed != "" {
		made, err := readObservations(observed)
		if err != nil {
			return nil, err
		}

		problems = append(problems, notObserved(rows, made)...)
	}

	source, err := errorRows(rows)
	if err != nil {
		return nil, err
	}

	fields, err := requiredFields(proto)
	if err != nil {
		return nil, err
	}

	for path, content := range map[string]string{pageFile: page(rows), goFile: string(source), fieldsFile: string(fields)} {
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

// specText returns a file of the spec that go.mod names.
func specText(root, name string) (string, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = root

	directory, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w", module, err)
	}

	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(directory)), name))

	return string(text), err
}

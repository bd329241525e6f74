package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one deliberate defect: a text of a file that is replaced by another.
type mutant struct {
	name string
	// function is the one that it changes, "" for another declaration. It only informs.
	function string
	file     string
	// old is the text at start.
	old, new string
	start    int
	// breaks says what goes wrong for a user of the driver, or where the mutant is.
	breaks string
	// tests are what should fail: one of them is enough.
	tests []command
}

// command is one run of go test.
type command struct {
	pkg, run string
}

func in(pkg string, tests ...string) command {
	return command{pkg: "./" + pkg, run: "^(" + strings.Join(tests, "|") + ")$"}
}

// wholePackage is all tests of a package.
func wholePackage(pkg string) command { return command{pkg: "./" + pkg} }

func (c command) String() string {
	if c.run == "" {
		return "go test " + c.pkg
	}

	return "go test -run '" + c.run + "' " + c.pkg
}

// apply returns the text of the mutated file.
func (m mutant) apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}

	end := m.start + len(m.old)
	if m.start < 0 || end > len(text) || string(text[m.start:end]) != m.old {
		return nil, fmt.Errorf("%w: %s has another text at %d", errStale, m.file, m.start)
	}

	return []byte(string(text[:m.start]) + m.new + string(text[end:])), nil
}

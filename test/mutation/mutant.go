package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one deliberate defect.
type mutant struct {
	// name is the area, a slash and what is defective.
	name string
	file string
	// old occurs exactly once in file. It is as short as that allows, so that
	// other changes of the file do not make the mutant stale.
	old, new string
	// breaks says what goes wrong for a user of the driver.
	breaks string
	// tests is what should fail.
	tests command
}

// command is one run of go test.
type command struct {
	pkg, run string
}

func in(pkg string, tests ...string) command {
	return command{pkg: "./" + pkg, run: "^(" + strings.Join(tests, "|") + ")$"}
}

func (c command) String() string { return "go test -run '" + c.run + "' " + c.pkg }

func (m mutant) area() string {
	area, _, _ := strings.Cut(m.name, "/")

	return area
}

// apply returns the text of the mutated file.
func (m mutant) apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}

	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("%w: the old text occurs %d times in %s, not once", errStale, n, m.file)
	}

	return []byte(strings.Replace(string(text), m.old, m.new, 1)), nil
}

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The verdicts of a row.
const (
	// holds: the driver does it, and the row's tests show that.
	holds = "holds"
	// deviates: it does something else, for the reason in the row's decision.
	deviates = "deviates"
	// bindsCO: the sentence binds the CO, the operator or the supervisor.
	bindsCO = "co"
	// information: the sentence has a keyword and requires nothing.
	information = "info"
)

// row is a line of docs/spec/rows.tsv.
type row struct {
	id, hash, section, level, verdict, decision, statement string
	line                                                   int
	tests                                                  []string
}

const columns = 9

func parseRows(content string) ([]row, error) {
	lines := strings.Split(strings.TrimRight(content, "\n"), "\n")
	rows := make([]row, 0, len(lines))

	for i, line := range lines[1:] {
		fields := strings.Split(line, "\t")
		if len(fields) != columns {
			return nil, fmt.Errorf("%s:%d has %d columns, want %d", rowsFile, i+2, len(fields), columns)
		}

		number, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s:%d: the line: %w", rowsFile, i+2, err)
		}

		rows = append(rows, row{
			id: fields[0], line: number, hash: fields[2], section: fields[3], level: fields[4], verdict: fields[5],
			tests: strings.FieldsFunc(fields[6], func(r rune) bool { return r == ',' }), decision: fields[7], statement: fields[8],
		})
	}

	return rows, nil
}

// check returns what is wrong with the rows. isDecision reports whether a decision of that number,
// or a page of that path, exists.
func check(rows []row, sentences []sentence, tests map[string]bool, isDecision func(number string) bool) []string {
	var problems []string

	byHash, ids := map[string]row{}, map[string]bool{}

	for _, r := range rows {
		if ids[r.id] {
			problems = append(problems, r.id+": there are two of it")
		}

		ids[r.id] = true
		byHash[r.hash] = r
		problems = append(problems, checkRow(r, tests, isDecision)...)
	}

	for _, s := range sentences {
		r, ok := byHash[s.hash]

		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("line %d of the spec has no row: %s\t%d\t%s\t%s", s.line, s.hash, s.line, s.section, s.text))
		case r.line != s.line || r.section != s.section || r.statement != s.text:
			problems = append(problems, fmt.Sprintf("%s is not what line %d of the spec says: %s", r.id, s.line, s.text))
		}

		delete(byHash, s.hash)
	}

	for _, r := range rows {
		if _, left := byHash[r.hash]; left {
			problems = append(problems, r.id+": the spec has no such sentence")
		}
	}

	return problems
}

func checkRow(r row, tests map[string]bool, isDecision func(number string) bool) []string {
	var problems []string

	for _, test := range r.tests {
		if !tests[test] {
			problems = append(problems, fmt.Sprintf("%s: there is no %s", r.id, test))
		}
	}

	if r.decision != "" && !isDecision(r.decision) {
		problems = append(problems, fmt.Sprintf("%s: there is no decision %s", r.id, r.decision))
	}

	switch r.verdict {
	case holds:
		if len(r.tests) == 0 && r.decision == "" {
			problems = append(problems, r.id+": no test shows it")
		}
	case deviates:
		if r.decision == "" {
			problems = append(problems, r.id+": no decision says why")
		}
	case bindsCO, information:
	default:
		problems = append(problems, fmt.Sprintf("%s: unknown verdict %q", r.id, r.verdict))
	}

	return problems
}

// notPassed returns which tests of the rows are not among those that passed.
func notPassed(rows []row, passed []string) []string {
	ran := map[string]bool{}
	for _, test := range passed {
		ran[test] = true
	}

	var problems []string

	for _, r := range rows {
		for _, test := range r.tests {
			if !ran[test] {
				problems = append(problems, fmt.Sprintf("%s: %s did not run and pass", r.id, test))
			}
		}
	}

	slices.Sort(problems)

	return problems
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)

// testNames returns the names of all tests of the repository.
func testNames(root string) (map[string]bool, error) {
	names := map[string]bool{}

	return names, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}

		content, err := os.ReadFile(path)
		for _, found := range testFunction.FindAllSubmatch(content, -1) {
			names[string(found[1])] = true
		}

		return err
	})
}

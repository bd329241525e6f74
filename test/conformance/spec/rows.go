package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

// The verdicts of a row.
const (
	// holds: the driver does it, and the row's observations show that.
	holds = "holds"
	// reasoned: the driver does it, which no call can show; the row says why it does.
	reasoned = "by reasoning"
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
	// shown are the observations that show it, as conformance.Observation has them, or of a row by
	// reasoning the reason.
	shown []string
}

const columns = 9

// plain is conformance.Plain, the condition of a request without a fault.
const plain = "plain"

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
			shown: splitShown(fields[6]), decision: fields[7], statement: fields[8],
		})
	}

	return rows, nil
}

func splitShown(text string) []string {
	if text == "" {
		return nil
	}

	return strings.Split(text, "; ")
}

// check returns what is wrong with the rows. isDecision reports whether a decision of that number,
// or a page of that path, exists.
func check(rows []row, sentences []sentence, isDecision func(number string) bool) []string {
	var problems []string

	byHash, ids := map[string]row{}, map[string]bool{}

	for _, r := range rows {
		if ids[r.id] {
			problems = append(problems, r.id+": there are two of it")
		}

		ids[r.id] = true
		byHash[r.hash] = r
		problems = append(problems, checkRow(r, isDecision)...)
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

func checkRow(r row, isDecision func(number string) bool) []string {
	var problems []string

	if r.decision != "" && !isDecision(r.decision) {
		problems = append(problems, fmt.Sprintf("%s: there is no decision %s", r.id, r.decision))
	}

	switch r.verdict {
	case holds:
		if len(r.shown) == 0 {
			problems = append(problems, r.id+": no observation shows it")
		}

		for _, each := range r.shown {
			parts := strings.Split(each, " | ")

			switch {
			case len(parts) != 3:
				problems = append(problems, fmt.Sprintf("%s: %q is no observation: RPC | condition | code or property", r.id, each))
			case parts[1] == plain && isError(parts[2]):
				problems = append(problems, fmt.Sprintf("%s: %q does not say what the error is for", r.id, each))
			}
		}
	case reasoned:
		if len(r.shown) != 1 {
			problems = append(problems, r.id+": no reason is given")
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

// isError reports whether the result of an observation is an error's code.
func isError(result string) bool {
	code, _, _ := strings.Cut(result, " ")

	for each := codes.Canceled; each <= codes.Unauthenticated; each++ {
		if each.String() == code {
			return true
		}
	}

	return false
}

// notObserved returns which observations of the rows are not among those that were made.
func notObserved(rows []row, made observations) []string {
	var problems []string

	for _, r := range rows {
		if r.verdict != holds {
			continue
		}

		for _, each := range r.shown {
			if !made.have(each) {
				problems = append(problems, fmt.Sprintf("%s: not observed: %s", r.id, each))
			}
		}
	}

	slices.Sort(problems)

	return problems
}

// observations are the conditions of the calls that were made, by RPC and result. A call has several.
type observations map[string]map[string]bool

// add adds an observation as conformance.Observation prints it.
func (o observations) add(observed string) {
	if parts := strings.Split(observed, " | "); len(parts) == 3 {
		key := parts[0] + " | " + parts[2]
		if o[key] == nil {
			o[key] = map[string]bool{}
		}

		o[key][parts[1]] = true
	}
}

// have reports whether a call had all conditions of the observation, which joins them by " + ".
func (o observations) have(wanted string) bool {
	parts := strings.Split(wanted, " | ")
	conditions := strings.Split(parts[1], " + ")

	for each := range o[parts[0]+" | "+parts[2]] {
		of := strings.Split(each, " + ")
		if !slices.ContainsFunc(conditions, func(c string) bool { return !slices.Contains(of, c) }) {
			return true
		}
	}

	return false
}

// readObservations reads what tests have written into a directory (conformance.ObservationsVariable).
func readObservations(directory string) (observations, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*"))
	if err != nil {
		return nil, err
	}

	made := observations{}

	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read observations: %w", err)
		}

		for line := range strings.Lines(string(text)) {
			observed, _, _ := strings.Cut(line, "\t")
			made.add(observed)
		}
	}

	return made, nil
}
